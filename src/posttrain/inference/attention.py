"""Attention over trees: token segments that continue one another, each of which sees its ancestors and itself.

A tree lies flat in the token axis, parents before children: [stem, prompt 1, its attempts, prompt 2, its attempts,
...]. It serves three uses with one code: prefill of prompts, prefill of later turns behind a cached prefix, and
training on groups (Prefix Grouper, arXiv 2506.05433, with any depth). Because each tree is attended on its own, what a
token sees never depends on which other trees share the batch (invariant 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

ROOT = -1


@dataclass(frozen=True, slots=True)
class Tree:
    """segments: (tokens, index of the parent segment or `ROOT`), parents first. past: cached tokens before every
    root."""

    segments: tuple[tuple[int, int], ...]
    past: int = 0

    @classmethod
    def star(cls, prefix: int, branches: Sequence[int]) -> Tree:
        """One prefix that all branches continue."""
        return cls(((prefix, ROOT), *((length, 0) for length in branches)))

    @property
    def tokens(self) -> int:
        return sum(length for length, _ in self.segments)

    @property
    def is_chain(self) -> bool:
        """Whether every token sees all tokens before it: plain causal attention."""
        return self.past == 0 and all(parent == i - 1 for i, (_, parent) in enumerate(self.segments))

    def positions(self) -> list[int]:
        """Position of each token in its own sequence."""
        ends: list[int] = []
        out: list[int] = []
        for length, parent in self.segments:
            start = self.past if parent == ROOT else ends[parent]
            out.extend(range(start, start + length))
            ends.append(start + length)
        return out

    def mask(self, device: torch.device) -> Tensor:
        """[tokens, past + tokens] bool, True where a query (row) may see a key (column)."""
        count = len(self.segments)
        sees = torch.eye(count, dtype=torch.bool)
        for i, (_, parent) in enumerate(self.segments):
            if parent != ROOT:
                sees[i] |= sees[parent]
        segment = torch.repeat_interleave(torch.arange(count), torch.tensor([length for length, _ in self.segments]))
        own = sees[segment][:, segment] & torch.ones(self.tokens, self.tokens, dtype=torch.bool).tril()
        past = torch.ones(self.tokens, self.past, dtype=torch.bool)
        return torch.cat((past, own), dim=1).to(device)


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of leading tokens that two sequences share."""
    shorter = min(len(first), len(second))
    for i in range(shorter):
        if first[i] != second[i]:
            return i
    return shorter


class TreeAttention:
    """An `Attend` over trees laid one after the other.

    past: for each tree a pair of lists over layers of (k, v), each [past, k, e], or None where nothing is cached. With
    `keep`, the keys and values of every layer are kept in `self.kept` [(k_nke, v_nke)], for a cache to be made from.
    """

    def __init__(
        self,
        trees: list[Tree],
        device: torch.device,
        *,
        past: list[list[tuple[Tensor, Tensor]] | None] | None = None,
        keep: bool = False,
    ):
        self.trees = trees
        self.sizes = [t.tokens for t in trees]
        self.masks = [None if t.is_chain else t.mask(device) for t in trees]
        self.past = past
        self.keep = keep
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q_nhe: Tensor, k_nke: Tensor, v_nke: Tensor) -> Tensor:
        if self.keep:
            self.kept.append((k_nke, v_nke))
        repeats = q_nhe.shape[1] // k_nke.shape[1]
        outs = []
        for i, (q, k, v) in enumerate(
            zip(q_nhe.split(self.sizes), k_nke.split(self.sizes), v_nke.split(self.sizes), strict=True)
        ):
            past = self.past[i] if self.past is not None else None
            if past is not None:
                k, v = torch.cat((past[layer][0], k)), torch.cat((past[layer][1], v))
            if repeats > 1:
                k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
            mask = self.masks[i]
            out = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None],
                attn_mask=mask, is_causal=mask is None,
            )  # fmt: skip
            outs.append(out[0].transpose(0, 1))
        return torch.cat(outs)
