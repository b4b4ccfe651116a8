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


BLOCK_TOKENS = 192
"""Queries that are attended in one call: subtrees do not see each other, so one call over many of them is mostly
waste."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries [start, end) of a tree; they see the cached past, the first `head` tokens of the tree and their own
    block."""

    start: int
    end: int
    head: int
    mask: Tensor | None


def _blocks(tree: Tree, device: torch.device) -> list[_Block]:
    if tree.is_chain:
        return [_Block(0, tree.tokens, 0, None)]
    mask = tree.mask(device)
    roots = sum(parent == ROOT for _, parent in tree.segments)
    head = tree.segments[0][0] if roots == 1 else 0
    above = 0 if roots == 1 else ROOT
    starts, at = [], 0
    for i, (length, parent) in enumerate(tree.segments):
        if parent == above and (i or roots != 1):
            starts.append(at)
        at += length
    if tree.tokens - head <= BLOCK_TOKENS or len(starts) < 2:
        return [_Block(0, tree.tokens, 0, mask)]
    cuts = [starts[0]]
    for start, end in zip(starts, [*starts[1:], tree.tokens], strict=True):
        if end - cuts[-1] > BLOCK_TOKENS and start > cuts[-1]:
            cuts.append(start)
    blocks = [] if head == 0 else [_Block(0, head, 0, mask[:head, : tree.past + head] if tree.past else None)]
    for start, end in zip(cuts, [*cuts[1:], tree.tokens], strict=True):
        keys = torch.cat((mask[start:end, : tree.past + head], mask[start:end, tree.past + start : tree.past + end]), 1)
        blocks.append(_Block(start, end, head, keys))
    return blocks


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
        self.sizes = [t.tokens for t in trees]
        self.blocks = [_blocks(t, device) for t in trees]
        self.past = past
        self.keep = keep
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, q_nhe: Tensor, k_nke: Tensor, v_nke: Tensor) -> Tensor:
        if self.keep:
            self.kept.append((k_nke, v_nke))
        parts = zip(q_nhe.split(self.sizes), k_nke.split(self.sizes), v_nke.split(self.sizes), strict=True)
        outs = []
        for i, (q, k, v) in enumerate(parts):
            past = self.past[i] if self.past is not None else None
            before = past[layer] if past is not None else None
            for block in self.blocks[i]:
                own = (
                    (k, v)
                    if block.end - block.start == len(q)
                    else (k[block.start : block.end], v[block.start : block.end])
                )
                outs.append(_attend(q[block.start : block.end], *_keys(before, (k, v), own, block.head), block.mask))
        return torch.cat(outs)


def _keys(
    past: tuple[Tensor, Tensor] | None, tree: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], head: int
) -> tuple[Tensor, Tensor]:
    """What a block's queries may see: the past, the tree's head, the block itself."""
    k = [past[0]] if past is not None else []
    v = [past[1]] if past is not None else []
    if head:
        k.append(tree[0][:head])
        v.append(tree[1][:head])
    if not k:
        return own
    return torch.cat((*k, own[0])), torch.cat((*v, own[1]))


def _attend(q_qhe: Tensor, k_tke: Tensor, v_tke: Tensor, mask_qt: Tensor | None) -> Tensor:
    repeats = q_qhe.shape[1] // k_tke.shape[1]
    if repeats > 1:
        k_tke, v_tke = k_tke.repeat_interleave(repeats, dim=1), v_tke.repeat_interleave(repeats, dim=1)
    out = F.scaled_dot_product_attention(
        q_qhe.transpose(0, 1)[None],
        k_tke.transpose(0, 1)[None],
        v_tke.transpose(0, 1)[None],
        attn_mask=mask_qt,
        is_causal=mask_qt is None,
    )
    return out[0].transpose(0, 1)
