"""How sure a measured number is: intervals for accuracies, graded rewards and paired changes.

Invariants:
- Deterministic: the same numbers and seed give the same interval, bit for bit, in any order of domains.
- Never falsely certain: no interval has width zero, not even where all items agree.
- Monotone: lowering any `after` value never raises an end of a change's interval. The gate's safety rests on it,
  and it is why the bootstrap is a percentile bootstrap: the ends of a BCa or studentised interval can rise when a gain
  is taken away, because the spread shrinks with it.

Bounded by: values in [0, 1]; time and memory by `RESAMPLES` x items (drawn in blocks of `BLOCK_DRAWS`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000  # the ends of a 95 % interval then vary by about 3 % of a standard error with the seed
BLOCK_DRAWS = 4_000_000  # 32 MB of indices at a time

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the two-sided interval that holds the true value with probability `confidence`.

    method: how it was made, for a reader of the report. p_value: of "no change", where the method has one.
    """

    value: float
    low: float
    high: float
    confidence: float
    method: str
    p_value: float | None = None

    @property
    def finite(self) -> bool:
        return all(math.isfinite(x) for x in (self.value, self.low, self.high))

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Interval:
        return cls(**value)


def wilson(successes: float, n: int, confidence: float = 0.95) -> Interval:
    """Score interval of a proportion (Wilson 1927, JASA 22:209; the form of Newcombe 1998, Stat. Med. 17:857).

    successes: 0 to n; may be a fraction (see `mean_interval`).
    """
    z = _quantile(confidence)
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}: an interval needs n >= 1 and 0 <= successes <= n")
    p = successes / n
    centre = (2 * n * p + z * z) / (2 * (n + z * z))
    half = z * math.sqrt(z * z + 4 * n * p * (1 - p)) / (2 * (n + z * z))
    # at the borders the formula is exact (0 and 1) but for rounding
    low = 0.0 if p == 0 else max(0.0, min(p, centre - half))
    high = 1.0 if p == 1 else min(1.0, max(p, centre + half))
    return Interval(p, low, high, confidence, "wilson")


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Interval of the mean of graded rewards in [0, 1]: Wilson's, with the sum of the values as the successes.

    A variable in [0, 1] with mean m has at most the variance m(1 - m) of a coin with that mean (Bhatia and Davis 2000,
    Am. Math. Monthly 107:353), so for many items the score interval of the coin holds at least as often. For 0/1
    values it is `wilson` itself; for values in between it is wider than it need be.
    """
    x = _unit(values, "values")
    if not x.size:
        raise ValueError("the mean of no values has no interval: at least one is needed")
    interval = wilson(min(math.fsum(x), float(x.size)), x.size, confidence)
    return Interval(interval.value, interval.low, interval.high, confidence, "wilson, bounded mean")


def macro_interval(by_domain: Mapping[str, Sequence[float]], confidence: float = 0.95) -> Interval:
    """Mean over domains of the domain's mean, with its interval.

    Each domain weighs the same however many items it has. The domains' intervals are combined by the method of variance
    estimates recovery (Zou and Donner 2008, Stat. Med. 27:1693): the distances from estimate to end add in squares.
    """
    if not by_domain:
        raise ValueError("a mean over domains needs at least one domain")
    parts = [mean_interval(by_domain[name], confidence) for name in sorted(by_domain)]
    value = math.fsum(p.value for p in parts) / len(parts)
    below = math.sqrt(math.fsum((p.value - p.low) ** 2 for p in parts)) / len(parts)
    above = math.sqrt(math.fsum((p.high - p.value) ** 2 for p in parts)) / len(parts)
    return Interval(value, max(0.0, value - below), min(1.0, value + above), confidence, "wilson, macro (MOVER)")


def paired_difference(
    before: Sequence[float], after: Sequence[float], confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> Interval:
    """Mean change of the same items, `after[i] - before[i]`, values in [0, 1], with its interval.

    As `macro_difference` over one domain. Where every value is 0 or 1, `p_value` is McNemar's exact one.
    """
    interval = macro_difference({"": (before, after)}, confidence, seed, resamples)
    x, y = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if not (np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all()):
        return interval
    p = mcnemar(lost=int((x > y).sum()), gained=int((y > x).sum()))
    return Interval(interval.value, interval.low, interval.high, confidence, interval.method, p)


def macro_difference(
    pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Interval:
    """Mean over domains of the domain's mean change, with the interval of a stratified paired bootstrap.

    pairs: domain -> (before, after), values in [0, 1], item by item. Items are resampled inside their domain (Efron and
    Tibshirani 1993, ch. 8 and 13: percentile). To each domain's differences one imaginary item that gained everything
    and one that lost everything are added before resampling, which carries the adjusted Wald interval for paired
    proportions (Bonett and Price 2012, J. Educ. Behav. Stat. 37:479: one item more in each discordant cell) over to
    graded rewards and several domains: without them a domain where nothing changed would be certain of it after two
    items. They also pull the interval towards 0 by 2 / (n + 2) of the change. Over K domains the pull would stay while
    the standard error shrinks by the root of K, so the share 1 - 1 / sqrt(K) of it is taken out again, which leaves the
    pull in standard errors that it has in one domain. `value` is the plain estimate.
    """
    _quantile(confidence)
    if not pairs:
        raise ValueError("a mean over domains needs at least one domain")
    if resamples < 100:
        raise ValueError(f"{resamples} resamples: at least 100 are needed for the ends of an interval")
    rng = np.random.Generator(np.random.PCG64(seed))
    total, value = np.zeros(resamples), 0.0
    undo = 1 - 1 / math.sqrt(len(pairs))
    for name in sorted(pairs):
        x, y = (_unit(side, f"{name} {label}") for side, label in zip(pairs[name], ("before", "after"), strict=True))
        if x.size != y.size or not x.size:
            sizes = f"{name or 'paired values'}: {x.size} before and {y.size} after"
            raise ValueError(f"{sizes}: they must pair, and at least one is needed")
        difference = y - x
        pooled = np.concatenate([difference, (1.0, -1.0)])
        centre = math.fsum(difference) / x.size
        value += centre
        total += _resampled_means(pooled, resamples, rng) + undo * centre * 2 / pooled.size
    value, total = value / len(pairs), np.sort(total / len(pairs))
    # order statistics, not interpolated ones: interpolation can break monotonicity in the last bit
    tail = math.floor((1 - confidence) / 2 * resamples)
    low, high = max(-1.0, float(total[tail])), min(1.0, float(total[resamples - 1 - tail]))
    return Interval(value, min(low, value), max(high, value), confidence, "paired bootstrap, adjusted")


def mcnemar(lost: int, gained: int) -> float:
    """Two-sided exact p value of "as many items were lost as gained" (McNemar 1947; binomial form, Liddell 1983).

    lost, gained: items that were right only before, only after.
    """
    if lost < 0 or gained < 0:
        raise ValueError(f"{lost} lost, {gained} gained: counts are >= 0")
    n, k = lost + gained, min(lost, gained)
    tail = sum(math.comb(n, i) for i in range(k + 1))
    return min(1.0, 2.0 * tail / float(2**n))


def _resampled_means(values: Floats, resamples: int, rng: np.random.Generator) -> Floats:
    """[resamples] means of draws with replacement. The draws depend on the count of the values alone, so the means are
    monotone."""
    n = values.size
    means = np.empty(resamples)
    block = max(1, BLOCK_DRAWS // n)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        means[start : start + rows] = values[rng.integers(0, n, size=(rows, n))].sum(axis=1) / n
    return means


def _quantile(confidence: float) -> float:
    """The two-sided standard normal quantile, 1.96 for 0.95."""
    if not 0.5 <= confidence < 1:
        raise ValueError(f"confidence {confidence!r} must be at least 0.5 and below 1, for example 0.95")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _unit(values: Sequence[float], name: str) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not ((array >= 0) & (array <= 1)).all():  # NaN fails the comparison
        raise ValueError(f"{name.strip()} must be a flat list of numbers in [0, 1]: scale the rewards first")
    return array
