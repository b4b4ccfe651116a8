"""The last thing a run prints: the table, the decision with its reasons, and the goals as met or missed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from posttrain.dashboard import print_summary
from posttrain.dashboard.goals import goals


def printed(summary: dict[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_summary(summary, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_summary_shows_domains_decision_and_goals(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    text = printed(summary)
    arithmetic = next(line for line in text.splitlines() if line.startswith("arithmetic"))
    assert arithmetic.split()[1:3] == ["training", "30"] and "36.7 %" in arithmetic and "+33.3" in arithmetic
    assert "PROMOTE" in text and summary["decision"]["reasons"][1] in text
    assert text.index("xml tool call") < text.index("capitals") < text.index("mean of training")
    assert text.count(" met") == 4


def test_goals_are_missed_where_they_are_missed() -> None:
    summary = {
        "run_minutes": 10.1,
        "peak_rss_gib": 4.5,
        "training": {"before": 0.3, "after": 0.49, "n": 210, "interval": [0.1, 0.3]},
        "retention": {"before": 0.6, "after": 0.4, "n": 60, "interval": [-0.3, -0.1]},
    }
    assert [g.word for g in goals(summary)] == ["missed"] * 4
    better = {
        **summary,
        "training": {"before": 0.356, "after": 0.556},
        "retention": {"interval": [-0.1, 0.0]},
        "run_minutes": 10.0,
    }
    assert {g.name: g.word for g in goals(better)} == {
        "run time": "met",
        "gain": "met",
        "peak memory": "missed",
        "retention": "met",
    }


def test_what_was_not_measured_is_not_called_missed() -> None:
    assert {g.word for g in goals({})} == {"not measured"}
    assert goals({"goals": None}) == []
    assert [g.name for g in goals({"goals": {"gain_points": 5}})] == ["gain", "retention"]
    text = printed({})
    assert "NOT DECIDED" in text and "not measured" in text


def test_a_name_is_printed_as_it_is() -> None:
    row = {"role": "training", "before": 0.1, "after": 0.2, "n": 5, "interval_change": [-0.1, 0.3]}
    text = printed({"domains": {"[red]x[/red]": row}, "decision": {"verdict": "refuse", "reasons": ["[/bold] odd"]}})
    assert "[red]x[/red]" in text and "[/bold] odd" in text and "REFUSE" in text
