"""The end of a run in the terminal: what changed, what was decided and why, and which goals were met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posttrain.dashboard.goals import goals
from posttrain.dashboard.run_folder import ends, mapping, number

STYLES = {"promote": "bold green", "refuse": "bold red", "inconclusive": "bold yellow"}
WORDS = {
    "promote": "PROMOTE  the candidate is this run's champion",
    "refuse": "REFUSE  the champion stays",
    "inconclusive": "INCONCLUSIVE  not sure enough; the champion stays",
}
ROLE_ORDER = {"training": 0, "retention": 1}


def print_summary(summary: Mapping[str, Any], console: Console) -> None:
    """Prints the contents of summary.json; what is missing shows as a dash. Names are never read as markup."""
    console.print(_accuracy_table(summary))
    decision = mapping(summary.get("decision"))
    verdict = str(decision.get("verdict", ""))
    console.print(
        Text("\n" + WORDS.get(verdict, "NOT DECIDED  the run has not reached the gate"), STYLES.get(verdict, "bold"))
    )
    reasons = decision.get("reasons")
    for reason in reasons if isinstance(reasons, list) else []:
        console.print(Text(f"  {reason}"))
    rows = goals(summary)
    if rows:
        table = Table("goal", "measured", "wanted", "", box=None, pad_edge=False, header_style="dim")
        for goal in rows:
            style = "yellow" if goal.met is None else "green" if goal.met else "red"
            table.add_row(goal.name, goal.measured, goal.wanted, Text(goal.word, style))
        console.print()
        console.print(table)


def _accuracy_table(summary: Mapping[str, Any]) -> Table:
    table = Table(
        title="held-out accuracy",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    table.add_column("domain", overflow="fold")
    table.add_column("role")
    for name in ("n", "before", "after", "change"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("interval", no_wrap=True)
    domains = {str(name): mapping(row) for name, row in mapping(summary.get("domains")).items()}
    for name in sorted(domains, key=lambda d: (ROLE_ORDER.get(str(domains[d].get("role")), 2), d)):
        row = domains[name]
        _add(table, Text(name), str(row.get("role", "-")), row, row.get("interval_change"))
    for role in ("training", "retention"):
        row = mapping(summary.get(role))
        if row:
            table.add_section()
            _add(table, Text(f"mean of {role}", "bold"), role, row, row.get("interval"))
    return table


def _add(table: Table, name: Text, role: str, row: Mapping[str, Any], interval: object) -> None:
    before, after, n = number(row.get("before")), number(row.get("after")), number(row.get("n"))
    change, bounds = (None if before is None or after is None else 100 * (after - before)), ends(interval)
    style = "" if bounds is None else "green" if bounds[0] > 0 else "red" if bounds[1] < 0 else ""
    table.add_row(
        name,
        Text(role),
        "-" if n is None else f"{n:.0f}",
        _percent(before),
        _percent(after),
        Text("-" if change is None else f"{change:+.1f}", style),
        "" if bounds is None else Text(f"[{100 * bounds[0]:+.1f}, {100 * bounds[1]:+.1f}]", "dim"),
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
