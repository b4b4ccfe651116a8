"""`posttrain config`: what a recipe adds up to, and where each value came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from posttrain.cli.exits import guarded
from posttrain.cli.options import Json, Recipes, Settings

if TYPE_CHECKING:
    from posttrain.config import LoadedRecipe

app = typer.Typer(help="Shows what a recipe adds up to.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Shows what a recipe adds up to."""


@app.command("show")
@guarded
def show(
    recipes: Recipes,
    settings: Settings = None,
    why: Annotated[bool, typer.Option("--why", help="Say which line, flag or default each value is from.")] = False,
    as_json: Json = False,
) -> None:
    """Prints every value of a recipe, as a recipe."""
    from posttrain.config import load_recipe, recipe_fingerprint

    loaded = load_recipe(recipes, settings or [])
    if as_json:
        import json

        document: dict[str, Any] = {
            "recipe": loaded.recipe.model_dump(mode="json"),
            "fingerprint": recipe_fingerprint(loaded.recipe),
        }
        if why:
            document["origins"] = {key: str(origin) for key, origin in loaded.origins.items()}
        print(json.dumps(document))
    else:
        print("\n".join(as_toml(loaded, why)))


def as_toml(loaded: LoadedRecipe, why: bool) -> list[str]:
    """The recipe as TOML lines that load to the same recipe; unset values are comments."""
    from posttrain.config.explain import toml_value

    rows: list[tuple[str, str]] = []
    section = ""
    for key, origin in loaded.origins.items():
        owner, _, name = key.rpartition(".")
        if owner != section:
            section = owner
            rows += [("", ""), ("[[domain]]" if owner.startswith("domain.") else f"[{owner}]", "")]
        value = loaded.value(key)
        line = f"# {name} is unset" if value is None else f"{name} = {toml_value(value)}"
        rows.append((line, f"# {origin}" if why else ""))
    width = min(60, max((len(line) for line, _ in rows), default=0))
    return [f"{line:<{width}}  {origin}" if origin else line for line, origin in rows[1:]]
