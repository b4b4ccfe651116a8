"""What every benchmark shares: repeated measurement, a table for people, JSON rows for programs.

A row is {"name", "value", "unit", "goal", "runs", "min", "max"}: value is the median of `runs` measurements; goal is
text such as "<= 4" or null. A missed goal is shown as missed; it does not change the exit code (a loaded machine is
not a bug).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    value: float
    unit: str
    goal: str | None
    runs: int
    min: float
    max: float

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        kind, _, number = self.goal.partition(" ")
        met = self.value <= float(number) if kind == "<=" else self.value >= float(number)
        return "met" if met else "missed"


def row(name: str, values: Sequence[float], unit: str, goal: str | None = None) -> Row:
    """A row from repeated measurements."""
    return Row(name, statistics.median(values), unit, goal, len(values), min(values), max(values))


def arguments(description: str) -> argparse.Namespace:
    """--quick and --json, as every benchmark has them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: ends in a minute or two")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    return parser.parse_args()


def finish(rows: Sequence[Row], json_path: Path | None, notes: Sequence[str] = ()) -> None:
    """Prints the table, then writes the JSON where it was asked for."""
    head = ("metric", "median", "min", "max", "unit", "goal", "")
    body = [(r.name, f"{r.value:.4g}", f"{r.min:.4g}", f"{r.max:.4g}", r.unit, r.goal or "", r.verdict) for r in rows]
    widths = [max(len(line[i]) for line in (head, *body)) for i in range(len(head))]
    for line in (head, *body):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print(
        f"machine: {platform.machine()}, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    for note in notes:
        print(note)
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


def repeat(times: int, measure: Callable[[], float]) -> list[float]:
    """`times` measurements after one that is thrown away."""
    measure()
    return [measure() for _ in range(times)]
