"""How trajectories become the rows that the trainer computes: shared-prefix trees, cut into micro-batches.

The attempts of a group share their prompt, and the prompts of a domain often their beginning, so each is computed once:
[stem, prompt 1, c1, ..., cG, prompt 2, ...] with each attempt seeing its ancestors and itself (Prefix Grouper, arXiv
2506.05433). Gradients equal those of separate rows. Invariant 5: neither the packing
nor the cut into micro-batches changes the gradient, since every tree is attended alone and the loss is a plain sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.inference.attention import ROOT, Tree, common_prefix

MIN_STEM_TOKENS = 16  # below this a shared beginning saves less than its place in a larger mask costs


@dataclass(frozen=True, slots=True)
class Member:
    """One attempt as the trainer sees it: token ids behind the prefix, which of them carry loss, and per-token numbers.

    weight: multiplies this token's loss (0 for tokens that the policy did not produce). advantage: per token.
    sampled_logprob: under the sampler (NaN where not sampled).
    """

    ids: tuple[int, ...]
    weight: tuple[float, ...]
    advantage: tuple[float, ...]
    sampled_logprob: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.weight) == len(self.advantage) == len(self.sampled_logprob):
            raise ValueError(f"a member of {len(self.ids)} tokens needs as many weights, advantages and logprobs")


@dataclass(frozen=True, slots=True)
class Family:
    """Sequences that share `prefix` (token ids, at least one). `domain` labels the per-domain metrics."""

    prefix: tuple[int, ...]
    members: tuple[Member, ...]
    domain: str = ""

    def __post_init__(self) -> None:
        if not self.prefix:
            raise ValueError("a family needs a prefix of at least one token: the first target is predicted from it")

    @property
    def tokens(self) -> int:
        return len(self.prefix) + sum(len(m.ids) for m in self.members)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Flat tensors of a few trees. N tokens in all, M of them are predicted with a weight other than 0.

    ids_n, positions_n: the tokens. source_m: which hidden state predicts the target; targets_m: the token; weight_m,
    advantage_m, sampled_logprob_m: float32. domains: whose tokens these are.
    """

    trees: list[Tree]
    ids_n: Tensor
    positions_n: Tensor
    source_m: Tensor
    targets_m: Tensor
    weight_m: Tensor
    advantage_m: Tensor
    sampled_logprob_m: Tensor
    domains: list[str]


def pack(families: Sequence[Family], micro_batch_tokens: int, device: torch.device) -> Iterator[MicroBatch]:
    """Micro-batches of at most `micro_batch_tokens` tokens. A larger family is cut between its members (the prefix is
    then computed again); a single member that is larger runs alone."""
    pending: list[Family] = []
    size = 0
    # families with a common beginning become neighbours, so that `_stems` finds them
    ordered = sorted(families, key=lambda f: f.prefix)
    for family in (part for f in ordered for part in _cut(f, micro_batch_tokens)):
        if pending and size + family.tokens > micro_batch_tokens:
            yield _flatten(pending, device)
            pending, size = [], 0
        pending.append(family)
        size += family.tokens
    if pending:
        yield _flatten(pending, device)


def _cut(family: Family, limit: int) -> Iterator[Family]:
    members: list[Member] = []
    size = len(family.prefix)
    for member in family.members:
        if members and size + len(member.ids) > limit:
            yield Family(family.prefix, tuple(members), family.domain)
            members, size = [], len(family.prefix)
        members.append(member)
        size += len(member.ids)
    if members:
        yield Family(family.prefix, tuple(members), family.domain)


def _stems(families: Sequence[Family]) -> Iterator[tuple[tuple[int, ...], list[Family]]]:
    """Neighbours whose prefixes begin alike, with what they share: a domain's worked examples are computed once."""
    stem: tuple[int, ...] = ()
    relatives: list[Family] = []
    for family in families:
        shared = common_prefix(stem, family.prefix)
        if relatives and shared < MIN_STEM_TOKENS:
            yield (stem if len(relatives) > 1 else (), relatives)
            relatives = []
        stem = stem[:shared] if relatives else family.prefix
        relatives.append(family)
    if relatives:
        yield (stem if len(relatives) > 1 else (), relatives)


def _flatten(families: Sequence[Family], device: torch.device) -> MicroBatch:
    domains = sorted({f.domain for f in families})
    trees: list[Tree] = []
    ids: list[int] = []
    positions: list[int] = []
    source: list[int] = []
    rows: list[tuple[int, float, float, float]] = []
    for stem, relatives in _stems(families):
        segments = [(len(stem), ROOT)] if stem else []
        at_root = 0 if stem else ROOT
        start = len(ids)
        ids.extend(stem)
        for family in relatives:
            rest = family.prefix[len(stem) :]
            ids.extend(rest)
            last_of_prefix = len(ids) - 1 if rest else start + len(stem) - 1
            parent = len(segments) if rest else at_root
            if rest:
                segments.append((len(rest), at_root))
            for member in family.members:
                segments.append((len(member.ids), parent))
                at = len(ids)
                ids.extend(member.ids)
                for j, weight in enumerate(member.weight):
                    if weight != 0.0:
                        source.append(at + j - 1 if j else last_of_prefix)
                        rows.append((member.ids[j], weight, member.advantage[j], member.sampled_logprob[j]))
        tree = Tree(tuple(segments))
        trees.append(tree)
        positions.extend(tree.positions())

    def column(index: int) -> Tensor:
        return torch.tensor([row[index] for row in rows], dtype=torch.float32, device=device)

    return MicroBatch(
        trees=trees,
        ids_n=torch.tensor(ids, device=device),
        positions_n=torch.tensor(positions, device=device),
        source_m=torch.tensor(source, dtype=torch.long, device=device),
        targets_m=torch.tensor([row[0] for row in rows], dtype=torch.long, device=device),
        weight_m=column(1),
        advantage_m=column(2),
        sampled_logprob_m=column(3),
        domains=domains,
    )
