"""The command `posttrain`: the list of commands, and nothing heavier than typer until one of them runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from posttrain.cli import config, doctor, domains, evaluate, init, model, run, runs
from posttrain.cli.exits import INTERRUPTED

app = typer.Typer(
    name="posttrain",
    help="Turns a pretrained language model into one that does real work.",
    epilog=(
        "Exit codes: 0 done (for run: and promoted), 1 the gate did not promote or a check failed, "
        "2 something you can mend, 3 the machine or posttrain failed, 130 interrupted."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("run")(run.run)
app.command("eval")(evaluate.evaluate)
app.command("show")(runs.show)
app.command("report")(runs.report)
app.command("doctor")(doctor.doctor)
app.command("init")(init.init)
app.add_typer(model.app, name="model")
app.add_typer(domains.app, name="domains")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        import posttrain

        print(posttrain.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works at the end of a line too.")] = False,
) -> None:
    if debug:
        os.environ["POSTTRAIN_DEBUG"] = "1"


def main() -> None:
    arguments = sys.argv[1:]
    if "--debug" in arguments:  # so that it can simply be appended to the line that failed
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    try:
        app(arguments)
    except KeyboardInterrupt:  # while a command was still being loaded
        sys.exit(INTERRUPTED)
