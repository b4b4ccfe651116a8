"""A number in the report is as sure as it says: published values, hand-derived cases, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.evaluation.statistics import (
    macro_difference,
    macro_interval,
    mcnemar,
    mean_interval,
    paired_difference,
    wilson,
)

UNIT = st.floats(0, 1, allow_nan=False)


# Newcombe 1998, Statistics in Medicine 17:857, table I, method 3
@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_an_accuracy_has_the_published_interval(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert (round(interval.low, 4), round(interval.high, 4)) == (low, high)
    mirrored = wilson(n - successes, n)
    assert math.isclose(mirrored.low, 1 - interval.high, abs_tol=1e-12)


def test_all_wrong_and_all_right_are_never_certain() -> None:
    z2 = 1.959963984540054**2
    assert wilson(0, 30).low == 0 and math.isclose(wilson(0, 30).high, z2 / (30 + z2))
    assert wilson(30, 30).high == 1 and math.isclose(wilson(30, 30).low, 30 / (30 + z2))
    for interval in (
        mean_interval([1.0]),
        macro_interval({"a": [0.0, 0.0], "b": [0.0]}),
        paired_difference([1.0] * 30, [1.0] * 30),
    ):
        assert interval.high - interval.low > 0.05


def test_more_confidence_is_a_wider_interval() -> None:
    assert wilson(10, 30, 0.99).low < wilson(10, 30, 0.95).low < wilson(10, 30, 0.8).low
    before, after = [0.0] * 20 + [1.0] * 10, [0.0] * 12 + [1.0] * 18
    assert paired_difference(before, after, 0.99).low < paired_difference(before, after, 0.8).low


def test_graded_rewards_of_zero_and_one_are_an_accuracy() -> None:
    a, b = mean_interval([1.0] * 7 + [0.0] * 23), wilson(7, 30)
    assert (a.value, a.low, a.high) == (b.value, b.low, b.high)


def test_the_macro_mean_weighs_domains_not_items() -> None:
    interval = macro_interval({"large": [1.0] * 90, "small": [0.0] * 10})
    assert interval.value == 0.5
    alone_large, alone_small = wilson(90, 90), wilson(0, 10)
    assert math.isclose(
        interval.low, 0.5 - (1 - alone_large.low) / 2
    )  # only the large domain can be lower than it looks
    assert math.isclose(interval.high, 0.5 + alone_small.high / 2)


# by hand: 2 * (1 + 9 + 36) / 2**9; 2 / 2**4; and equal counts are no evidence
@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(2, 7, 92 / 512), (0, 4, 0.125), (4, 0, 0.125), (5, 5, 1.0), (0, 0, 1.0)]
)
def test_exact_mcnemar(lost: int, gained: int, p: float) -> None:
    assert mcnemar(lost, gained) == pytest.approx(p, abs=1e-15)


def test_a_paired_change_agrees_with_the_adjusted_wald_interval_of_bonett_and_price() -> None:
    lost, gained, n = 4, 17, 90
    before = [1.0] * lost + [0.0] * gained + [1.0] * 30 + [0.0] * (n - 30 - lost - gained)
    after = [0.0] * lost + [1.0] * gained + [1.0] * 30 + [0.0] * (n - 30 - lost - gained)
    p, q = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = 1.959963984540054 * math.sqrt((p + q - (q - p) ** 2) / (n + 2))
    interval = paired_difference(before, after)
    assert interval.value == pytest.approx((gained - lost) / n)
    step = 1 / 92  # of the bootstrap distribution
    assert interval.low == pytest.approx(q - p - half, abs=1.1 * step)
    assert interval.high == pytest.approx(q - p + half, abs=1.1 * step)
    assert interval.p_value == mcnemar(lost, gained)


def test_four_lost_items_alone_are_no_proof_and_ten_are() -> None:
    before = [1.0] * 60
    assert not paired_difference(before, [0.0] * 4 + [1.0] * 56).excludes_zero  # exact p is .125
    assert paired_difference(before, [0.0] * 10 + [1.0] * 50).high < 0  # exact p is .002


def test_pairing_is_what_makes_a_small_change_visible() -> None:
    rng = np.random.default_rng(3)
    before = (rng.random(200) < 0.5).astype(float)
    after = before.copy()
    after[np.flatnonzero(before == 0)[:16]] = 1
    shuffled = rng.permutation(after)
    assert paired_difference(before.tolist(), after.tolist()).low > 0
    assert not paired_difference(before.tolist(), shuffled.tolist()).excludes_zero


def _coverage(pairs_of_domain: list[tuple[int, float, float]], rounds: int, graded: bool) -> tuple[float, float]:
    """Share of intervals below and above the truth. Each domain: items, chance to lose a right one, chance to gain a
    wrong one."""
    rng = np.random.default_rng(11)
    below = above = 0
    for _ in range(rounds):
        pairs = {}
        truth = 0.0
        for index, (n, lose, gain) in enumerate(pairs_of_domain):
            before = (rng.random(n) < 0.4).astype(float)
            after = np.where(before == 1, rng.random(n) >= lose, rng.random(n) < gain).astype(float)
            truth += (0.6 * gain - 0.4 * lose) / len(pairs_of_domain)
            if graded:  # half of a reward is the outcome, half is noise of the same mean on both sides
                before, after = 0.5 * before + 0.5 * rng.random(n), 0.5 * after + 0.5 * rng.random(n)
            pairs[str(index)] = (before.tolist(), after.tolist())
        truth_now = truth * (0.5 if graded else 1)
        interval = macro_difference(pairs, seed=5, resamples=1000)
        below += interval.high < truth_now
        above += interval.low > truth_now
    return below / rounds, above / rounds


@pytest.mark.parametrize(
    ("domains", "graded"),
    [
        ([(30, 0.1, 0.4)], False),
        ([(30, 0.02, 0.02)], False),
        ([(30, 0.05, 0.5), (40, 0.3, 0.3), (30, 0.0, 0.1)], False),
        ([(30, 0.0, 0.95)], False),
        ([(30, 0.02, 0.8)] * 7, False),
        ([(10, 0.1, 0.5)] * 10, False),
        ([(30, 0.9, 0.02)] * 2, False),
        ([(30, 0.05, 0.5), (30, 0.2, 0.3)], True),
    ],
)
def test_a_95_percent_interval_misses_at_most_one_in_twenty(
    domains: list[tuple[int, float, float]], graded: bool
) -> None:
    below, above = _coverage(domains, rounds=800, graded=graded)
    # 800 rounds: a true 2.5 % shows at most 4.2 % (three standard errors); the side away from 0 is a little shorter
    nearer, farther = (below, above) if sum(gain - lose for _, lose, gain in domains) < 0 else (above, below)
    assert nearer <= 0.042 and farther <= 0.05 and below + above <= 0.06


def test_a_bounded_mean_interval_holds_for_skewed_rewards() -> None:
    rng = np.random.default_rng(2)
    for draw, mean in ((lambda: rng.beta(0.2, 1.8, 25), 0.1), (lambda: (rng.random(25) < 0.1).astype(float), 0.1)):
        hits = [
            abs((i := mean_interval(draw().tolist())).value - mean) >= 0 and i.low <= mean <= i.high
            for _ in range(2000)
        ]
        assert sum(hits) / 2000 >= 0.93


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=12), st.data())
def test_lowering_a_value_never_raises_an_end(rows: list[tuple[float, float]], data: st.DataObject) -> None:
    before, after = [a for a, _ in rows], [b for _, b in rows]
    lower = [data.draw(st.sampled_from((b, b / 2, 0.0))) for b in after]
    better, worse = (paired_difference(before, side, resamples=500) for side in (after, lower))
    assert worse.low <= better.low and worse.high <= better.high
    assert -1 <= better.low <= better.value <= better.high <= 1


def test_the_same_numbers_give_the_same_interval_in_any_order_of_domains() -> None:
    pairs = {"b": ([0.0, 1.0, 0.0], [1.0, 1.0, 0.0]), "a": ([0.25, 0.5], [0.5, 1.0])}
    one, two = macro_difference(pairs, seed=3), macro_difference(dict(reversed(pairs.items())), seed=3)
    assert one == two


def test_the_interval_of_many_items_does_not_depend_on_the_block_of_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ([0.0] * 40 + [1.0] * 10, [1.0] * 20 + [0.0] * 30)
    whole = paired_difference(*rows, resamples=400)
    monkeypatch.setattr("posttrain.evaluation.statistics.BLOCK_DRAWS", 100)
    assert paired_difference(*rows, resamples=400) == whole


@pytest.mark.parametrize("bad", [[float("nan"), 0.5], [1.5, 0.0], [-0.1, 0.0], [[0.1], [0.2]]])
def test_values_that_are_no_rewards_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        mean_interval(bad)
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        paired_difference([0.0, 0.0], bad)


def test_impossible_requests_are_one_line_errors() -> None:
    with pytest.raises(ValueError, match="n >= 1"):
        wilson(0, 0)
    with pytest.raises(ValueError, match="must pair"):
        paired_difference([0.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="at least one"):
        paired_difference([], [])
    for confidence in (1.0, 95, 0.2, float("nan")):
        with pytest.raises(ValueError, match="confidence"):
            wilson(1, 2, confidence)
