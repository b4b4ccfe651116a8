"""`posttrain init`: a folder with a recipe, tasks and a verifier of one's own, ready to run and to be changed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.exits import UserError, guarded

FILES = ("recipe.toml", "tasks.jsonl", "verifier.py")


@guarded
def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write.")] = Path(),
) -> None:
    """Writes a commented starter recipe with a domain of your own: recipe.toml, tasks.jsonl, verifier.py."""
    there = [name for name in FILES if (folder / name).exists()]
    if there:
        raise UserError(f"{folder / there[0]} exists and is not overwritten: choose another folder, or move it away")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("posttrain.cli") / "templates"
    for name in FILES:
        (folder / name).write_bytes((templates / name).read_bytes())
    recipe = folder / "recipe.toml"
    print(f"wrote {', '.join(FILES)} in {folder}")
    print(f"look at the tasks:  posttrain domains sample second-word --recipe {recipe}")
    print(f"train on them:      posttrain run {recipe}")
