"""`posttrain domains`: what there is to learn, and how its tasks look."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from posttrain.cli.exits import UserError, guarded
from posttrain.cli.options import Json

if TYPE_CHECKING:
    from posttrain.records import Task
    from posttrain.tasks.domain import Domain

app = typer.Typer(help="Shows the domains: built in, or of a recipe.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="DOMAIN", help="Name of a domain.")]
Recipe = Annotated[Path | None, typer.Option("--recipe", help="Look at the [[domain]] entries of this recipe too.")]


def find(name: str, recipe: Path | None) -> Domain:
    """The domain of this name: one of the recipe's own, else a built-in one."""
    own = own_domains(recipe)
    if name in own:
        return own[name]
    from posttrain.tasks.catalogue import get_domain

    return get_domain(name)


def own_domains(recipe: Path | None) -> dict[str, Domain]:
    """The recipe's own domains by name, as `posttrain run` would make them."""
    if recipe is None:
        return {}
    from posttrain.config import load_recipe
    from posttrain.loop.preflight import own_domain

    loaded = load_recipe([recipe])
    return {section.name: own_domain(section, loaded.base_folder) for section in loaded.recipe.domain}


@app.command("list")
@guarded
def list_(recipe: Recipe = None, as_json: Json = False) -> None:
    """Lists the domains with one line each."""
    from posttrain.tasks.catalogue import get_domain, list_domains

    found = [*own_domains(recipe).values(), *(get_domain(name) for name in list_domains())]
    cards = [d.card() for d in found]
    if as_json:
        import json

        print(json.dumps([card.to_json() for card in cards]))
        return
    width = max(len(card.name) for card in cards)
    for card in cards:
        print(f"{card.name:<{width}}  {card.environment:<15}  {card.description or f'checked by {card.verifier}'}")


@app.command("show")
@guarded
def show(name: Name, recipe: Recipe = None, as_json: Json = False) -> None:
    """Shows a domain's card: what counts as right, its splits, known ways to cheat, what an untrained model reaches."""
    card = find(name, recipe).card().to_json()
    if as_json:
        import json

        print(json.dumps(card))
        return
    for key, value in card.items():
        if isinstance(value, dict):
            value = "; ".join(f"{inner}: {_words(row)}" for inner, row in value.items())
        elif isinstance(value, list | tuple):
            value = "; ".join(_words(row) for row in value)
        if value not in ("", None):
            print(f"{key:<12} {value}")


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items() if v is not None)
    return str(value)


@app.command("sample")
@guarded
def sample(
    name: Name,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000, help="How many tasks.")] = 3,
    split: Annotated[str, typer.Option("--split", help="train, dev or sealed.")] = "train",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which tasks.")] = 0,
    recipe: Recipe = None,
    as_json: Json = False,
) -> None:
    """Prints some tasks: the prompt as the model sees it, and the answer it is checked against."""
    if split not in ("train", "dev", "sealed"):
        raise UserError(f"--split {split}: give train, dev or sealed")
    tasks = find(name, recipe).draw(count, split, seed)
    if as_json:
        import json

        print(json.dumps([_as_json(task) for task in tasks], default=str))
        return
    for task in tasks:
        print(f"--- {task.id}")
        for message in task.prompt:
            print(f"[{message.role}] {message.content}" if task.render == "chat" else message.content)
        if task.answer is not None:
            print(f"=> {task.answer}")


def _as_json(task: Task) -> dict[str, Any]:
    return {
        "id": task.id,
        "prompt": [m.to_json() for m in task.prompt],
        "answer": task.answer,
        "render": task.render,
        "verifier": task.verifier,
        "difficulty": task.difficulty,
    }
