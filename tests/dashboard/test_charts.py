"""A curve shows the numbers of the run: no gap drawn as zero, no axis that lies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.dashboard.charts import MAX_POINTS, LineChart, line_chart, show


def chart(values: list[float | None], phases: str = "", unit: str = "") -> LineChart:
    rows = [{"step": i, "phase": phases[i : i + 1]} for i in range(len(values))]
    made = line_chart("nll", unit, "", rows, values)
    assert made is not None
    return made


def test_points_stand_where_their_values_are() -> None:
    made = chart([0.0, 5.0, 10.0])
    assert [(p.x, p.y) for p in made.points] == [(0, 100), (50, 50), (100, 0)]
    assert made.segments == ("0,100 50,50 100,0",)
    assert [t.label for t in made.x_ticks] == ["0", "1", "2"]
    assert made.y_ticks[0].label == "0" and made.y_ticks[-1].label == "10"


def test_a_missing_value_is_a_gap() -> None:
    made = chart([1.0, 2.0, None, 4.0, 5.0])
    assert len(made.segments) == 2 and len(made.points) == 4
    assert line_chart("nll", "", "", [{"step": 0}], [None]) is None


def test_a_line_does_not_join_two_phases() -> None:
    made = chart([1.0, 2.0, 3.0, 4.0], phases="ssrr")
    assert len(made.segments) == 2 and made.divider == 50.0
    assert made.points[2].label == "R step 2: 3"


def test_a_long_run_is_averaged_not_cut() -> None:
    made = chart([float(i) for i in range(1000)])
    assert 100 < len(made.points) <= MAX_POINTS and "mean of 5 steps" in made.note
    assert made.points[0].label.endswith(": 2") and made.points[-1].label.endswith(": 997")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "", "0"),
        (0.5, "%", "50 %"),
        (3e-4, "", "3e-4"),
        (2.25e-5, "nats", "2.25e-5 nats"),
        (7.9712, "s", "7.97 s"),
        (-0.25, "", "-0.25"),
    ],
)
def test_numbers_read_well(value: float, unit: str, text: str) -> None:
    assert show(value, unit) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_every_point_stays_inside_its_axis(values: list[float | None]) -> None:
    made = line_chart("nll", "", "", [{"step": i} for i in range(len(values))], values)
    if made is None:
        return
    assert all(-0.01 <= p.x <= 100.01 and -0.01 <= p.y <= 100.01 for p in made.points)
    assert 2 <= len(made.y_ticks) <= 8
