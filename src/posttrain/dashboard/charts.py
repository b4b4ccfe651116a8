"""Inline SVG charts that stretch with the page: positions in percent, so that text and dots keep their size on a phone.

    rows or numbers ──► a small immutable chart (positions, labels) ──► templates/charts.html.j2 draws it

Invariants: this module makes numbers and plain text, never markup; the template escapes. Values without a finite number
leave a gap, they are never drawn as zero. At most `MAX_POINTS` points a line: longer runs are averaged over equal spans
of steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.dashboard.run_folder import mapping, number

MAX_POINTS = 240  # a small chart is about 340 pixels wide
SMOOTH_STEPS = 5
EXACT = ("Learning rate", "Invalid attempts")  # a mean of these would show what never was
LARGEST = 1e15  # a number beyond it would flatten everything else; it leaves a gap
SMALLEST = 1e-30  # a number nearer to zero is zero

# key of a metrics row -> title, unit shown after a value, what it tells
CURVES: dict[str, tuple[str, str, str]] = {
    "reward_mean": ("Mean reward", "", "of all sampled attempts with a verdict"),
    "mixed_share": ("Mixed groups", "%", "groups whose attempts differ: only they carry a gradient"),
    "nll": ("Negative log-likelihood", "nats", "per sampled token; near 0 the policy has stopped exploring"),
    "learning_rate": ("Learning rate", "", "halved by the guards where needed"),
    "grad_norm": ("Gradient norm", "", "before clipping"),
    "logprob_gap": ("Log-probability gap", "nats", "largest difference between the sampler and the trainer"),
    "loss": ("Loss", "", "of the update"),
    "invalid": ("Invalid attempts", "", "no verdict could be reached; they train nothing"),
    "step_s": ("Seconds a step", "s", "sampling, scoring and update"),
}


@dataclass(frozen=True, slots=True)
class Tick:
    at: float  # percent of the axis, from the bottom or the left
    label: str


@dataclass(frozen=True, slots=True)
class Point:
    """x, y: percent of the plot, y from the top. label: what the value is, in words."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """segments: polylines of the raw values, smooth: of their running mean; both as SVG points in a 100 x 100 box."""

    title: str
    note: str
    latest: str
    segments: tuple[str, ...]
    smooth: tuple[str, ...]
    points: tuple[Point, ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    divider: float | None
    summary: str

    @property
    def points_json(self) -> list[list[float | str]]:
        return [[p.x, p.y, p.label] for p in self.points]


def curves(rows: Sequence[Mapping[str, Any]]) -> list[LineChart]:
    """One chart for each known number that any row holds."""
    found = []
    for key, (title, unit, note) in CURVES.items():
        chart = line_chart(title, unit, note, rows, [number(r.get(key)) for r in rows])
        if chart:
            found.append(chart)
    return found


def domain_curves(rows: Sequence[Mapping[str, Any]]) -> list[LineChart]:
    """The sampled reward of each domain, on one common scale from 0 to 1 (more where rewards go further)."""
    names = sorted({str(name) for r in rows for name in mapping(r.get("domain_reward"))})
    series = {n: [number(mapping(r.get("domain_reward")).get(n)) for r in rows] for n in names}
    every = [v for values in series.values() for v in values if v is not None and abs(v) <= LARGEST]
    scale = (min(0.0, *every), max(1.0, *every)) if every else (0.0, 1.0)
    charts = []
    for name in names:
        shares = [s for r in rows if (s := number(mapping(r.get("domain_share")).get(name))) is not None]
        note = f"now {100 * shares[-1]:.0f} % of the mixture" if shares else ""
        chart = line_chart(name, "", note, rows, series[name], scale)
        if chart:
            charts.append(chart)
    return charts


def line_chart(
    title: str,
    unit: str,
    note: str,
    rows: Sequence[Mapping[str, Any]],
    values: Sequence[float | None],
    scale: tuple[float, float] | None = None,
) -> LineChart | None:
    """A chart of `values` over the rows that hold one; None where none does. x is the order of the rows."""
    values = [_plottable(v) for v in values]
    where = [i for i, v in enumerate(values) if v is not None]
    if not where:
        return None
    first, last = where[0], where[-1]
    rows, values = rows[first : last + 1], values[first : last + 1]
    every = max(1, math.ceil(len(values) / MAX_POINTS))
    rows, values = rows[::every], [_mean(values[i : i + every]) for i in range(0, len(values), every)]
    present = [v for v in values if v is not None]
    low, high, step = _axis(*(scale or (min(present), max(present))), zero=unit == "%")
    width = max(1, len(values) - 1)

    def place(index: int, value: float) -> tuple[float, float]:
        x = 50.0 if len(values) == 1 else 100 * index / width
        return round(x, 2), round(100 - 100 * (value - low) / (high - low), 2)

    phases = [str(r.get("phase", "")) for r in rows]
    turn = next((i for i in range(1, len(phases)) if phases[i] != phases[i - 1]), None)
    smooth = _running_mean(values, phases)
    points = tuple(
        Point(*place(i, v), f"{_name(rows[i])}: {show(v, unit)}") for i, v in enumerate(values) if v is not None
    )
    x_indices = sorted({0, width // 2, len(values) - 1})
    return LineChart(
        title=title,
        note=note + (f"; each point is the mean of {every} steps" if every > 1 else ""),
        latest=show(present[-1], unit),
        segments=_polylines(values, phases, place),
        smooth=_polylines(smooth, phases, place) if len(present) > 2 * SMOOTH_STEPS and title not in EXACT else (),
        points=points,
        y_ticks=tuple(
            Tick(round(100 * (t - low) / (high - low), 2), show(t, unit if unit == "%" else ""))
            for t in _steps(low, high, step)
        ),
        x_ticks=tuple(Tick(place(i, low)[0], f"{number(rows[i].get('step')):g}") for i in x_indices),
        divider=None if turn is None else round(100 * (turn - 0.5) / width, 2),
        summary=f"{title}: from {show(present[0], unit)} to {show(present[-1], unit)} over {len(present)} points",
    )


def show(value: float, unit: str = "") -> str:
    """A number as a person reads it: shares as percent, three digits otherwise."""
    if unit == "%":
        return f"{100 * value:.0f} %"
    if value == 0:
        text = "0"
    elif abs(value) < 1e-3 or abs(value) >= 1e5:
        mantissa, exponent = f"{value:.2e}".split("e")
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    else:
        text = f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def _plottable(value: float | None) -> float | None:
    if value is None or abs(value) > LARGEST:
        return None
    return value if abs(value) > SMALLEST else 0.0


def _name(row: Mapping[str, Any]) -> str:
    phase = str(row.get("phase", "")).upper()
    return f"{phase} step {number(row.get('step')):g}".strip()


def _mean(values: Sequence[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if present else None


def _running_mean(values: Sequence[float | None], phases: Sequence[str]) -> list[float | None]:
    """Mean of the `SMOOTH_STEPS` values around each, of the same phase."""
    means: list[float | None] = []
    for i, value in enumerate(values):
        near = slice(max(0, i - SMOOTH_STEPS // 2), i + SMOOTH_STEPS // 2 + 1)
        span = [v for v, p in zip(values[near], phases[near], strict=True) if p == phases[i]]
        means.append(None if value is None else _mean(span))
    return means


def _polylines(values: Sequence[float | None], phases: Sequence[str], place: Any) -> tuple[str, ...]:
    """SVG point lists, broken at gaps and where a phase ends. A lone point becomes a short dash, to be seen."""
    lines: list[list[tuple[float, float]]] = [[]]
    for i, value in enumerate(values):
        if value is None or (i and phases[i] != phases[i - 1]):
            lines.append([])
        if value is not None:
            lines[-1].append(place(i, value))
    drawn = [
        line if len(line) > 1 else [(line[0][0] - 0.6, line[0][1]), (line[0][0] + 0.6, line[0][1])]
        for line in lines
        if line
    ]
    return tuple(" ".join(f"{x:g},{y:g}" for x, y in line) for line in drawn)


def _axis(low: float, high: float, zero: bool) -> tuple[float, float, float]:
    """Round ends and step (1, 2, 2.5 or 5 times a power of ten) with two to four intervals."""
    if zero or 0 < low < 0.5 * high:
        low = min(0.0, low)
    if high - low < 1e-12 * max(1.0, abs(high)) or high == low:
        pad = abs(high) or 1.0
        low, high = (0.0, 2 * pad) if high >= 0 else (-2 * pad, 0.0)
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(s * power for s in (0.25, 0.5, 1, 2, 2.5, 5, 10) if (high - low) / (s * power) <= 4)
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step


def _steps(low: float, high: float, step: float) -> list[float]:
    return [round(low + i * step, 12) for i in range(round((high - low) / step) + 1)]
