"""Advantages are what the formula says; what took no part never matters; a held-out task can not be trained on."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.records import (
    Batch,
    Group,
    HeldOutLeak,
    Invalid,
    Producer,
    Reward,
    Scored,
    Split,
    Task,
    Trajectory,
    user,
)
from posttrain.training.grpo import GRPO
from posttrain.training.sft import SFT, Demonstration

rewards = st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=12)


def group_of(values: list[Reward], split: Split = Split.TRAIN) -> Group:
    task = Task("sums", split, (user("1+1="),), "exact", "2")
    trajectories = []
    for i in range(len(values)):
        t = Trajectory(task.id, attempt=i, seed=i)
        t.append(Producer.PROMPT, [1, 2, 3], "1+1=")
        t.append(Producer.POLICY, [10 + i, 4], "call", logprobs=[-0.5 - i, -1.0], policy_version=0)
        t.append(Producer.ENVIRONMENT, [7, 8], "result")
        t.append(Producer.POLICY, [5], "2", logprobs=[-0.25], policy_version=0)
        trajectories.append(t)
    return Group(task, tuple(trajectories), tuple(values))


def test_advantages_are_those_worked_out_by_hand() -> None:
    # mean 0.5, squared distances 0.25 four times, unbiased variance 1/3, standard deviation 0.57735
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    found = GRPO().advantages([1.0, 0.0, 0.0, 1.0])
    assert found == pytest.approx([expected, -expected, -expected, expected])
    # mean 2, distances -1, -1, 2, variance (1 + 1 + 4) / 2 = 3
    assert GRPO(std_epsilon=0.5).advantages([1.0, 1.0, 4.0]) == pytest.approx(
        [-1 / (math.sqrt(3) + 0.5)] * 2 + [2 / (math.sqrt(3) + 0.5)]
    )


@given(rewards)
def test_advantages_add_up_to_nothing_and_follow_the_order_of_rewards(values: list[float]) -> None:
    found = GRPO().advantages(values)
    assert sum(found) == pytest.approx(0, abs=1e-6)
    for a, x in zip(found, values, strict=True):
        for b, y in zip(found, values, strict=True):
            assert (a < b) == (x < y) or a == pytest.approx(b, abs=1e-6)


@given(rewards, st.floats(-5, 5, width=32))
def test_a_shift_of_all_rewards_changes_nothing(values: list[float], shift: float) -> None:
    spread = max(values) - min(values)
    if 0 < spread < 1e-3:
        return  # the shift rounds such rewards onto one another
    assert GRPO().advantages([v + shift for v in values]) == pytest.approx(
        GRPO().advantages(values), rel=1e-3, abs=1e-6
    )


@given(rewards, st.randoms(use_true_random=False))
def test_the_order_of_attempts_does_not_matter(values: list[float], rng: random.Random) -> None:
    places = rng.sample(range(len(values)), len(values))
    found = GRPO().advantages(values)
    assert GRPO().advantages([values[i] for i in places]) == pytest.approx([found[i] for i in places], abs=1e-9)


@pytest.mark.parametrize("values", [[], [1.0], [0.0] * 8, [0.3] * 5, [0.1 + 0.2, 0.3]])
def test_a_group_without_contrast_gives_no_gradient(values: list[float]) -> None:
    assert GRPO().advantages(values) == [0.0] * len(values)
    if values:
        assert GRPO().families(Batch((group_of([Scored(v) for v in values]),))) == []


@given(
    st.lists(st.one_of(st.none(), st.sampled_from([0.0, 0.2, 1.0])), min_size=1, max_size=10),
)
@settings(max_examples=200)
def test_an_invalid_attempt_changes_nothing_for_its_siblings(values: list[float | None]) -> None:
    with_invalid = group_of([Invalid("the sandbox died") if v is None else Scored(v) for v in values])
    kept = [i for i, v in enumerate(values) if v is not None]
    if not kept:
        assert GRPO().families(Batch((with_invalid,))) == []
        return
    scored = [Scored(v) for v in values if v is not None]
    without = Group(with_invalid.task, tuple(with_invalid.trajectories[i] for i in kept), tuple(scored))
    assert repr(GRPO().families(Batch((with_invalid,)))) == repr(GRPO().families(Batch((without,))))


def test_only_tokens_the_policy_sampled_carry_weight() -> None:
    (family,) = GRPO(token_normaliser=100).families(Batch((group_of([Scored(1.0), Scored(0.0)]),)))
    assert family.prefix == (1, 2, 3)
    assert family.domain == "sums"
    right, wrong = family.members
    assert right.ids == (10, 4, 7, 8, 5)
    assert right.weight == (0.01, 0.01, 0.0, 0.0, 0.01)
    assert right.sampled_logprob[:2] == (-0.5, -1.0)
    assert math.isnan(right.sampled_logprob[2])
    assert right.advantage[0] > 0 > wrong.advantage[0]


def test_the_normaliser_does_not_depend_on_how_many_groups_survive() -> None:
    mixed, flat = group_of([Scored(1.0), Scored(0.0)]), group_of([Scored(1.0), Scored(1.0)])
    alone, with_others = GRPO().families(Batch((mixed,))), GRPO().families(Batch((flat, mixed, flat)))
    assert repr(alone) == repr(with_others)


@pytest.mark.parametrize("split", [Split.DEV, Split.SEALED])
def test_a_held_out_task_is_never_trained_on(split: Split) -> None:
    with pytest.raises(HeldOutLeak, match="held out"):
        Batch((group_of([Scored(1.0), Scored(0.0)]), group_of([Scored(1.0), Scored(0.0)], split)))
    leak = Demonstration("sums", split, (1,), ((Producer.POLICY, (2,)),))
    fine = Demonstration("sums", Split.TRAIN, (1,), ((Producer.POLICY, (2,)),))
    with pytest.raises(HeldOutLeak, match="held out"):
        SFT().families([fine, leak])


def test_supervised_tokens_are_averaged_over_the_batch_and_observations_left_out() -> None:
    demonstrations = [
        Demonstration(
            "a", Split.TRAIN, (1,), ((Producer.POLICY, (2, 3)), (Producer.ENVIRONMENT, (4,)), (Producer.POLICY, (5,)))
        ),
        Demonstration("b", Split.TRAIN, (1, 1), ((Producer.POLICY, (6, 7)),)),
    ]
    first, second = SFT().families(demonstrations)
    assert first.members[0].weight == pytest.approx((0.2, 0.2, 0.0, 0.2))
    assert second.members[0].weight == pytest.approx((0.2, 0.2))
    assert (first.domain, second.domain) == ("a", "b")


@pytest.mark.parametrize(
    "demonstrations", [[], [Demonstration("a", Split.TRAIN, (1,), ((Producer.ENVIRONMENT, (2,)),))]]
)
def test_nothing_to_learn_is_an_error(demonstrations: list[Demonstration]) -> None:
    with pytest.raises(ValueError, match="no token to learn"):
        SFT().families(demonstrations)


@pytest.mark.parametrize("name", ["clip_epsilon", "token_normaliser", "std_epsilon"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_setting_that_would_break_the_loss_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        GRPO(**{name: value})


@given(rewards)
def test_advantages_have_the_unbiased_deviation_of_one(values: list[float]) -> None:
    found = GRPO(std_epsilon=1e-12).advantages(values)
    if max(values) - min(values) > 1e-3:  # far above the epsilon
        assert statistics.stdev(found) == pytest.approx(1, rel=1e-6)
