"""Slows learning down before a policy collapses. Pure: what a step measured in, the learning rate's scale out.

Two early signs, from the runs behind the quickstart recipe: few groups are mixed (the policy always says the same, so
what gradient is left is noise), and the negative log-likelihood per token is near zero (it has become sure of
itself). Either halves the rate. Steps that follow a halving are waited out, since the sign takes some to go away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """When to halve: fewer than `min_mixed_share` of the groups mixed for `patience_steps` steps in a row, or a mean
    negative log-likelihood below `min_nll` nats a token. Never below `min_scale`: less than that is not learning, and a
    run that still collapses needs a person. After a halving `patience_steps` steps pass before the next."""

    min_mixed_share: float = 0.25
    min_nll: float = 0.1
    patience_steps: int = 3
    min_scale: float = 1 / 16

    def __post_init__(self) -> None:
        if not (0 <= self.min_mixed_share <= 1 and self.min_nll >= 0 and self.patience_steps >= 1):
            raise ValueError(
                f"guard: min_mixed_share {self.min_mixed_share} is 0 to 1, min_nll {self.min_nll} is 0 or more, "
                f"patience_steps {self.patience_steps} is 1 or more"
            )
        if not 0 < self.min_scale <= 1:
            raise ValueError(f"guard: min_scale {self.min_scale} is above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class GuardState:
    """rate_scale: what the learning rate is multiplied with. low_steps: steps in a row with few mixed groups.
    waiting_steps: steps that still pass before the next halving."""

    rate_scale: float = 1.0
    low_steps: int = 0
    waiting_steps: int = 0

    def to_json(self) -> dict[str, Any]:
        return {"rate_scale": self.rate_scale, "low_steps": self.low_steps, "waiting_steps": self.waiting_steps}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> GuardState:
        return cls(**value)


class Verdict(NamedTuple):
    """state: for the next step. rate_scale: of the learning rate from now on. reason: why it was halved, if it was."""

    state: GuardState
    rate_scale: float
    reason: str | None


def observe(state: GuardState, mixed_share: float, nll: float | None, policy: GuardPolicy | None = None) -> Verdict:
    """What follows from a step.

    mixed_share: share of its groups whose scored attempts differ, 0 to 1. nll: mean negative log-likelihood of the
    sampled tokens in nats, None where nothing was sampled. ValueError for figures that are none.
    """
    policy = policy or GuardPolicy()
    if not 0 <= mixed_share <= 1 or (nll is not None and not math.isfinite(nll)):
        raise ValueError(f"guard: mixed share {mixed_share} (0 to 1) or log-likelihood {nll} is not a measurement")
    low_steps = state.low_steps + 1 if mixed_share < policy.min_mixed_share else 0
    if state.waiting_steps:
        waiting = GuardState(state.rate_scale, low_steps, state.waiting_steps - 1)
        return Verdict(waiting, state.rate_scale, None)
    reason = None
    if nll is not None and nll < policy.min_nll:
        reason = f"{nll:.3f} nats a token is below {policy.min_nll:g}"
    elif low_steps >= policy.patience_steps:
        reason = f"under {policy.min_mixed_share:.0%} of the groups were mixed for {low_steps} steps"
    scale = max(policy.min_scale, state.rate_scale / 2)
    if reason is None or scale == state.rate_scale:
        return Verdict(GuardState(state.rate_scale, low_steps), state.rate_scale, None)
    halved = GuardState(scale, 0, policy.patience_steps)
    return Verdict(halved, scale, f"learning rate halved to {scale:g} of the recipe's: {reason}")
