"""Options that several commands share, in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Recipes = Annotated[list[Path], typer.Argument(metavar="RECIPE...", help="Recipe files; a later one wins, key by key.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Overrides a value, like rl.steps=10; repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, for a script.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN_FOLDER", help="The folder that `posttrain run` wrote.")]
