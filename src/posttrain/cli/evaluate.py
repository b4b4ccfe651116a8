"""`posttrain eval`: one measurement of one model, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli.exits import UserError, guarded
from posttrain.cli.options import Json


@guarded
def evaluate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model source, as in `posttrain model import`.")],
    domains: Annotated[str, typer.Option("--domains", metavar="A,B", help="Domains to measure, separated by commas.")],
    items: Annotated[int, typer.Option("--items", min=1, help="Held-out tasks per domain.")] = 30,
    split: Annotated[str, typer.Option("--split", help="dev, or sealed for the one final measurement.")] = "dev",
    adapter: Annotated[Path | None, typer.Option("--adapter", help="Folder of an adapter in PEFT format.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Which held-out tasks are drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Measures a model on held-out tasks, greedily, with intervals."""
    names = [name.strip() for name in domains.split(",") if name.strip()]
    if not names:
        raise UserError("--domains names none: give some of `posttrain domains list`, separated by commas")
    if split not in ("dev", "sealed"):
        raise UserError(f"--split {split}: give dev or sealed; train tasks measure nothing")

    from posttrain.loop.evaluate import evaluate_model
    from posttrain.observability import reporter_for

    reporter = reporter_for(json_lines=as_json)
    try:
        result = evaluate_model(
            model, names, items_per_domain=items, split=split, adapter=adapter, seed=seed, reporter=reporter
        )
    finally:
        reporter.close()
    if as_json:
        import json

        print(json.dumps(result.to_json()))
        return
    width = max(len("domain"), *(len(name) for name in result.by_domain))
    print(f"{'domain':<{width}}     n  accuracy  {result.confidence:.0%} interval  without verdict")
    for name, score in result.by_domain.items():
        if score.accuracy is None or score.low is None or score.high is None:
            print(f"{name:<{width}}  {score.n:>4}         -                -  {score.invalid:>15}")
        else:
            interval = f"{score.low:.3f} to {score.high:.3f}"
            print(f"{name:<{width}}  {score.n:>4}     {score.accuracy:.3f}  {interval}  {score.invalid:>15}")
    if result.macro is not None:
        print(f"mean over domains {result.macro.value:.3f} ({result.macro.low:.3f} to {result.macro.high:.3f})")
