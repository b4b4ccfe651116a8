"""Whether a candidate may replace the champion. Pure: no clock, no files, no randomness.

The rules, in this order; `change` is the candidate's accuracy minus the champion's, macro over the domains of a role:

1. The measurement must stand, or the verdict is *inconclusive*: retention was measured; every number is finite; each
   role has at least `min_pairs` valid pairs and none of its domains is without one; at most `max_invalid_share` of its
   tasks have no verdict.
2. *Refuse* where harm or failure is sure: training `high <= min_gain` (surely not the gain asked for); retention
   `high < 0` (surely lower: "lower beyond its interval"); or one retention domain with `high < -max_retention_drop`
   (a mean must not hide a collapse).
3. *Inconclusive* where it is not sure either way: training `low <= min_gain`; or the retention estimate is below
   `-max_retention_drop` although its interval still reaches 0: more tasks would tell.
4. Otherwise *promote*: the gain is sure, and retention is not lower beyond its interval nor by more than the tolerance.

Invariants: a NaN never promotes. Lowering any score of the candidate never turns another verdict into promote: every
condition is a comparison with an end of an interval, and the ends are monotone (see `statistics`). A task that loses
its verdict is not evidence of anything, which is why rule 1 bounds their share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.evaluation.compare import Comparison, RoleChange
from posttrain.evaluation.statistics import Interval

Verdict = Literal["promote", "refuse", "inconclusive"]


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """What a candidate must show. Accuracies and shares are fractions, 0 to 1.

    max_retention_drop: 0.10 is about two standard errors of a retention set of 60 tasks of which every fifth changes by
    chance; a larger set deserves a smaller one. min_pairs: valid pairs over all domains of a role.
    """

    min_gain: float = 0.0
    max_retention_drop: float = 0.10
    confidence: float = 0.95
    min_pairs: int = 30
    max_invalid_share: float = 0.05

    def __post_init__(self) -> None:
        for name, low, high in (
            ("min_gain", 0.0, 1.0),
            ("max_retention_drop", 0.0, 1.0),
            ("max_invalid_share", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) < high:
                raise ValueError(f"{name} is {getattr(self, name)!r}: it must be at least {low} and below {high}")
        if not 0.5 <= self.confidence < 1:
            raise ValueError(f"confidence {self.confidence!r} must be at least 0.5 and below 1, for example 0.95")
        if self.min_pairs < 1:
            raise ValueError(f"min_pairs is {self.min_pairs!r}: it must be at least 1")


@dataclass(frozen=True, slots=True)
class Decision:
    """reasons: sentences for a person, those that decided; never empty."""

    verdict: Verdict
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "reasons": list(self.reasons)}


def decide(comparison: Comparison, policy: GatePolicy) -> Decision:
    """The verdict on a candidate. Raises ValueError where the intervals have another confidence than the policy."""
    if comparison.confidence != policy.confidence:
        both = f"the comparison has confidence {comparison.confidence}, the gate asks for {policy.confidence}"
        raise ValueError(f"{both}: compare again")
    if doubts := _doubts(comparison, policy):
        return Decision("inconclusive", tuple(doubts))
    assert (
        comparison.retention is not None
        and comparison.retention.change is not None
        and comparison.training.change is not None
    )
    gain, kept = comparison.training.change, comparison.retention.change
    limit = _points(policy.max_retention_drop)
    refusals = []
    if not gain.high > policy.min_gain:
        refusals.append(f"training {_words(gain)}: surely not a gain of more than {_points(policy.min_gain)}")
    if kept.high < 0:
        refusals.append(f"retention {_words(kept)}: surely lower")
    for name in comparison.retention.domains:
        change = comparison.domains[name].change
        assert change is not None  # rule 1 looked at every domain
        if change.high < -policy.max_retention_drop:
            refusals.append(f"retention domain {name} {_words(change)}: surely lower by more than {limit}")
    if refusals:
        return Decision("refuse", tuple(refusals))
    unsure = []
    if not gain.low > policy.min_gain:
        unsure.append(f"training {_words(gain)}: not surely a gain of more than {_points(policy.min_gain)}")
    if not kept.value >= -policy.max_retention_drop:
        unsure.append(f"retention {_words(kept)}: lower by more than {limit}, but not surely; evaluate more tasks")
    if unsure:
        return Decision("inconclusive", tuple(unsure))
    return Decision(
        "promote",
        (f"training {_words(gain)}: surely improved", f"retention {_words(kept)}: not lower beyond its interval"),
    )


def _doubts(comparison: Comparison, policy: GatePolicy) -> list[str]:
    """Rule 1: why the measurement can not carry a verdict."""
    if comparison.retention is None:
        return ["retention was not measured: name at least one retention domain"]
    doubts = []
    for name, role in (("training", comparison.training), ("retention", comparison.retention)):
        doubts += _role_doubts(name, role, policy)
        for domain in role.domains:
            change = comparison.domains[domain].change
            if change is not None and not change.finite:
                doubts.append(f"{name} domain {domain} has a number that is not finite")
    return doubts


def _role_doubts(name: str, role: RoleChange, policy: GatePolicy) -> list[str]:
    doubts = []
    if role.unmeasured:
        doubts.append(f"{name} domain {role.unmeasured[0]} has no task with a verdict on both sides")
    if role.n < policy.min_pairs:
        doubts.append(
            f"{name} has {role.n} valid pairs, fewer than the {policy.min_pairs} asked for: evaluate more tasks"
        )
    if not role.invalid_share <= policy.max_invalid_share:
        doubts.append(
            f"{role.total - role.n} of {role.total} {name} tasks have no verdict on one side "
            f"({role.invalid_share:.0%}, limit {policy.max_invalid_share:.0%}; {role.invalid_after_only} only after): "
            "mend the verifier or the sandbox and evaluate again"
        )
    numbers = (role.before, role.after)
    if role.change is None or not role.change.finite or not all(x is not None and math.isfinite(x) for x in numbers):
        doubts.append(f"the change of {name} is not a finite number")
    return doubts


def _points(share: float) -> str:
    return f"{100 * share:.1f} points"


def _words(change: Interval) -> str:
    return f"{100 * change.value:+.1f} points [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
