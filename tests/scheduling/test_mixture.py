"""The mixture: where the signal is, within bounds, and nobody forgotten."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.records import Group, Invalid, Scored, Split, Task, Trajectory
from posttrain.scheduling import MixturePolicy, MixtureState, allocate, observe, observe_group, shares
from posttrain.scheduling.mixture import bounded_shares

NAMES = [f"d{i}" for i in range(9)]
unit = st.floats(0, 1)
events = st.lists(st.tuples(st.integers(0, 8), st.floats(-1, 2), st.floats(0, 0.3)), max_size=30)


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[MixtureState, MixturePolicy]:
    n = draw(st.integers(1, 9))
    state = MixtureState.start(NAMES[:n])
    for domain, mean, variance in draw(events):
        state = observe(state, NAMES[domain % n], mean, variance)
    floor = draw(unit) / n
    policy = MixturePolicy(
        signal=draw(st.sampled_from(("learnability", "variance", "uniform"))),
        floor=floor,
        ceiling=draw(st.floats(floor, 1)),
    )
    return state, policy


def learned(**pass_rates: float) -> MixtureState:
    state = MixtureState.start(pass_rates)
    for domain, rate in pass_rates.items():
        for _ in range(60):
            state = observe(state, domain, rate, rate * (1 - rate))
    return state


@settings(max_examples=80, deadline=None)
@given(mixtures())
def test_shares_sum_to_one_and_stay_within_their_bounds(mixture: tuple[MixtureState, MixturePolicy]) -> None:
    state, policy = mixture
    wanted = shares(state, policy)
    assert math.fsum(wanted.values()) == pytest.approx(1, abs=1e-9)
    for name, share in wanted.items():
        low, high = policy.bounds_of(name, len(wanted))
        assert low - 1e-9 <= share <= high + 1e-9


weighted = st.lists(st.tuples(st.floats(0, 1e6), unit, unit), min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(weighted)
def test_whoever_is_between_the_bounds_shares_in_proportion(drawn: list[tuple[float, float, float]]) -> None:
    n = len(drawn)
    weights = {f"d{i}": weight for i, (weight, _, _) in enumerate(drawn)}
    # Floors below an equal share and ceilings above it always leave room.
    bounds = {f"d{i}": (low / n, 1 / n + high * (1 - 1 / n)) for i, (_, low, high) in enumerate(drawn)}
    found = bounded_shares(weights, bounds)
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-9)
    levels = []
    for name, share in found.items():
        low, high = bounds[name]
        assert low - 1e-12 <= share <= high + 1e-12
        if low + 1e-9 < share < high - 1e-9 and weights[name] > 1e-5 * max(weights.values()):
            levels.append(share / weights[name])
    if levels:
        level = levels[0]
        assert levels == pytest.approx([level] * len(levels), rel=1e-6)
        for name, share in found.items():
            low, high = bounds[name]
            if share <= low + 1e-12 and weights[name] > 1e-5 * max(weights.values()):
                assert level * weights[name] <= low + 1e-6, "a domain that its weight would lift is kept at its floor"
            if share >= high - 1e-12:
                assert level * weights[name] >= high - 1e-6, (
                    "a domain that its weight would lower is kept at its ceiling"
                )


def test_the_domain_that_can_be_learned_gets_the_most() -> None:
    wanted = shares(learned(solved=1.0, hopeless=0.0, half=0.5, some=0.2), MixturePolicy(floor=0.1, ceiling=0.9))
    assert wanted["solved"] == wanted["hopeless"] == pytest.approx(0.1)
    assert wanted["half"] / wanted["some"] == pytest.approx(0.25 / 0.16, rel=0.1)
    wanted = shares(learned(solved=1.0, half=0.5, other=0.9), MixturePolicy(floor=0.05, ceiling=0.5))
    assert wanted["half"] == pytest.approx(0.5)


def test_measured_variance_sees_what_a_pass_rate_hides() -> None:
    """Half of the items always solved, half never: the pass rate is a half and there is nothing to learn."""
    state = MixtureState.start(["halves", "real"])
    for i in range(100):
        state = observe(state, "halves", float(i % 2), 0.0)
        state = observe(state, "real", 0.5, 0.25)
    by_rate = shares(state, MixturePolicy("learnability"))
    by_variance = shares(state, MixturePolicy("variance", floor=0.02, ceiling=1.0))
    assert by_rate["halves"] == pytest.approx(0.5, abs=0.02)
    assert by_variance["halves"] < 0.05


def test_what_was_long_ago_counts_less() -> None:
    state = learned(add=0.0)
    for _ in range(30):
        state = observe(state, "add", 1.0, 0.0, memory_groups=5)
    assert state.domains["add"].pass_rate > 0.8


def test_nothing_known_means_equal_shares() -> None:
    for signal in ("learnability", "variance", "uniform"):
        found = shares(MixtureState.start(NAMES), MixturePolicy(signal))
        assert list(found.values()) == pytest.approx([1 / 9] * 9)


@settings(max_examples=60, deadline=None)
@given(mixtures(), st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_no_domain_is_ever_a_group_off_its_share(mixture: tuple[MixtureState, MixturePolicy], steps: list[int]) -> None:
    state, policy = mixture
    wanted = shares(state, policy)
    given_out = dict.fromkeys(wanted, 0)
    total = 0
    for groups in steps:
        counts, state = allocate(state, policy, groups)
        assert sum(counts.values()) == groups
        assert min(counts.values()) >= 0
        total += groups
        for name, count in counts.items():
            given_out[name] += count
            assert abs(given_out[name] - total * wanted[name]) < 1 + 1e-6
    assert math.fsum(d.owed for d in state.domains.values()) == pytest.approx(0, abs=1e-6)


def test_nobody_starves_while_the_shares_keep_moving() -> None:
    rng = random.Random(3)
    policy = MixturePolicy(floor=0.04, ceiling=0.5)
    state = MixtureState.start(NAMES)
    since = dict.fromkeys(NAMES, 0)
    for _ in range(600):
        counts, state = allocate(state, policy, rng.randint(0, 12))
        for name, count in counts.items():
            since[name] = 0 if count else since[name] + sum(counts.values())
            # A floor of 4 % is a group in 25; two of them and a step are the most that one may wait.
            assert since[name] <= 2 * 25 + 12, name
        for name in NAMES:
            rate = rng.choice((0.0, 0.5, 1.0))
            state = observe(state, name, rate, rate * (1 - rate), memory_groups=4)


@settings(max_examples=60, deadline=None)
@given(mixtures(), st.integers(0, 30), st.randoms(use_true_random=False))
def test_the_order_of_names_and_a_restart_change_nothing(
    mixture: tuple[MixtureState, MixturePolicy], groups: int, rng: random.Random
) -> None:
    state, policy = mixture
    names = list(state.domains)
    rng.shuffle(names)
    shuffled = MixtureState({name: state.domains[name] for name in names})
    restarted = MixtureState.from_json(json.loads(json.dumps(state.to_json())))
    assert restarted == state
    expected = allocate(state, policy, groups)
    for other in (shuffled, restarted, state):
        assert list(shares(other, policy).items()) == list(shares(state, policy).items())
        assert allocate(other, policy, groups) == expected


def test_ties_go_to_the_first_name() -> None:
    counts, _ = allocate(MixtureState.start(["c", "a", "b"]), MixturePolicy(), 2)
    assert counts == {"a": 1, "b": 1, "c": 0}


def test_bounds_of_one_domain_hold_for_it_alone() -> None:
    policy = MixturePolicy(floor=0.0, ceiling=1.0, bounds={"a": (0.3, 0.3), "b": (0.0, 0.0)})
    state = MixtureState.start(["a", "b", "c"])
    assert shares(state, policy) == pytest.approx({"a": 0.3, "b": 0.0, "c": 0.7})
    counts, _ = allocate(state, policy, 100)
    assert counts == {"a": 30, "b": 0, "c": 70}


def test_a_single_domain_gets_everything_whatever_the_ceiling() -> None:
    assert shares(MixtureState.start(["add"]), MixturePolicy(ceiling=0.5)) == {"add": 1.0}


def test_bounds_that_leave_no_room_say_how_to_mend_them() -> None:
    state = MixtureState.start(NAMES)
    with pytest.raises(ValueError, match=r"floors of 9 domains sum to 1.8: at most 0.1111 each"):
        shares(state, MixturePolicy(floor=0.2))
    with pytest.raises(ValueError, match=r"ceilings of 9 domains sum to 0.9"):
        shares(state, MixturePolicy(bounds=dict.fromkeys(NAMES, (0.0, 0.1))))
    with pytest.raises(ValueError, match="share of d0"):
        shares(state, MixturePolicy(floor=0.3, ceiling=0.2))
    with pytest.raises(ValueError, match="at least one"):
        MixtureState.start([])


def test_figures_that_are_no_groups_are_refused() -> None:
    state = MixtureState.start(["add"])
    with pytest.raises(ValueError, match=r"'sub' is not in the mixture of add"):
        observe(state, "sub", 0.5, 0.25)
    for mean, variance in ((math.nan, 0.0), (0.5, math.nan), (0.5, -0.1)):
        with pytest.raises(ValueError, match="add"):
            observe(state, "add", mean, variance)


def test_invalid_attempts_say_nothing_about_a_domain() -> None:
    state = MixtureState.start(["add"])
    task = Task("add", Split.TRAIN, (), "number")

    def group(*rewards: Scored | Invalid) -> Group:
        return Group(task, tuple(Trajectory(task.id) for _ in rewards), rewards)

    bad = Invalid("sandbox died")
    assert observe_group(state, group(bad, bad)) == state
    assert observe_group(state, group(bad, Scored(1))) == state
    assert observe_group(state, group(Scored(1), bad, Scored(0))) == observe(state, "add", 0.5, 0.5)
