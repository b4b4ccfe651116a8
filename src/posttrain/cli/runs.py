"""`posttrain show` and `posttrain report`: look at a run, finished or not. Reads files only; needs no model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from posttrain.cli.exits import guarded
from posttrain.cli.options import Json, RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console


@guarded
def show(
    folder: RunFolder,
    episodes: Annotated[int, typer.Option("--episodes", min=0, help="How many sample episodes to print.")] = 3,
    as_json: Json = False,
) -> None:
    """Shows a run in the terminal: what changed, what was decided, and sample episodes."""
    from posttrain.dashboard.run_folder import read

    found = read(folder)
    if as_json:
        import json

        print(json.dumps({"summary": found.summary, "problems": found.problems, "episodes": found.episodes[:episodes]}))
        return
    from rich.console import Console

    from posttrain.dashboard import print_summary

    console = Console()
    if found.summary:
        print_summary(found.summary, console)
    else:
        rows = [row for row in found.metrics if "step" in row]
        where = f"{len(rows)} steps are done" if rows else "no step is done yet"
        console.print(f"{folder} has no summary yet: {where}", markup=False, highlight=False)
    for episode in found.episodes[:episodes]:
        _print_episode(episode, console)
    for problem in found.problems:
        console.print(problem, style="yellow", markup=False, highlight=False)


@guarded
def report(folder: RunFolder) -> None:
    """Writes the HTML report of a run again, from what its folder holds."""
    from posttrain.dashboard import render

    print(render(folder))


def _print_episode(episode: Mapping[str, Any], console: Console) -> None:
    """One episode; what the policy wrote is shown as text, never as markup or terminal control."""
    from rich.text import Text

    from posttrain.dashboard.report import visible

    reward = episode.get("reward")
    worth = "no verdict" if reward is None else f"reward {reward}"
    head = f"\n{episode.get('task_id', '?')}  {episode.get('when', '')}  {worth}"
    if episode.get("failure"):
        head += f"  ({episode['failure']})"
    console.print(Text(visible(head), "bold"))
    turns = episode.get("turns")
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, dict):
            producer = str(turn.get("producer", "?")).lower()
            style = {"policy": "green", "environment": "yellow"}.get(producer, "dim")
            console.print(Text(f"{producer:>11} | {visible(turn.get('text', ''))}", style))
