"""Which of its goals a run met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from posttrain.dashboard.run_folder import ends, mapping, number

QUICKSTART = {"run_minutes": 10.0, "gain_points": 20.0, "peak_rss_gib": 4.0}


@dataclass(frozen=True, slots=True)
class Goal:
    """measured, wanted: as a person reads them. met: None where it was not measured."""

    name: str
    measured: str
    wanted: str
    met: bool | None

    @property
    def word(self) -> str:
        return "not measured" if self.met is None else "met" if self.met else "missed"


def goals(summary: Mapping[str, Any]) -> list[Goal]:
    """The goals of a run: the `goals` of its summary, else the quickstart's; `"goals": null` asks for none."""
    wanted = mapping(summary.get("goals", QUICKSTART))
    found = []
    for key, name, unit in (("run_minutes", "run time", "min"), ("peak_rss_gib", "peak memory", "GiB")):
        limit, value = number(wanted.get(key)), number(summary.get(key))
        if limit is not None:
            met = None if value is None else value <= limit
            found.append(Goal(name, "-" if value is None else f"{value:.1f} {unit}", f"at most {limit:g} {unit}", met))
    least = number(wanted.get("gain_points"))
    if least is not None:
        training = mapping(summary.get("training"))
        before, after = number(training.get("before")), number(training.get("after"))
        gain = None if before is None or after is None else round(100 * (after - before), 9)
        shown = "-" if gain is None else f"{gain:+.1f} points"
        found.insert(
            1 if found else 0,
            Goal("gain", shown, f"at least {least:g} points", None if gain is None else gain >= least),
        )
    if wanted:
        interval = ends(mapping(summary.get("retention")).get("interval"))
        shown = "-" if interval is None else f"[{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}] points"
        met = None if interval is None else interval[1] >= 0
        found.append(Goal("retention", shown, "not lower beyond its interval", met))
    return found
