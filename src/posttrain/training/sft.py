"""Supervised fine-tuning: the mean negative log-likelihood of the tokens that a demonstration shows.

Only tokens the policy should produce carry loss; the prompt and what an environment wrote do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from posttrain.records import HeldOutLeak, Producer, Split
from posttrain.training.packing import Family, Member


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A solved task. segments: (producer, token ids) behind the prompt, in order; only POLICY segments are learnt."""

    domain: str
    split: Split
    prompt: tuple[int, ...]
    segments: tuple[tuple[Producer, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class SFT:
    """Cross-entropy, averaged over the policy tokens of the batch."""

    def families(self, demonstrations: Sequence[Demonstration]) -> list[Family]:
        """Raises `HeldOutLeak` for a demonstration of a held-out task, ValueError when there is nothing to learn."""
        total = sum(len(ids) for d in demonstrations for producer, ids in d.segments if producer is Producer.POLICY)
        if not total:
            raise ValueError("the demonstrations hold no token to learn: give at least one with an answer")
        families = []
        for demo in demonstrations:
            if demo.split.held_out:
                raise HeldOutLeak(
                    f"a demonstration in {demo.domain} is held out ({demo.split}): train on train tasks only"
                )
            ids: list[int] = []
            weight: list[float] = []
            for producer, segment in demo.segments:
                ids.extend(segment)
                weight.extend([1.0 / total if producer is Producer.POLICY else 0.0] * len(segment))
            flat = tuple([0.0] * len(ids))
            families.append(Family(demo.prompt, (Member(tuple(ids), tuple(weight), flat, flat),), demo.domain))
        return families

    def token_loss(self, logprob_m: Tensor, sampled_logprob_m: Tensor, advantage_m: Tensor) -> Tensor:
        """[M] negative log-likelihood of each token."""
        return -logprob_m
