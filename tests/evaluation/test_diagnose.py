"""The diagnosis tells what to train now, what needs demonstrations first, and why attempts failed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.evaluation.diagnose import AT_ZERO, LEARNABLE, SATURATED, UNMEASURED, Diagnosis, Thresholds, diagnose
from posttrain.records import Failure, Group, Invalid, Reward, Scored, Split, Task, Trajectory, user


def group(domain: str, index: int, *rewards: Reward) -> Group:
    task = Task(domain, Split.TRAIN, (user(f"question {index}"),), "exact", index)
    return Group(task, tuple(Trajectory(task.id, attempt=i) for i in range(len(rewards))), rewards)


def coin(domain: str, index: int, right: int, of: int = 8) -> Group:
    return group(domain, index, *[Scored(1.0)] * right, *[Scored(0.0, failure=Failure.WRONG)] * (of - right))


def test_each_domain_falls_into_the_class_that_says_what_to_do() -> None:
    groups = [coin("add", i, 3) for i in range(4)] + [coin("shell", i, 0) for i in range(4)]
    groups += [coin("call", i, 8) for i in range(4)] + [coin("few", 0, 4)]
    found = diagnose(groups, domains=["absent"])
    classes = {name: d.learnable for name, d in found.domains.items()}
    assert classes == {"absent": UNMEASURED, "add": LEARNABLE, "call": SATURATED, "few": UNMEASURED, "shell": AT_ZERO}
    assert found.named(AT_ZERO) == ("shell",)


def test_the_rates_of_a_domain() -> None:
    add = diagnose([coin("add", 0, 2), coin("add", 1, 8), coin("add", 2, 0)]).domains["add"]
    assert add.pass_rate == pytest.approx(10 / 24) and add.variance == pytest.approx(10 / 24 * 14 / 24)
    assert add.within_variance == pytest.approx((8 * 0.25 * 0.75 / 7) / 3)  # only the first group varies
    assert add.mixed_share == pytest.approx(1 / 3)


def test_tasks_that_are_always_right_or_always_wrong_carry_no_gradient() -> None:
    split = diagnose([coin("read", i, 8 if i < 2 else 0) for i in range(8)]).domains["read"]
    assert split.pass_rate == 0.25 and split.learnable == AT_ZERO


def test_partial_rewards_make_a_domain_learnable_though_nothing_passes() -> None:
    code = [group("code", i, *[Scored(v, failure=Failure.WRONG) for v in (0.0, 0.25, 0.5, 0.75)]) for i in range(5)]
    found = diagnose(code).domains["code"]
    assert found.pass_rate == 0 and found.learnable == LEARNABLE
    assert found.within_variance == pytest.approx(5 / 48)


def test_a_fault_of_the_infrastructure_is_counted_and_moves_no_rate() -> None:
    clean = [group("add", i, Scored(1.0), Scored(0.0, failure=Failure.FORMAT)) for i in range(10)]
    faulty = [
        group("add", i, Scored(1.0), Scored(0.0, failure=Failure.FORMAT), Invalid("sandbox died")) for i in range(10)
    ]
    a, b = diagnose(clean).domains["add"], diagnose(faulty).domains["add"]
    assert b.invalid == 10 and b.invalid_reasons == {"sandbox died": 10}
    assert (a.pass_rate, a.mean_reward, a.within_variance, a.mixed_share) == (
        b.pass_rate,
        b.mean_reward,
        b.within_variance,
        b.mixed_share,
    )
    only = diagnose([group("add", i, *[Invalid("hung")] * 4) for i in range(10)]).domains["add"]
    assert only.learnable == UNMEASURED and only.pass_rate is None and only.invalid == 40


def test_failures_are_counted_by_reason_most_frequent_first() -> None:
    rewards = [Scored(0.0, failure=w) for w in (Failure.TRUNCATED, Failure.NO_ANSWER, Failure.NO_ANSWER)] + [
        Scored(0.1),
        Scored(1.0),
    ]
    found = diagnose([group("add", 0, *rewards)]).domains["add"]
    assert list(found.failures.items()) == [(Failure.NO_ANSWER, 2), (Failure.TRUNCATED, 1), (Failure.WRONG, 1)]


def test_the_table_shows_every_domain_and_a_dash_where_nothing_was_measured() -> None:
    header, absent, add = diagnose([coin("add", i, 3) for i in range(4)], domains=["absent"]).format_table()
    assert header[0] == "domain" and len(header) == len(add) == len(absent)
    assert add[:3] == ("add", LEARNABLE, "38%") and "wrong answer 20" in add[-1]
    assert absent == ("absent", UNMEASURED, "-", "-", "-", "-", "0", "-")


def test_a_diagnosis_survives_its_file() -> None:
    found = diagnose([coin("add", i, 3) for i in range(4)], ["absent"], Thresholds(at_zero=0.1))
    assert Diagnosis.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found
    with pytest.raises(ValueError, match="upgrade posttrain"):
        Diagnosis.from_json({**found.to_json(), "format_version": 2})


def test_thresholds_that_cross_are_refused() -> None:
    with pytest.raises(ValueError, match="at_zero"):
        Thresholds(at_zero=0.9, saturated=0.5)
    with pytest.raises(ValueError, match="min_attempts"):
        Thresholds(min_attempts=0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1), st.none()), min_size=1, max_size=6), max_size=8
    )
)
def test_every_attempt_is_counted_once(rows: list[list[float | None]]) -> None:
    groups = [group("add", i, *[Invalid("x") if v is None else Scored(v) for v in row]) for i, row in enumerate(rows)]
    found = diagnose(groups, ["add"]).domains["add"]
    assert found.attempts + found.invalid == sum(len(r) for r in rows)
    assert sum(found.failures.values()) == round((1 - (found.pass_rate or 0.0)) * found.attempts)
