"""What an evaluation found: one row an item, and the scores of each domain made from them.

Invariants: an item whose verdict could not be reached is `score=None`; it is counted and takes no part in any mean. The
scores are always made from the items, also when read from a file, so that a file can not claim what its items do not
show.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from posttrain.evaluation.statistics import Interval, macro_interval, wilson
from posttrain.records import Scored

FORMAT_VERSION = 1
PASS_MARK = 0.5  # a success may cost a little (attempts, length), so the mark stands well below 1


def passed(reward: Scored, pass_mark: float = PASS_MARK) -> bool:
    """Whether a verdict counts as right in an accuracy: no failure named, and a value of at least `pass_mark`."""
    return reward.failure is None and reward.value >= pass_mark


@dataclass(frozen=True, slots=True)
class ItemResult:
    """One evaluated task. score: the reward, None where there was no verdict (`failure` then holds the reason).

    failure: for a task not passed, why (a word of `records.Failure`). answer: what the policy said. seconds: wall
    clock.
    """

    task_id: str
    domain: str
    score: float | None
    passed: bool
    failure: str | None = None
    answer: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.score is not None and not math.isfinite(self.score):
            raise ValueError(
                f"{self.task_id}: score {self.score!r} is not finite; use None for an item without a verdict"
            )
        if self.score is None and self.passed:
            raise ValueError(f"{self.task_id}: an item without a verdict can not have passed")

    @property
    def valid(self) -> bool:
        return self.score is not None


@dataclass(frozen=True, slots=True)
class DomainScore:
    """A domain's held-out accuracy. n: items with a verdict; accuracy, low, high (0 to 1) and mean_reward are None
    where n is 0."""

    domain: str
    n: int
    invalid: int
    accuracy: float | None
    low: float | None
    high: float | None
    mean_reward: float | None


@dataclass(frozen=True, slots=True)
class EvalResult:
    """An evaluation of one policy version on one set of tasks.

    by_domain: sorted by name. macro: mean over domains of their accuracy, None where no item has a verdict.
    """

    items: tuple[ItemResult, ...]
    confidence: float = 0.95
    policy_version: int = 0
    by_domain: Mapping[str, DomainScore] = field(init=False)
    macro: Interval | None = field(init=False)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for item in self.items:
            if item.task_id in seen:
                raise ValueError(f"{item.task_id} is evaluated twice: an evaluation holds each task once")
            seen.add(item.task_id)
        domains: dict[str, list[ItemResult]] = {}
        for item in self.items:
            domains.setdefault(item.domain, []).append(item)
        outcomes = {d: [float(i.passed) for i in rows if i.valid] for d, rows in domains.items()}
        measured = {d: values for d, values in outcomes.items() if values}
        object.__setattr__(self, "by_domain", {d: _score(d, domains[d], self.confidence) for d in sorted(domains)})
        object.__setattr__(self, "macro", macro_interval(measured, self.confidence) if measured else None)

    @property
    def invalid(self) -> int:
        return sum(not i.valid for i in self.items)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON (no NaN); `by_domain` and `macro` are there for readers and ignored by `from_json`."""
        return {
            "format_version": FORMAT_VERSION,
            "confidence": self.confidence,
            "policy_version": self.policy_version,
            "macro": self.macro.to_json() if self.macro else None,
            "by_domain": {d: asdict(s) for d, s in self.by_domain.items()},
            "items": [asdict(i) for i in self.items],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> EvalResult:
        if value.get("format_version") != FORMAT_VERSION:
            found = f"evaluation format {value.get('format_version')!r}"
            raise ValueError(f"{found}: this version of posttrain reads {FORMAT_VERSION}; upgrade posttrain")
        items = tuple(ItemResult(**row) for row in value["items"])
        return cls(items, confidence=value["confidence"], policy_version=value["policy_version"])


def _score(domain: str, rows: Iterable[ItemResult], confidence: float) -> DomainScore:
    rows = list(rows)
    scores = [i.score for i in rows if i.score is not None]
    if not scores:
        return DomainScore(domain, 0, len(rows), None, None, None, None)
    accuracy = wilson(sum(i.passed for i in rows), len(scores), confidence)
    return DomainScore(
        domain,
        len(scores),
        len(rows) - len(scores),
        accuracy.value,
        accuracy.low,
        accuracy.high,
        math.fsum(scores) / len(scores),
    )
