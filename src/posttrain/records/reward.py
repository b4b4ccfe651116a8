"""What an attempt is worth: `Scored` or `Invalid`, never a silent zero.

Invariant: a fault of the infrastructure (sandbox died, verifier raised, hung or returned NaN) is `Invalid`; what the
policy did wrong is `Scored` with a low value. An `Invalid` attempt takes no part in its group's statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any


@dataclass(frozen=True, slots=True)
class Scored:
    """A verdict. value: finite, usually 0 to 1. parts: named components (`outcome`, `process`, `compliance`, ...).

    failure: for a value below full marks, why, in one of the words of `Failure`; None where it succeeded.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _finite("value", self.value))
        object.__setattr__(self, "parts", {name: _finite(name, part) for name, part in self.parts.items()})


@dataclass(frozen=True, slots=True)
class Invalid:
    """No verdict could be reached. reason: one line for a person; it is counted and shown."""

    reason: str


def _finite(name: str, number: Any) -> float:
    """`number` as a float. A bool is refused: a verifier that returns one has not said what it is worth."""
    if not isinstance(number, bool) and isinstance(number, Real):
        try:
            value = float(number)
        except OverflowError:
            value = math.inf
        if math.isfinite(value):
            return value
    raise ValueError(f"reward {name} is {number!r}: a reward is a finite number; return Invalid(reason) for a fault")


Reward = Scored | Invalid


class Failure:
    """Why a scored attempt failed: the words that diagnosis counts."""

    WRONG = "wrong answer"
    NO_ANSWER = "no answer found"
    FORMAT = "format"
    TRUNCATED = "truncated"
    TOOL_ERROR = "tool error"
    ALL = (WRONG, NO_ANSWER, FORMAT, TRUNCATED, TOOL_ERROR)
