"""Writes report.html: one file that holds the whole story of a run and needs nothing else, no network and no server.

    run folder ──► run_folder.read ──► sections (plain values) ──► templates/report.html.j2 ──► report.html

Invariants: every value is escaped by the template engine; what a policy wrote is shown, never run. Besides, the page's
own content policy forbids any script but the one whose hash it names, and any load from anywhere. A run that is empty,
half done or damaged gives a page that says what is missing. The file appears whole or not at all.

Bounded by: `PAIR_LIMIT` pairs of episodes of at most `TURN_LIMIT_CHARS` a turn, `charts.MAX_POINTS` points a curve.
"""

from __future__ import annotations

import base64
import hashlib
import os
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from posttrain.dashboard import charts
from posttrain.dashboard.goals import goals
from posttrain.dashboard.run_folder import RunFolder, ends, mapping, number, read
from posttrain.records import Failure

TEMPLATES = Path(__file__).parent / "templates"
PAIR_LIMIT = 60
TURN_LIMIT_CHARS = 6000
TURN_LIMIT = 40

VERDICTS = {
    "promote": ("Promoted", "The candidate is the champion of this run."),
    "refuse": ("Refused", "The champion stays."),
    "inconclusive": ("Inconclusive", "Not sure enough either way; the champion stays."),
}
ROLE_TITLES = {
    "training": "Trained domains",
    "retention": "Retention: not trained, must hold",
    "other": "Other domains",
}
COLOURS = {word: i for i, word in enumerate(Failure.ALL)}  # a colour means the same failure in every row
PRODUCERS = {
    "prompt": "prompt",
    "policy": "policy",
    "environment": "environment",
    "0": "prompt",
    "1": "policy",
    "2": "environment",
}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """One side of a domain, in percent: the value and the ends of its interval."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:.1f}\N{NO-BREAK SPACE}%"

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"{self.low:.1f} to {self.high:.1f}"


@dataclass(frozen=True, slots=True)
class Change:
    """A change in percentage points. tone: "up" or "down" where the interval excludes 0, else "flat"."""

    value: float
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return f"{self.value:+.1f}".replace("-", "−")

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"{self.low:+.1f} to {self.high:+.1f}".replace("-", "−")

    @property
    def tone(self) -> str:
        if self.low is None or self.high is None:
            return "flat"
        return "up" if self.low > 0 else "down" if self.high < 0 else "flat"


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    role: str
    n: str
    before: Accuracy | None
    after: Accuracy | None
    change: Change | None


def render(run_folder: Path) -> Path:
    """Writes `run_folder/report.html` from whatever the folder holds and returns its path.

    Raises ValueError where there is no such folder, OSError where it can not be written.
    """
    run = read(Path(run_folder))
    page = _environment().get_template("report.html.j2").render(_context(run))
    target = run.path / "report.html"
    draft = run.path / f".report.html.{os.getpid()}"
    try:
        # a lone surrogate can stand in JSON and not in UTF-8
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def visible(text: object) -> str:
    """Text with its invisible controls written out, so that it can neither hide nor reorder what a person reads."""
    shown = []
    for char in str(text):
        if char not in "\n\t" and unicodedata.category(char) in ("Cc", "Cf", "Cs"):
            shown.append(f"\\u{ord(char):04x}")
        else:
            shown.append(char)
    return "".join(shown)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["visible"] = visible
    return environment


def _context(run: RunFolder) -> dict[str, Any]:
    summary = run.summary
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    decision = mapping(summary.get("decision"))
    reasons = decision.get("reasons")
    rows = _rows(run)
    return {
        # both are files of this package, not data
        "style": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        "script": Markup(script),
        "script_hash": f"sha256-{digest}",
        "run": run,
        "name": run.path.resolve().name,
        "facts": _facts(summary),
        "headline": _headline(summary),
        "verdict": str(decision.get("verdict", "")) if decision.get("verdict") in VERDICTS else "",
        "verdict_words": VERDICTS.get(
            str(decision.get("verdict")), ("Not decided", "The run has not reached the gate.")
        ),
        "reasons": [str(r) for r in reasons] if isinstance(reasons, list) else [],
        "tiles": _tiles(summary),
        "goals": goals(summary) if summary else [],
        "confidence": f"{100 * (number(summary.get('confidence')) or 0.95):g} %",
        "groups": [
            (ROLE_TITLES[role], [r for r in rows if r.role == role])
            for role in ROLE_TITLES
            if any(r.role == role for r in rows)
        ],
        "means": [r for role in ("training", "retention") if (r := _mean_row(summary, role))],
        "curves": charts.curves(run.metrics),
        "domain_curves": charts.domain_curves(run.metrics),
        "diagnosis": _diagnosis(run.diagnosis),
        "pairs": _pairs(run),
        "cost": _cost(mapping(summary.get("cost"))),
        "versions": sorted((str(k), str(v)) for k, v in mapping(summary.get("versions")).items()),
        "command": str(summary.get("command") or ""),
    }


def _facts(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(key, str(summary[key])) for key in ("model", "recipe", "seed") if summary.get(key) is not None]


def _headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """One sentence and its footing."""
    row = _mean_row(summary, "training")
    if row is None or row.before is None or row.after is None or row.change is None:
        return "This run has no result yet", "The final numbers appear here once both evaluations are done."
    points = f"{abs(row.change.value):.1f}\N{NO-BREAK SPACE}points"
    numbers = f"from {row.before} to {row.after}"
    sure = {"up": f"rose by {points}", "down": f"fell by {points}", "flat": "did not surely change"}[row.change.tone]
    footing = f"Macro mean over the trained domains, {row.n} held-out tasks, paired"
    return f"Held-out accuracy {sure}, {numbers}", footing + (
        f"; change {row.change.interval} points" if row.change.interval else ""
    )


def _percent(value: object, interval: object) -> Accuracy | None:
    share, bounds = number(value), ends(interval)
    if share is None:
        return None
    low, high = (100 * bounds[0], 100 * bounds[1]) if bounds else (None, None)
    return Accuracy(100 * share, low, high)


def _change(before: Accuracy | None, after: Accuracy | None, interval: object) -> Change | None:
    if before is None or after is None:
        return None
    bounds = ends(interval)
    low, high = (100 * bounds[0], 100 * bounds[1]) if bounds else (None, None)
    return Change(after.value - before.value, low, high)


def _row(name: str, role: str, row: Mapping[str, Any]) -> Row:
    before, after = (
        _percent(row.get("before"), row.get("interval_before")),
        _percent(row.get("after"), row.get("interval_after")),
    )
    n = number(row.get("n"))
    change = _change(before, after, row.get("interval_change", row.get("interval")))
    return Row(name, role, "–" if n is None else f"{n:.0f}", before, after, change)


def _mean_row(summary: Mapping[str, Any], role: str) -> Row | None:
    row = mapping(summary.get(role))
    return _row(f"mean of {role}", role, row) if row else None


def _rows(run: RunFolder) -> list[Row]:
    """The domains of the summary; before there is one, those of the evaluations."""
    domains = {str(name): mapping(row) for name, row in mapping(run.summary.get("domains")).items()}
    if not domains:
        before, after = (mapping(e.get("by_domain")) for e in (run.eval_before, run.eval_after))
        for name in sorted({str(n) for n in (*before, *after)}):
            old, new = mapping(before.get(name)), mapping(after.get(name))
            domains[name] = {
                "before": old.get("accuracy"),
                "after": new.get("accuracy"),
                "n": (new or old).get("n"),
                "interval_before": [old.get("low"), old.get("high")],
                "interval_after": [new.get("low"), new.get("high")],
            }
    rows = [
        _row(name, str(row.get("role")) if row.get("role") in ROLE_TITLES else "other", row)
        for name, row in domains.items()
    ]
    return sorted(rows, key=lambda r: (-(r.change.value if r.change else 0.0), r.name))


def _tiles(summary: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(label, value, detail, tone) of the numbers at the top."""
    tiles = []
    for role, label in (("training", "trained domains"), ("retention", "retention")):
        row = _mean_row(summary, role)
        if row and row.change:
            detail = f"{row.before} → {row.after}" + (
                f", interval {row.change.interval}" if row.change.interval else ""
            )
            tiles.append((f"points, {label}", str(row.change), detail, row.change.tone))
    minutes, memory = number(summary.get("run_minutes")), number(summary.get("peak_rss_gib"))
    if minutes is not None:
        tiles.append(("minutes, whole run", f"{minutes:.1f}", "", "flat"))
    if memory is not None:
        tiles.append(("GiB peak memory", f"{memory:.2f}", "", "flat"))
    return tiles


def _diagnosis(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for name, found in sorted(mapping(value.get("domains")).items()):
        row = mapping(found)
        failures = {str(k): c for k, v in mapping(row.get("failures")).items() if (c := number(v))}
        total = sum(failures.values())
        label = str(row.get("learnable", "unmeasured"))
        rows.append(
            {
                "name": str(name),
                "learnable": label,
                "kind": label.split(" ")[0].lower() if label.isprintable() else "",
                "pass_rate": _shown(row.get("pass_rate"), "%"),
                "mixed": _shown(row.get("mixed_share"), "%"),
                "variance": _shown(row.get("within_variance", row.get("variance"))),
                "attempts": _shown(row.get("attempts")),
                "invalid": _shown(row.get("invalid")),
                "failures": [
                    (w, f"{c:.0f}", round(100 * c / total, 2), COLOURS.get(w, 5)) for w, c in failures.items()
                ],
            }
        )
    return rows


def _shown(value: object, unit: str = "") -> str:
    found = number(value)
    return "–" if found is None else charts.show(found, unit)


def _pairs(run: RunFolder) -> list[dict[str, Any]]:
    """Sample episodes by task, what improved first; a domain's best example comes before any domain's second."""
    tasks: dict[str, dict[str, Any]] = {}
    for episode in run.episodes:
        when = episode.get("when")
        if when not in ("before", "after"):
            continue
        task_id = str(episode.get("task_id", "?"))
        pair = tasks.setdefault(
            task_id, {"task_id": task_id, "domain": str(episode.get("domain", "?")), "before": None, "after": None}
        )
        if pair[when] is None:
            pair[when] = _episode(episode)
    by_domain: dict[str, list[dict[str, Any]]] = {}
    for pair in tasks.values():
        old, new = (pair[when]["number"] if pair[when] else None for when in ("before", "after"))
        pair["gain"] = None if old is None or new is None else new - old
        by_domain.setdefault(pair["domain"], []).append(pair)
    ranked = []
    for domain, pairs in by_domain.items():
        pairs.sort(key=lambda p: (p["gain"] is None, -(p["gain"] or 0.0)))
        ranked += [(pair["gain"] is None, place, domain, pair) for place, pair in enumerate(pairs)]
    ranked.sort(key=lambda item: item[:3])
    return [pair for *_, pair in ranked[:PAIR_LIMIT]]


def _episode(episode: Mapping[str, Any]) -> dict[str, Any]:
    found = episode.get("turns")
    turns = []
    for turn in (mapping(t) for t in (found if isinstance(found, list) else [])[:TURN_LIMIT]):
        producer = PRODUCERS.get(str(turn.get("producer")).lower(), "environment")
        text = str(turn.get("text", ""))
        rest = max(0, len(text) - TURN_LIMIT_CHARS)
        turns.append({"producer": producer, "text": visible(text[:TURN_LIMIT_CHARS]), "rest": rest})
    reward = number(episode.get("reward"))
    return {
        "turns": turns,
        "number": reward,
        "reward": "no verdict" if reward is None else f"reward {charts.show(reward)}",
        "failure": visible(episode.get("failure") or ""),
        "tone": "flat" if reward is None else "up" if reward >= 0.5 and not episode.get("failure") else "down",
    }


def _cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds by phase, longest first, and the counts beside them. A phase may also be {"seconds", "tokens"}."""
    seconds: dict[str, float] = {}
    counts: dict[str, float] = {}
    for key, value in cost.items():
        name, nested = str(key), mapping(value)
        for inner, amount in nested.items() if nested else [("", value)]:
            found = number(amount)
            if found is None or found < 0:
                continue
            if any(word in f"{name} {inner}" for word in ("tokens", "samples", "episodes", "steps", "updates")):
                counts[f"{name} {inner}".replace("_", " ").strip()] = found
            else:
                label = inner if name in ("seconds", "phases") else name
                seconds[label.removesuffix("_s").replace("_", " ")] = found
    longest, total = max(seconds.values(), default=0.0), sum(seconds.values())
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    phases = [(name, _duration(s), *_shares(s, longest, total)) for name, s in ordered]
    return {
        "phases": phases,
        "total": _duration(total),
        "counts": [(name, f"{value:,.0f}") for name, value in counts.items()],
    }


def _shares(seconds: float, longest: float, total: float) -> tuple[float, str]:
    """Percent of the longest phase, for the bar, and of all, in words."""
    return (round(100 * seconds / longest, 2), f"{100 * seconds / total:.0f} %") if longest else (0.0, "")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
