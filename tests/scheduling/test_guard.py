"""The guard: it slows down at the signs of a collapse, and only then."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.scheduling.guard import GuardPolicy, GuardState, observe

steps = st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0, 5)), max_size=60)


def run(*measured: tuple[float, float | None], policy: GuardPolicy | None = None) -> list[float]:
    state, scales = GuardState(), []
    for mixed, nll in measured:
        state, scale, _ = observe(state, mixed, nll, policy)
        scales.append(scale)
    return scales


def test_three_steps_with_few_mixed_groups_halve_the_rate() -> None:
    assert run(*[(0.2, 1.0)] * 3) == [1, 1, 0.5]
    assert run((0.2, 1.0), (0.2, 1.0), (0.25, 1.0), (0.2, 1.0), (0.2, 1.0)) == [1] * 5
    assert run(*[(0.2, None)] * 3) == [1, 1, 0.5]


def test_a_policy_that_became_sure_of_itself_is_slowed_at_once() -> None:
    assert run((0.9, 0.1), (0.9, 0.099)) == [1, 0.5]


def test_a_halving_is_given_time_to_work() -> None:
    assert run(*[(0.9, 0.05)] * 9) == [0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125]
    assert run(*[(0.0, 1.0)] * 7) == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25]
    assert run((0.9, 0.05), *[(0.9, 0.3)] * 20) == [0.5] * 21


def test_the_reason_is_said_once_and_names_the_figure() -> None:
    state, _, reason = observe(GuardState(), 0.9, 0.05)
    assert reason == "learning rate halved to 0.5 of the recipe's: 0.050 nats a token is below 0.1"
    assert observe(state, 0.9, 0.05).reason is None
    state = GuardState()
    for _ in range(3):
        state, _, reason = observe(state, 0.1, 1.0)
    assert reason is not None
    assert "under 25% of the groups were mixed for 3 steps" in reason


def test_the_recipes_own_limits_are_used() -> None:
    assert run((0.4, 1.0), (0.4, 1.0), policy=GuardPolicy(min_mixed_share=0.5, patience_steps=2)) == [1, 0.5]
    assert run((0.9, 0.4), policy=GuardPolicy(min_nll=0.5)) == [0.5]


@given(steps)
def test_the_rate_only_falls_by_halves_and_never_to_nothing(measured: list[tuple[float, float | None]]) -> None:
    policy = GuardPolicy(min_scale=1 / 8)
    state = GuardState()
    halved_at = [-100]
    for i, (mixed, nll) in enumerate(measured):
        before = state.rate_scale
        state, scale, reason = observe(state, mixed, nll, policy)
        assert scale == state.rate_scale >= 1 / 8
        assert scale in (before, before / 2)
        assert (reason is not None) == (scale < before)
        if reason is not None:
            assert i - halved_at[-1] > policy.patience_steps
            halved_at.append(i)
        # A run that was killed goes on with the same state.
        assert GuardState.from_json(json.loads(json.dumps(state.to_json()))) == state


@pytest.mark.parametrize(("mixed", "nll"), [(math.nan, 1.0), (1.1, 1.0), (0.5, math.nan), (0.5, math.inf)])
def test_a_figure_that_is_none_is_refused(mixed: float, nll: float) -> None:
    with pytest.raises(ValueError, match="not a measurement"):
        observe(GuardState(), mixed, nll)


@pytest.mark.parametrize(
    "limits", [{"min_mixed_share": 2}, {"min_nll": -1}, {"patience_steps": 0}, {"min_scale": 0}, {"min_scale": 2}]
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="guard"):
        GuardPolicy(**limits)  # type: ignore[arg-type]
