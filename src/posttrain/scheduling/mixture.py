"""Which domain the next groups come from: more of what can be learned now, of everything something.

Data flow: groups that ended --observe--> state --shares--> the wanted mixture --allocate--> whole groups, and the
state that remembers what each domain is still owed. Pure: no clock, no chance, no I/O; the same events give the same
decisions.

A group carries a gradient as far as its rewards differ, so a domain's weight is its learnability, p(1-p) of its pass
rate (arXiv 2502.12272; 2504.03380 bounds the expected improvement by it), or the variance that was measured inside
its groups. The two differ where half of a domain is always solved and half never: p(1-p) is then high and nothing can
be learned.

Invariants: shares sum to 1 and lie within their bounds; with constant shares no domain is ever a whole group ahead of
or behind its share; a domain with a share above zero is served again and again; names in another order change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from posttrain.records import Group

# Before any evidence: a pass rate may be anything (Beta(1, 1), two groups' worth), whose mean p(1-p) is 1/6.
_PRIOR_GROUPS = 2.0
_PRIOR_VARIANCE = 1 / 6
# A domain without signal still takes what the others' ceilings leave over; small enough to count for nothing else.
_LEAST_WEIGHT = 1e-6
_ROUNDING = 1e-9

Signal = Literal["learnability", "variance", "uniform"]


@dataclass(frozen=True, slots=True)
class MixturePolicy:
    """How shares follow from what was observed.

    signal: the weight of a domain, see above; `uniform` shares equally. floor, ceiling: bounds of every domain's
    share; a ceiling below an equal share means an equal share. bounds: (floor, ceiling) of single domains, taken as
    they are.
    """

    signal: Signal = "learnability"
    floor: float = 0.04
    ceiling: float = 0.5
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def bounds_of(self, domain: str, domains: int) -> tuple[float, float]:
        """(floor, ceiling) of `domain` among `domains` of them. ValueError where they are no bounds of a share."""
        low, high = self.bounds.get(domain, (self.floor, max(self.ceiling, 1 / domains)))
        if not 0 <= low <= high <= 1:
            raise ValueError(f"share of {domain}: not 0 <= floor ({low:g}) <= ceiling ({high:g}) <= 1")
        return low, high


@dataclass(frozen=True, slots=True)
class DomainState:
    """What is known of a domain: sums over its groups, older ones counting less, and the groups it is owed.

    groups: their (faded) number; passed: of their mean rewards; variance: of the reward variances inside them.
    """

    groups: float = 0.0
    passed: float = 0.0
    variance: float = 0.0
    owed: float = 0.0

    @property
    def pass_rate(self) -> float:
        """Mean of the posterior Beta(1 + passed, 1 + failed)."""
        return (self.passed + _PRIOR_GROUPS / 2) / (self.groups + _PRIOR_GROUPS)

    @property
    def learnability(self) -> float:
        """E[p(1-p)] under the posterior Beta(a, b): ab / ((a+b)(a+b+1)). Above 0, however one-sided the evidence."""
        a, b = self.passed + 1, self.groups - self.passed + 1
        return a * b / ((a + b) * (a + b + 1))

    @property
    def measured_variance(self) -> float:
        """Mean variance of the rewards inside a group, with the prior's weight."""
        return (self.variance + _PRIOR_GROUPS * _PRIOR_VARIANCE) / (self.groups + _PRIOR_GROUPS)


@dataclass(frozen=True, slots=True)
class MixtureState:
    """What the scheduler remembers, by domain; names are kept in order, so that equal states are equal."""

    domains: Mapping[str, DomainState]

    def __post_init__(self) -> None:
        if not self.domains:
            raise ValueError("a mixture without domains: name at least one")
        object.__setattr__(self, "domains", dict(sorted(self.domains.items())))

    @classmethod
    def start(cls, domains: Iterable[str]) -> MixtureState:
        """Nothing known, nobody owed anything."""
        return cls({domain: DomainState() for domain in domains})

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"groups": d.groups, "passed": d.passed, "variance": d.variance, "owed": d.owed}
            for name, d in self.domains.items()
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, float]]) -> MixtureState:
        return cls({name: DomainState(**known) for name, known in value.items()})


def observe(
    state: MixtureState, domain: str, group_mean: float, variance: float, *, memory_groups: float = 50.0
) -> MixtureState:
    """The state after one more group of `domain`.

    group_mean: mean reward of its scored attempts; values outside 0 to 1 (a bonus, a cost) count as 0 or 1. variance:
    of the rewards inside it, >= 0. memory_groups: how many groups are remembered: the weight of a group falls to 1/e
    as that many newer ones of its domain come in.
    """
    if domain not in state.domains:
        raise ValueError(f"domain {domain!r} is not in the mixture of {', '.join(state.domains)}")
    if not (math.isfinite(group_mean) and math.isfinite(variance) and variance >= 0 and memory_groups >= 1):
        raise ValueError(f"{domain}: no group has mean {group_mean}, variance {variance}, memory {memory_groups}")
    known = state.domains[domain]
    fade = 1 - 1 / memory_groups
    newer = replace(
        known,
        groups=known.groups * fade + 1,
        passed=known.passed * fade + min(1.0, max(0.0, group_mean)),
        variance=known.variance * fade + variance,
    )
    return MixtureState({**state.domains, domain: newer})


def observe_group(state: MixtureState, group: Group, *, memory_groups: float = 50.0) -> MixtureState:
    """`observe` with a group's own mean and unbiased variance; one with less than two verdicts says nothing."""
    values = [value for _, value in group.scored]
    if len(values) < 2:
        return state
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return observe(state, group.task.domain, mean, variance, memory_groups=memory_groups)


def shares(state: MixtureState, policy: MixturePolicy) -> dict[str, float]:
    """The wanted share of each domain; they sum to 1. ValueError, with the mend, where the bounds leave no room for
    that."""
    n = len(state.domains)
    weights = {name: _weight(known, policy.signal) for name, known in state.domains.items()}
    bounds = {name: policy.bounds_of(name, n) for name in state.domains}
    return bounded_shares(weights, bounds)


def allocate(state: MixtureState, policy: MixturePolicy, groups: int) -> tuple[dict[str, int], MixtureState]:
    """How many of the next `groups` groups each domain gets, and the state that remembers what it is owed.

    Deficit round robin with deadlines: before each group every domain is owed its share more; of those that are owed
    anything, the one that would be a whole group behind soonest is served (a tie goes to the first name). Serving
    whoever is owed most looks simpler, but with many domains lets one fall more than a group behind;
    deadlines do not (the quota method; Still 1979, Tijdeman 1980).
    """
    if groups < 0:
        raise ValueError(f"{groups} groups: a step has none or more")
    wanted = shares(state, policy)
    owed = {name: known.owed for name, known in state.domains.items()}
    counts = dict.fromkeys(owed, 0)
    for _ in range(groups):
        for name, share in wanted.items():
            owed[name] += share
        chosen = min(owed, key=lambda name: (_deadline(owed[name], wanted[name]), -owed[name]))
        owed[chosen] -= 1
        counts[chosen] += 1
    return counts, MixtureState({name: replace(d, owed=owed[name]) for name, d in state.domains.items()})


def bounded_shares(weights: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Shares in proportion to `weights` (>= 0) as far as (floor, ceiling) of each lets them; they sum to 1.

    They are clip(level * weight, floor, ceiling) for the one level at which they sum to 1: water that fills vessels of
    different widths. ValueError where the floors sum to more than 1 or the ceilings to less.
    """
    names = sorted(weights)
    floors, ceilings = math.fsum(bounds[n][0] for n in names), math.fsum(bounds[n][1] for n in names)
    if floors > 1 + _ROUNDING:
        raise ValueError(f"the floors of {len(names)} domains sum to {floors:g}: at most {1 / len(names):.4g} each")
    if ceilings < 1 - _ROUNDING:
        raise ValueError(
            f"the ceilings of {len(names)} domains sum to {ceilings:g}: at least {1 / len(names):.4g} each"
        )
    most = max(weights.values()) or 1.0
    relative = {n: max(weights[n] / most, _LEAST_WEIGHT) for n in names}

    def at(level: float) -> dict[str, float]:
        return {n: min(max(level * relative[n], bounds[n][0]), bounds[n][1]) for n in names}

    # The sum grows with the level without a jump. Halving an interval meets 1 to the last bit whatever the weights;
    # solving between the corners of the sum does not, where rounding puts two corners in one place.
    below, above = 0.0, max(bounds[n][1] / relative[n] for n in names)
    for _ in range(100):
        level = (below + above) / 2
        if math.fsum(at(level).values()) < 1:
            below = level
        else:
            above = level
    return at(above)


def _weight(known: DomainState, signal: Signal) -> float:
    if signal == "uniform":
        return 1.0
    return known.learnability if signal == "learnability" else known.measured_variance


def _deadline(owed: float, share: float) -> float:
    """In how many more groups a domain will be a whole group behind; never, where it is owed nothing."""
    return (1 - owed) / share if share > 0 and owed > _ROUNDING else math.inf
