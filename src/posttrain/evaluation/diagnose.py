"""What the policy can not do yet, from sampled groups: which domains are worth training now, and why attempts fail.

Invariants: pure. An invalid attempt takes no part in any rate; it is counted with its own number. A domain that was
asked for and has too few verdicts is "unmeasured", never "at zero".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from posttrain.evaluation.results import PASS_MARK, passed
from posttrain.records import Failure, Group, Scored

LEARNABLE = "learnable now"
AT_ZERO = "at zero: needs demonstrations"
SATURATED = "saturated"
UNMEASURED = "unmeasured"
FORMAT_VERSION = 1
HEADER = ("domain", "class", "pass rate", "mean reward", "variance", "mixed groups", "invalid", "why attempts fail")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Where the classes begin, as fractions of attempts or groups.

    at_zero: a mean reward up to this is out of reach of sampling: a group of 8 then holds a success in a third of the
        cases at best. saturated: a pass rate from here on leaves nothing to gain. min_mixed_share: with fewer mixed
        groups there is no gradient, whatever the mean. min_attempts: verdicts below which a rate says nothing.
    """

    at_zero: float = 0.05
    saturated: float = 0.95
    min_mixed_share: float = 0.05
    min_attempts: int = 16
    pass_mark: float = PASS_MARK

    def __post_init__(self) -> None:
        if not 0 <= self.at_zero < self.saturated <= 1:
            raise ValueError(f"at_zero {self.at_zero} must be below saturated {self.saturated}, both in [0, 1]")
        if not 0 <= self.min_mixed_share <= 1 or self.min_attempts < 1:
            raise ValueError("min_mixed_share must be in [0, 1] and min_attempts at least 1")


@dataclass(frozen=True, slots=True)
class DomainDiagnosis:
    """One domain. attempts: with a verdict; invalid: without. Rates are None where there is nothing to divide by.

    variance: p(1 - p) of the pass rate. within_variance: mean over groups of the unbiased variance of rewards: what is
        left for a gradient once each task's own difficulty is taken out, also for graded rewards. mixed_share: share of
        the groups with two or more verdicts whose rewards differ. failures: word -> count, most frequent first.
    """

    domain: str
    groups: int
    attempts: int
    invalid: int
    pass_rate: float | None
    mean_reward: float | None
    variance: float | None
    within_variance: float | None
    mixed_share: float | None
    failures: Mapping[str, int]
    invalid_reasons: Mapping[str, int]
    learnable: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """domains: sorted by name."""

    domains: Mapping[str, DomainDiagnosis]
    thresholds: Thresholds = field(default_factory=Thresholds)

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "thresholds": asdict(self.thresholds),
            "domains": {name: asdict(d) for name, d in self.domains.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Diagnosis:
        if value.get("format_version") != FORMAT_VERSION:
            found = f"diagnosis format {value.get('format_version')!r}"
            raise ValueError(f"{found}: this version of posttrain reads {FORMAT_VERSION}; upgrade posttrain")
        domains = {name: DomainDiagnosis(**row) for name, row in value["domains"].items()}
        return cls(domains, Thresholds(**value["thresholds"]))

    def named(self, learnable: str) -> tuple[str, ...]:
        """The domains of a class, for example `named(AT_ZERO)`."""
        return tuple(name for name, d in self.domains.items() if d.learnable == learnable)

    def format_table(self) -> list[tuple[str, ...]]:
        """Rows of text for a terminal, the header first."""
        rows: list[tuple[str, ...]] = [HEADER]
        for d in self.domains.values():
            why = ", ".join(f"{word} {count}" for word, count in d.failures.items()) or "-"
            rates = (_percent(d.pass_rate), _number(d.mean_reward), _number(d.within_variance), _percent(d.mixed_share))
            rows.append((d.domain, d.learnable, *rates, str(d.invalid), why))
        return rows


def diagnose(groups: Sequence[Group], domains: Iterable[str] = (), thresholds: Thresholds | None = None) -> Diagnosis:
    """What sampled groups say about each domain. domains: names that must appear even where no group was sampled."""
    thresholds = thresholds or Thresholds()
    by_domain: dict[str, list[Group]] = {name: [] for name in domains}
    for group in groups:
        by_domain.setdefault(group.task.domain, []).append(group)
    return Diagnosis({name: _diagnose(name, by_domain[name], thresholds) for name in sorted(by_domain)}, thresholds)


def _diagnose(domain: str, groups: Sequence[Group], thresholds: Thresholds) -> DomainDiagnosis:
    verdicts = [r for g in groups for r in g.rewards if isinstance(r, Scored)]
    wrong = [r for r in verdicts if not passed(r, thresholds.pass_mark)]
    comparable = [g for g in groups if len(g.scored) > 1]
    # a verdict below the mark that names no failure says no more than that the answer was not right
    failures = Counter(r.failure or Failure.WRONG for r in wrong)
    reasons = Counter(i.reason for g in groups for i in g.invalid)
    rate = 1 - len(wrong) / len(verdicts) if verdicts else None
    mean = math.fsum(r.value for r in verdicts) / len(verdicts) if verdicts else None
    mixed = sum(g.mixed for g in comparable) / len(comparable) if comparable else None
    within = [_variance([v for _, v in g.scored]) for g in comparable]
    return DomainDiagnosis(
        domain=domain,
        groups=len(groups),
        attempts=len(verdicts),
        invalid=sum(reasons.values()),
        pass_rate=rate,
        mean_reward=mean,
        variance=rate * (1 - rate) if rate is not None else None,
        within_variance=math.fsum(within) / len(within) if within else None,
        mixed_share=mixed,
        failures=_ranked(failures),
        invalid_reasons=_ranked(reasons),
        learnable=_class(len(verdicts), rate, mean, mixed, thresholds),
    )


def _class(attempts: int, rate: float | None, mean: float | None, mixed: float | None, t: Thresholds) -> str:
    if attempts < t.min_attempts or rate is None or mean is None or mixed is None:
        return UNMEASURED
    if rate >= t.saturated:
        return SATURATED
    if mean <= t.at_zero:
        return AT_ZERO
    if mixed < t.min_mixed_share:
        # every task is either always right or never: sampling more of the same teaches nothing
        return SATURATED if rate >= 0.5 else AT_ZERO
    return LEARNABLE


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
