"""Keys and values of the rows that are decoded together: prefixes once for each group, continuations once for each row.

Rows of a group attend to their shared prefix as one product, so a prompt is neither copied nor read eight times. All
rows write their next token into the same slot of their own buffer; what lies in front of it is padded on the left
where contexts differ in length. Attention runs in float32, as the trainer's does (invariant 2). Nothing here is shared
between calls.

Shapes: g groups, b rows, n rows of the largest group, k key-value heads, r query heads for each, e head dimension, p
prefix slots, t own slots.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LayerKv = list[tuple[Tensor, Tensor]]
"""Over layers: (k, v), each [tokens, k, e] float32."""


class DecodeCache:
    """An `Attend` for one new token in each row.

    prefixes: for each group its cached prefix; group_of_row: [B], non-decreasing group indices; own: for each row its
    own (k, v) so far or None; slots: the most tokens that any row will hold.
    """

    def __init__(self, prefixes: list[LayerKv], group_of_row: list[int], own: list[LayerKv | None], slots: int):
        layers = len(prefixes[0])
        self.device = prefixes[0][0][0].device
        self.group_of_row = torch.tensor(group_of_row, device=self.device)
        lengths = torch.tensor([p[0][0].shape[0] for p in prefixes], device=self.device)
        longest = int(lengths.max())
        self.prefix_mask_gp = torch.zeros(len(prefixes), longest, device=self.device)
        self.prefix_mask_gp.masked_fill_(torch.arange(longest, device=self.device) >= lengths[:, None], -math.inf)
        _, heads, width = prefixes[0][0][0].shape
        self.prefix_kv: list[tuple[Tensor, Tensor]] = []
        for layer in range(layers):
            k_gkpe = torch.zeros(len(prefixes), heads, longest, width, device=self.device)
            v_gkpe = torch.zeros_like(k_gkpe)
            for g, prefix in enumerate(prefixes):
                k, v = prefix[layer]
                k_gkpe[g, :, : len(k)], v_gkpe[g, :, : len(v)] = k.transpose(0, 1), v.transpose(0, 1)
            self.prefix_kv.append((k_gkpe, v_gkpe))
        self._place_own(own, slots, layers, heads, width)
        self._place_rows()

    def _place_own(self, own: list[LayerKv | None], slots: int, layers: int, heads: int, width: int) -> None:
        rows = len(own)
        self.used = max((o[0][0].shape[0] for o in own if o is not None), default=0)
        self.own_kv = []
        self.own_mask_bt = torch.zeros(rows, slots, device=self.device)
        for layer in range(layers):
            k_bkte = torch.zeros(rows, heads, slots, width, device=self.device)
            v_bkte = torch.zeros_like(k_bkte)
            for b, kv in enumerate(own):
                if kv is not None:
                    k, v = kv[layer]
                    k_bkte[b, :, self.used - len(k) : self.used] = k.transpose(0, 1)
                    v_bkte[b, :, self.used - len(v) : self.used] = v.transpose(0, 1)
            self.own_kv.append((k_bkte, v_bkte))
        for b, kv in enumerate(own):
            self.own_mask_bt[b, : self.used - (len(kv[0][0]) if kv is not None else 0)] = -math.inf

    def _place_rows(self) -> None:
        """Lays rows into the [g, n] grid of the prefix products; an empty place repeats row 0 and is never read
        back."""
        groups, counts = torch.unique_consecutive(self.group_of_row, return_counts=True)
        size = int(counts.max())
        starts = counts.cumsum(0) - counts
        within = torch.arange(len(self.group_of_row), device=self.device) - torch.repeat_interleave(starts, counts)
        dense = torch.repeat_interleave(torch.arange(len(groups), device=self.device), counts)
        self.place_of_row_b = dense * size + within
        self.row_at_place = torch.zeros(len(groups) * size, dtype=torch.long, device=self.device)
        self.row_at_place[self.place_of_row_b] = torch.arange(len(self.group_of_row), device=self.device)
        self.grid = (len(groups), size)
        self.full = len(groups) * size == len(self.group_of_row)  # every place has its row, in order: nothing to move
        self.row_mask_b1p = self.prefix_mask_gp[self.group_of_row][:, None, None]

    def keep_rows(self, rows: Tensor) -> None:
        """Drops all rows but these (ascending indices), and the prefixes that no row needs any more."""
        self.group_of_row = self.group_of_row[rows]
        self.own_kv = [(k[rows], v[rows]) for k, v in self.own_kv]
        self.own_mask_bt = self.own_mask_bt[rows]
        live, self.group_of_row = torch.unique_consecutive(self.group_of_row, return_inverse=True)
        if len(live) < len(self.prefix_mask_gp):
            self.prefix_mask_gp = self.prefix_mask_gp[live]
            self.prefix_kv = [(k[live], v[live]) for k, v in self.prefix_kv]
        self._place_rows()

    def advance(self) -> None:
        """Takes the slot that the last step wrote into the context."""
        self.used += 1

    def __call__(self, layer: int, q_bhe: Tensor, k_bke: Tensor, v_bke: Tensor) -> Tensor:
        rows, heads, width = k_bke.shape
        own_k, own_v = self.own_kv[layer]
        own_k[:, :, self.used], own_v[:, :, self.used] = k_bke, v_bke
        end = self.used + 1
        q_bkre = q_bhe.reshape(rows, heads, -1, width) * (1 / math.sqrt(width))
        shares = q_bkre.shape[2]
        groups, size = self.grid
        pk_gkpe, pv_gkpe = self.prefix_kv[layer]
        slots = pk_gkpe.shape[2]
        q_grid = self._placed(q_bkre).view(groups, size, heads, shares, width).transpose(1, 2).flatten(2, 3)
        scores_grid = q_grid @ pk_gkpe.transpose(-1, -2)
        scores_grid = scores_grid.view(groups, heads, size, shares, slots).transpose(1, 2).flatten(0, 1)
        prefix = self._taken_back(scores_grid) + self.row_mask_b1p
        own = (q_bkre @ own_k[:, :, :end].transpose(-1, -2)).add_(self.own_mask_bt[:, None, None, :end])
        weights = torch.cat((prefix, own), dim=-1).softmax(-1)
        w_grid = self._placed(weights[..., :slots]).reshape(groups, size, heads, shares, slots)
        from_prefix = w_grid.transpose(1, 2).flatten(2, 3) @ pv_gkpe
        from_prefix = from_prefix.view(groups, heads, size, shares, width).transpose(1, 2).flatten(0, 1)
        out = self._taken_back(from_prefix) + weights[..., slots:] @ own_v[:, :, :end]
        return out.reshape(rows, heads * shares, width)

    def _placed(self, by_row: Tensor) -> Tensor:
        """[b, ...] -> [g * n, ...]"""
        return by_row if self.full else by_row.index_select(0, self.row_at_place)

    def _taken_back(self, by_place: Tensor) -> Tensor:
        """[g * n, ...] -> [b, ...]"""
        return by_place if self.full else by_place.index_select(0, self.place_of_row_b)
