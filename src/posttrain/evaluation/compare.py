"""What changed between two evaluations of the same tasks, paired item by item.

    before, after: EvalResult ──► pairs by task id ──► change of each domain ──► change of each role

Invariants: both evaluations hold exactly the same tasks, or it is an error. A task without a verdict on either side
leaves the pairs of both and is counted; every number here, also `before`, is of the pairs alone. A domain without any
pair is named in `unmeasured` and never silently left out of a mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Literal

from posttrain.evaluation.results import EvalResult, ItemResult
from posttrain.evaluation.statistics import Interval, macro_difference, paired_difference, wilson

Role = Literal["training", "retention", "other"]
Pair = tuple[ItemResult, ItemResult]


@dataclass(frozen=True, slots=True)
class DomainChange:
    """Accuracy (0 to 1) of one domain before and after, over its `n` valid pairs of `total` tasks; None where n is 0.

    invalid_before, invalid_after: tasks without a verdict on that side. rewards: the mean graded reward, for
    information.
    """

    domain: str
    role: Role
    n: int
    total: int
    invalid_before: int
    invalid_after: int
    before: Interval | None
    after: Interval | None
    change: Interval | None
    reward_before: float | None
    reward_after: float | None

    def to_json(self) -> dict[str, Any]:
        """The row of `domains` in summary.json."""
        return {
            "role": self.role,
            "before": self.before.value if self.before else None,
            "after": self.after.value if self.after else None,
            "n": self.n,
            "total": self.total,
            "invalid": self.total - self.n,
            "interval_before": _ends(self.before),
            "interval_after": _ends(self.after),
            "interval_change": _ends(self.change),
            "p_value": self.change.p_value if self.change else None,
            "reward_before": self.reward_before,
            "reward_after": self.reward_after,
        }


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Macro accuracy over the domains of a role. n: valid pairs of `total` tasks. unmeasured: its domains without a
    pair.

    invalid_after_only: tasks that had a verdict before and none after: what the candidate may have broken.
    """

    domains: tuple[str, ...]
    n: int
    total: int
    invalid_after_only: int
    unmeasured: tuple[str, ...]
    before: float | None
    after: float | None
    change: Interval | None

    @property
    def invalid_share(self) -> float:
        return (self.total - self.n) / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        """The value of `training` or `retention` in summary.json; `interval` is of the change."""
        return {
            "before": self.before,
            "after": self.after,
            "n": self.n,
            "total": self.total,
            "invalid": self.total - self.n,
            "interval": _ends(self.change),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """domains: sorted by name. retention: None where no domain has that role."""

    domains: Mapping[str, DomainChange]
    training: RoleChange
    retention: RoleChange | None
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """The keys `training`, `retention`, `domains` and `confidence` of summary.json."""
        return {
            "training": self.training.to_json(),
            "retention": self.retention.to_json() if self.retention else None,
            "domains": {name: d.to_json() for name, d in self.domains.items()},
            "confidence": self.confidence,
        }


def compare(
    before: EvalResult,
    after: EvalResult,
    training: Set[str],
    retention: Set[str],
    confidence: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """The paired changes in accuracy. training, retention: names of domains; a domain in neither is reported and
    decides nothing.

    Raises ValueError where the two hold different tasks, or a named domain is in neither evaluation.
    """
    pairs = _pair(before, after)
    _check_roles(set(pairs), training, retention)
    roles: dict[str, Role] = {
        d: "training" if d in training else "retention" if d in retention else "other" for d in sorted(pairs)
    }
    domains = {d: _domain_change(d, roles[d], pairs[d], confidence, seed) for d in roles}
    return Comparison(
        domains,
        _role_change(sorted(training), pairs, confidence, seed),
        _role_change(sorted(retention), pairs, confidence, seed) if retention else None,
        confidence,
    )


def _pair(before: EvalResult, after: EvalResult) -> dict[str, list[Pair]]:
    """Domain -> pairs, sorted by task id, so that the order of evaluation changes nothing."""
    old, new = {i.task_id: i for i in before.items}, {i.task_id: i for i in after.items}
    gone, added = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    if gone or added:
        example = (gone or added)[0]
        raise ValueError(
            f"{len(gone)} tasks only before and {len(added)} only after (first: {example}): "
            "evaluate both on the same tasks"
        )
    pairs: dict[str, list[Pair]] = {}
    for task_id in sorted(old):
        if old[task_id].domain != new[task_id].domain:
            names = f"{old[task_id].domain} before and {new[task_id].domain} after"
            raise ValueError(f"{task_id} is of domain {names}: a task has one domain")
        pairs.setdefault(old[task_id].domain, []).append((old[task_id], new[task_id]))
    return pairs


def _check_roles(present: Set[str], training: Set[str], retention: Set[str]) -> None:
    if not training:
        raise ValueError("no training domain is named: a comparison needs at least one")
    if both := sorted(training & retention):
        raise ValueError(f"{both[0]} is both a training and a retention domain: give it one role")
    if absent := sorted((training | retention) - present):
        raise ValueError(
            f"domain {absent[0]} has no evaluated task; evaluated are: {', '.join(sorted(present)) or 'none'}"
        )


def _valid(pairs: list[Pair]) -> list[Pair]:
    return [(a, b) for a, b in pairs if a.valid and b.valid]


def _outcomes(pairs: list[Pair]) -> tuple[list[float], list[float]]:
    return [float(a.passed) for a, _ in pairs], [float(b.passed) for _, b in pairs]


def _domain_change(domain: str, role: Role, pairs: list[Pair], confidence: float, seed: int) -> DomainChange:
    valid = _valid(pairs)
    n, old_invalid, new_invalid = len(valid), sum(not a.valid for a, _ in pairs), sum(not b.valid for _, b in pairs)
    if not n:
        return DomainChange(domain, role, 0, len(pairs), old_invalid, new_invalid, None, None, None, None, None)
    old, new = _outcomes(valid)
    rewards = [sum(i.score or 0.0 for i in side) / n for side in zip(*valid, strict=True)]
    return DomainChange(
        domain,
        role,
        n,
        len(pairs),
        old_invalid,
        new_invalid,
        wilson(sum(old), n, confidence),
        wilson(sum(new), n, confidence),
        paired_difference(old, new, confidence, seed),
        rewards[0],
        rewards[1],
    )


def _role_change(domains: list[str], pairs: Mapping[str, list[Pair]], confidence: float, seed: int) -> RoleChange:
    outcomes = {d: _outcomes(valid) for d in domains if (valid := _valid(pairs[d]))}
    every = [p for d in domains for p in pairs[d]]
    n = sum(len(old) for old, _ in outcomes.values())
    lost = sum(a.valid and not b.valid for a, b in every)
    unmeasured = tuple(d for d in domains if d not in outcomes)
    if not outcomes:
        return RoleChange(tuple(domains), 0, len(every), lost, unmeasured, None, None, None)
    change = macro_difference(outcomes, confidence, seed)
    before, after = (sum(sum(o[side]) / len(o[side]) for o in outcomes.values()) / len(outcomes) for side in (0, 1))
    return RoleChange(tuple(domains), n, len(every), lost, unmeasured, before, after, change)


def _ends(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None
