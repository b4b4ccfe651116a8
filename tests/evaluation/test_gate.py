"""Nothing is promoted past a failed or inconclusive gate."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from posttrain.evaluation import Comparison, Decision, EvalResult, GatePolicy, Interval, ItemResult, compare, decide

POLICY = GatePolicy()


def judged(training: tuple[str, str], retention: tuple[str, str] | None, policy: GatePolicy = POLICY) -> Decision:
    return decide(comparison(training, retention, policy.confidence), policy)


def comparison(training: tuple[str, str], retention: tuple[str, str] | None, confidence: float = 0.95) -> Comparison:
    sides = []
    for side in (0, 1):
        items = [_item("skill", i, mark) for i, mark in enumerate(training[side])]
        items += [_item("kept", i, mark) for i, mark in enumerate(retention[side])] if retention else []
        sides.append(EvalResult(tuple(items)))
    return compare(sides[0], sides[1], {"skill"}, {"kept"} if retention else set(), confidence)


def _item(domain: str, index: int, mark: str) -> ItemResult:
    return ItemResult(f"{domain}/dev/{index:03}", domain, None if mark == "x" else float(mark), mark == "1")


GAIN = ("0" * 40 + "1" * 20, "1" * 20 + "0" * 20 + "1" * 20)
SAME = ("1" * 40 + "0" * 20, "1" * 40 + "0" * 20)


def test_a_sure_gain_with_retention_held_is_promoted() -> None:
    decision = judged(GAIN, SAME)
    assert decision.verdict == "promote" and len(decision.reasons) == 2
    assert "training +33.3 points" in decision.reasons[0]


def test_a_gain_that_may_be_chance_is_inconclusive_and_none_at_all_is_refused() -> None:
    assert judged(("0" * 30 + "1" * 30, "1" * 3 + "0" * 27 + "1" * 30), SAME).verdict == "inconclusive"
    assert judged((GAIN[1], GAIN[0]), SAME).verdict == "refuse"


def test_a_gain_below_the_one_asked_for_is_not_promoted() -> None:
    assert judged(GAIN, SAME, GatePolicy(min_gain=0.1)).verdict == "promote"
    assert judged(GAIN, SAME, GatePolicy(min_gain=0.3)).verdict == "inconclusive"
    refused = judged(GAIN, SAME, GatePolicy(min_gain=0.6))
    assert refused.verdict == "refuse" and "60.0 points" in refused.reasons[0]


def test_retention_that_surely_dropped_is_refused_whatever_the_gain() -> None:
    decision = judged(GAIN, ("1" * 60, "0" * 12 + "1" * 48))
    assert decision.verdict == "refuse" and decision.reasons[0].startswith("retention -20.0 points")


def test_retention_lower_within_its_interval_is_held_and_beyond_the_tolerance_is_not() -> None:
    dropped = ("1" * 10 + "0" * 50, "0" * 7 + "1" * 3 + "1" * 3 + "0" * 47)  # 7 lost, 3 gained
    assert judged(GAIN, dropped).verdict == "promote"
    tight = judged(GAIN, dropped, GatePolicy(max_retention_drop=0.05))
    assert tight.verdict == "inconclusive" and "evaluate more tasks" in tight.reasons[0]


def test_a_mean_does_not_hide_a_collapsed_domain() -> None:
    marks = {"skill": GAIN, "kept": ("1" * 40, "0" * 24 + "1" * 16), "risen": ("0" * 40, "1" * 24 + "0" * 16)}
    before, after = (
        EvalResult(tuple(_item(d, i, m) for d, s in marks.items() for i, m in enumerate(s[k]))) for k in (0, 1)
    )
    decision = decide(compare(before, after, {"skill"}, {"kept", "risen"}), POLICY)
    assert decision.verdict == "refuse" and "retention domain kept" in decision.reasons[0]


def test_a_measurement_that_can_not_carry_a_verdict_is_inconclusive() -> None:
    assert "name at least one retention" in judged(GAIN, None).reasons[0]
    few = judged(GAIN, ("1" * 10, "1" * 10))
    assert few.verdict == "inconclusive" and "10 valid pairs, fewer than the 30" in few.reasons[0]
    broken = judged((GAIN[0], "x" * 5 + GAIN[1][5:]), SAME)
    assert broken.verdict == "inconclusive" and "5 of 60 training tasks have no verdict" in broken.reasons[0]
    assert "5 only after" in broken.reasons[0]
    assert judged((GAIN[0], "x" * 3 + GAIN[1][3:]), SAME).verdict == "promote"  # 5 % is the limit, and allowed
    assert "no task with a verdict" in judged(("x" * 40, "1" * 40), SAME).reasons[0]


@pytest.mark.parametrize("part", ["value", "low", "high"])
@pytest.mark.parametrize("role", ["training", "retention", "domain"])
def test_a_nan_never_promotes(part: str, role: str) -> None:
    good = comparison(GAIN, SAME)
    assert good.training.change and good.retention and good.retention.change and good.domains["kept"].change

    def spoil(interval: Interval) -> Interval:
        return replace(interval, **{part: float("nan")})  # type: ignore[arg-type]

    if role == "training":
        bad = replace(good, training=replace(good.training, change=spoil(good.training.change)))
    elif role == "retention":
        bad = replace(good, retention=replace(good.retention, change=spoil(good.retention.change)))
    else:
        bad = replace(
            good,
            domains={**good.domains, "kept": replace(good.domains["kept"], change=spoil(good.domains["kept"].change))},
        )
    assert decide(good, POLICY).verdict == "promote"
    assert decide(bad, POLICY).verdict == "inconclusive"


def test_a_comparison_of_another_confidence_is_not_judged() -> None:
    with pytest.raises(ValueError, match="compare again"):
        decide(comparison(GAIN, SAME, 0.9), POLICY)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(0, 30), st.integers(0, 30), st.sets(st.integers(0, 79)),
    st.sampled_from([0, 2]), st.floats(0, 0.3), st.floats(0, 0.3),
)  # fmt: skip
def test_worsening_a_candidate_never_gets_it_promoted(
    right_before: int,
    right_after: int,
    kept_before: int,
    lost: int,
    worsen: set[int],
    invalid: int,
    min_gain: float,
    max_drop: float,
) -> None:
    policy = GatePolicy(min_gain=min_gain, max_retention_drop=max_drop)
    skill = (
        "1" * right_before + "0" * (40 - right_before),
        "1" * right_after + "0" * (40 - right_after - invalid) + "x" * invalid,
    )
    assume(len(skill[1]) == 40)
    kept = ("1" * kept_before + "0" * (40 - kept_before), "0" * min(lost, 40) + "1" * (40 - min(lost, 40)))
    flat = skill[1] + kept[1]
    worse = "".join("0" if i in worsen and mark == "1" else mark for i, mark in enumerate(flat))
    first, then = judged(skill, kept, policy), judged((skill[0], worse[:40]), (kept[0], worse[40:]), policy)
    assert then.verdict != "promote" or first.verdict == "promote"


@pytest.mark.parametrize(
    ("skill", "kept"),
    [((30, 8), (20, 0)), ((12, 2), (25, 1)), ((20, 20), (5, 5))],
    ids=["strong", "borderline", "none"],
)
def test_taking_away_one_right_answer_after_the_other_never_gets_promoted_again(
    skill: tuple[int, int], kept: tuple[int, int]
) -> None:
    """Walks from a candidate down to one that is wrong everywhere; the verdict may leave "promote" once and never come
    back."""
    gained, lost = skill
    before = ("0" * gained + "1" * (60 - gained), "1" * 60)
    after = ["1"] * gained + ["0"] * lost + ["1"] * (60 - gained - lost) + ["1"] * (60 - kept[1]) + ["0"] * kept[1]
    verdicts = []
    for index in range(0, 121, 4):
        marks = "".join("0" if i < index else m for i, m in enumerate(after))
        verdicts.append(judged((before[0], marks[:60]), (before[1], marks[60:])).verdict)
    last = max((i for i, v in enumerate(verdicts) if v == "promote"), default=-1)
    assert all(v == "promote" for v in verdicts[: last + 1])
    assert verdicts[-1] == "refuse"


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_gain": -0.1},
        {"max_retention_drop": float("nan")},
        {"max_invalid_share": 1.0},
        {"confidence": 95},
        {"min_pairs": 0},
    ],
)
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GatePolicy(**wrong)  # type: ignore[arg-type]
