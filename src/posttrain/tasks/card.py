"""What a person should know about a domain before they train on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BaseRate:
    """How often an untrained model passes, measured with the domain's own prompt.

    greedy: share of n items right at temperature 0. pass_at_1: mean over items and samples at temperature 1.
    pass_at_k: share of the items that at least one of k samples solves. prompt_tokens, answer_tokens: means (all
    policy turns of an attempt together).
    """

    model: str
    greedy: float
    pass_at_1: float
    pass_at_k: float
    k: int
    n: int
    prompt_tokens: float
    answer_tokens: float


@dataclass(frozen=True, slots=True)
class Card:
    """A domain in words. right: what counts as right. cheats: known ways to score without the skill.

    splits: split -> {"share": expected fraction of the items, "tasks": how many there are, None where they are drawn}.
    """

    name: str
    family: str
    version: str
    licence: str
    verifier: str
    environment: str
    splits: Mapping[str, Mapping[str, float | int | None]]
    description: str = ""
    right: str = ""
    cheats: tuple[str, ...] = ()
    base: tuple[BaseRate, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
