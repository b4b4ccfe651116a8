"""Reads a run folder for a person: whatever is there, at any moment of a run.

Invariants: a file that is missing, half written or of another shape never stops a report; it becomes a line in
`missing` or `problems`. Numbers that are not finite are absent. Nothing in these files is trusted: episodes hold text
that a policy wrote.

summary.json: run_minutes, peak_rss_gib, seed; training and retention {before, after, n, interval: [low, high] of the
    change}; domains {name: {role, before, after, n, interval_before, interval_after, interval_change}} (fractions);
    decision {verdict, reasons}; versions {name: text}; cost {name_s: seconds, name_tokens: count}; optional: model,
    recipe, command, confidence, goals {run_minutes, gain_points, peak_rss_gib}.
metrics.jsonl: one row a step: {"step", "phase": "sft" | "rl", and any of the numbers of `charts.CURVES`, and
    "domain_reward", "domain_share": {name: number}}.
diagnosis.json: `Diagnosis.to_json`. eval_before.json, eval_after.json: `EvalResult.to_json`.
episodes.json: [{task_id, domain, when: "before" | "after", turns: [{producer, text}], reward, failure}].

Bounded by: `FILE_LIMIT_BYTES` a file and `EPISODE_LIMIT` episodes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_LIMIT_BYTES = 64 * 2**20  # far above what a run writes; a browser could not show more
EPISODE_LIMIT = 400

PURPOSE = {
    "summary.json": "the final numbers and the decision (written when the run ends)",
    "metrics.jsonl": "the training curves (written from the first step on)",
    "diagnosis.json": "what the model could do before training (written by the diagnosis)",
    "eval_before.json": "the first evaluation (written before training)",
    "eval_after.json": "the second evaluation (written after training)",
    "episodes.json": "sample episodes (written by the evaluations)",
}


@dataclass(slots=True)
class RunFolder:
    """What could be read. missing: file -> what it would hold. problems: a line for each file that is damaged."""

    path: Path
    summary: Mapping[str, Any] = field(default_factory=dict)
    metrics: list[Mapping[str, Any]] = field(default_factory=list)
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    eval_before: Mapping[str, Any] = field(default_factory=dict)
    eval_after: Mapping[str, Any] = field(default_factory=dict)
    episodes: list[Mapping[str, Any]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read(path: Path) -> RunFolder:
    """Everything that a report shows. Raises ValueError where `path` is no folder."""
    if not path.is_dir():
        raise ValueError(f"there is no run folder {path}: give the folder that `posttrain run` wrote")
    run = RunFolder(path)
    run.summary = mapping(_json(run, "summary.json"))
    run.diagnosis = mapping(_json(run, "diagnosis.json"))
    run.eval_before = mapping(_json(run, "eval_before.json"))
    run.eval_after = mapping(_json(run, "eval_after.json"))
    run.metrics = _metrics(run)
    found = _json(run, "episodes.json")
    run.episodes = [e for e in found if isinstance(e, Mapping)][:EPISODE_LIMIT] if isinstance(found, list) else []
    return run


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number(value: object) -> float | None:
    """The value where it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of a float
        return None


def ends(value: object) -> tuple[float, float] | None:
    """An interval given as [low, high] or {"low", "high"}, else None."""
    pair = [value.get("low"), value.get("high")] if isinstance(value, Mapping) else value
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    low, high = number(pair[0]), number(pair[1])
    return None if low is None or high is None else (low, high)


def _text(run: RunFolder, name: str) -> str | None:
    path = run.path / name
    try:
        if not path.is_file():
            run.missing[name] = PURPOSE[name]
            return None
        if path.stat().st_size > FILE_LIMIT_BYTES:
            run.problems.append(f"{name} is larger than {FILE_LIMIT_BYTES // 2**20} MiB and was left out")
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        run.problems.append(f"{name} can not be read: {error.strerror}")
        return None


def _json(run: RunFolder, name: str) -> object:
    text = _text(run, name)
    if text is None:
        return None
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        run.problems.append(f"{name} is no complete JSON (half written?) and was left out")
        return None
    if not isinstance(value, list if name == "episodes.json" else dict):
        run.problems.append(f"{name} does not hold what it should and was left out")
        return None
    return value


def _metrics(run: RunFolder) -> list[Mapping[str, Any]]:
    """The rows in order; of a step that was written twice (a resumed run) the last one."""
    text = _text(run, "metrics.jsonl")
    rows: dict[tuple[str, float], Mapping[str, Any]] = {}
    broken = 0
    lines = [line for line in (text or "").splitlines() if line.strip()]
    for line in lines:
        try:
            row = mapping(json.loads(line))
        except (ValueError, RecursionError):
            broken += 1
            continue
        step = number(row.get("step"))
        if step is None:
            broken += 1
            continue
        key = (str(row.get("phase", "")), step)
        rows.pop(key, None)
        rows[key] = row
    if broken:
        run.problems.append(f"metrics.jsonl: {broken} of {len(lines)} lines are no complete rows and were left out")
    return list(rows.values())
