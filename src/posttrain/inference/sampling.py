"""Drawing one token for each row, exactly and reproducibly.

Each attempt brings its own seed, and the uniform number behind its t-th token depends on (seed, t) alone: not on which
other attempts share the batch. The draw is by inverse distribution function (a search in the running sum of the
probabilities), which is exact and cheap where `torch.multinomial` over 49k entries takes a quarter of all generation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from posttrain.records import StopReason


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """Continuations of one context.

    prefix: token ids that all attempts share; branches: what each attempt has behind it so far ([] at the first turn);
    seeds: one for each attempt. temperature 0 is greedy. stop: strings that end a turn; they stay in the tokens.
    """

    prefix: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    seeds: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.prefix:
            raise ValueError("an empty prompt: give at least one token to continue from")
        if len(self.branches) != len(self.seeds) or not self.seeds:
            raise ValueError(f"{len(self.branches)} branches with {len(self.seeds)} seeds: one seed for each attempt")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {self.max_new_tokens}: give a whole number >= 1")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}: give 0 (greedy) or a positive number")


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation. logprobs: natural log, of the distribution that was sampled (at temperature 0: of temperature
    1)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: StopReason
    policy_version: int
    text: str


class Sampler(Protocol):
    """Where tokens come from: the embedded engine here, a server elsewhere."""

    def sample(self, requests: list[SampleRequest]) -> list[list[Sample]]:
        """For each request one sample for each branch, in order."""
        ...


def uniforms(seed: int, start: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """[count] numbers in [0, 1): those behind tokens start, start + 1, ... of the attempt with this seed."""
    generator = np.random.Generator(np.random.Philox(key=seed % 2**64))
    # below 1 - 2^-24, or the cast to float32 could reach 1.0 and point past the last token
    return np.minimum(generator.random(start + count)[start:], 1 - 2.0**-24)


def draw(logits_bv: Tensor, uniform_b: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(token [B], its log-probability [B]). uniform_b: [B] in [0, 1); ignored at temperature 0, which takes the
    largest logit."""
    if temperature == 0.0:
        token_b = logits_bv.argmax(-1)
        return token_b, logits_bv.log_softmax(-1).gather(1, token_b[:, None])[:, 0]
    probability_bv = (logits_bv if temperature == 1.0 else logits_bv / temperature).softmax(-1)
    running_bv = probability_bv.cumsum(-1)
    # scaled by the last entry, since float32 sums end near 1, not at it
    point_b1 = uniform_b.to(running_bv.dtype)[:, None] * running_bv[:, -1:]
    token_b = torch.searchsorted(running_bv, point_b1, right=True)[:, 0].clamp_(max=logits_bv.shape[1] - 1)
    return token_b, probability_bv.gather(1, token_b[:, None])[:, 0].log()
