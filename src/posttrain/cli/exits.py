"""How a command ends: the exit codes, and one line for a person instead of a traceback.

| code | means |
|---|---|
| 0 | done; for `run`: and the candidate was promoted |
| 1 | done, and the answer is no: the gate did not promote, or a check failed |
| 2 | the user can mend it: arguments, recipe, tasks, model source |
| 3 | the machine or posttrain itself failed: disk, memory, sandbox, a bug |
| 130 | interrupted (Ctrl-C) |
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec

import typer

P = ParamSpec("P")

OK, NO, USER_ERROR, FAULT, INTERRUPTED = 0, 1, 2, 3, 130
CLOSED_PIPE = 141  # what a shell reports for a program that SIGPIPE ended

PACKAGE = str(Path(__file__).resolve().parent.parent)


class UserError(ValueError):
    """What the command line itself refuses; one line with the mend."""


def debugging() -> bool:
    """Whether tracebacks are wanted: `--debug`, or POSTTRAIN_DEBUG=1."""
    return os.environ.get("POSTTRAIN_DEBUG", "") not in ("", "0")


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The boundary around a command: every exception becomes a line on stderr and one of the codes above."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()  # so that a closed pipe shows here, and not while Python shuts down
        except KeyboardInterrupt as error:
            _end(INTERRUPTED, str(error) or "interrupted", error)
        except BrokenPipeError:
            # Who reads our output has gone; say nothing more, not even while Python shuts down.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(CLOSED_PIPE) from None
        except Exception as error:  # the outermost boundary: whatever it is, a person gets a line and a script a code
            if type(error).__module__.startswith("typer") or type(error).__module__.startswith("click"):
                raise
            _end(*judge(error), error)

    return run


def judge(error: Exception) -> tuple[int, str]:
    """(exit code, line) for an exception that ended a command."""
    message = next(iter(str(error).splitlines()), "")
    if isinstance(error, ValueError) and _is_ours(error):
        return USER_ERROR, message
    if isinstance(error, MemoryError) or "can't allocate memory" in message:  # torch says it with a RuntimeError
        return FAULT, "out of memory: close programs, or take a smaller model or smaller batches"
    if isinstance(error, ModuleNotFoundError):
        return FAULT, f"{message}: run `make install` again, the installation is incomplete"
    if isinstance(error, OSError) or type(error).__module__.startswith("posttrain."):
        return FAULT, message or type(error).__name__
    return FAULT, f"internal error: {type(error).__name__}: {message} (--debug shows where)"


def _is_ours(error: ValueError) -> bool:
    """Whether we raised it for the user, and not a library that we called wrongly."""
    if type(error).__module__.startswith("posttrain."):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return type(error) is ValueError and bool(frames) and frames[-1].filename.startswith(PACKAGE)


def _end(code: int, line: str, error: BaseException) -> NoReturn:
    if debugging():
        traceback.print_exception(error)
    print(f"posttrain: {line}", file=sys.stderr)
    raise typer.Exit(code) from None
