"""`posttrain run`: a recipe from the first evaluation to the gate."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.exits import NO, guarded
from posttrain.cli.options import Json, Recipes, Settings


@guarded
def run(
    recipes: Recipes,
    settings: Settings = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="Where the run writes; default runs/NAME.")] = None,
    as_json: Json = False,
) -> None:
    """Evaluates, trains, evaluates again, decides. After an interruption the same command goes on."""
    from posttrain.config import load_recipe

    loaded = load_recipe(recipes, settings or [])  # before torch is loaded: a typo is told at once

    from posttrain.loop.run import run_recipe
    from posttrain.loop.session import Interrupted
    from posttrain.observability import reporter_for

    command = shlex.join(["posttrain", *sys.argv[1:]])
    again = shlex.join([sys.argv[0] if "posttrain" in Path(sys.argv[0]).name else "posttrain", *sys.argv[1:]])
    reporter = reporter_for(json_lines=as_json)
    try:
        summary = run_recipe(loaded, folder, reporter, command=command)
    except (Interrupted, KeyboardInterrupt, asyncio.CancelledError):
        raise KeyboardInterrupt(f"stopped, and saved up to the last step; to go on: {again}") from None
    finally:
        reporter.close()
    from posttrain.dashboard import print_summary, render

    page = render(summary.folder)
    if as_json:
        import json

        print(json.dumps(summary.values))
    else:
        from rich.console import Console

        print_summary(summary.values, Console())
        print(f"\nreport: {page}")
    if not summary.promoted:
        raise typer.Exit(NO)
