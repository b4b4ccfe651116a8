"""How a command ends: the code a script sees and the one line a person sees."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tests.cli.conftest import Posttrain

from posttrain.cli.exits import FAULT, INTERRUPTED, USER_ERROR, guarded, judge
from posttrain.config import ConfigError


def test_a_wrong_recipe_is_one_line_and_code_2(posttrain: Posttrain, tmp_path: Path) -> None:
    recipe = tmp_path / "r.toml"
    recipe.write_text("[rl]\nstps = 3\n", encoding="utf-8")
    for command in (["run", recipe], ["config", "show", recipe]):
        done = posttrain(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"posttrain: {recipe}:2: rl.stps: unknown key; did you mean steps?\n"


def test_debug_shows_the_traceback_wherever_it_is_written(posttrain: Posttrain) -> None:
    for arguments in (["--debug", "config", "show", "none.toml"], ["config", "show", "none.toml", "--debug"]):
        done = posttrain(*arguments)
        assert done.returncode == 2
        assert "Traceback" in done.stderr and done.stderr.splitlines()[-1].startswith("posttrain: none.toml: no such")


@pytest.mark.parametrize(
    "arguments", [["rum"], ["run"], ["eval", "m"], ["domains", "sample", "x", "-n", "0"], ["show"]]
)
def test_wrong_arguments_are_code_2(posttrain: Posttrain, arguments: list[str]) -> None:
    done = posttrain(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_fault_of_the_machine_is_code_3(posttrain: Posttrain) -> None:
    done = posttrain("init", "/proc/1/nothing-can-be-made-here")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error(repository: Path) -> None:
    command = [sys.executable, "-m", "posttrain", "config", "show", str(repository / "recipes" / "quickstart.toml")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (141, "")


def test_the_version_is_the_installed_one(posttrain: Posttrain) -> None:
    done = posttrain("--version")
    assert (done.returncode, done.stdout.strip()) == (0, importlib.metadata.version("posttrain"))


class OurError(ValueError):
    __module__ = "posttrain.somewhere"


class OurFaultError(RuntimeError):
    __module__ = "posttrain.sandbox.errors"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("mend this"), USER_ERROR, "mend this"),
        (OurError("first\nsecond"), USER_ERROR, "first"),
        (OurFaultError("the sandbox died"), FAULT, "the sandbox died"),
        (OSError(28, "No space left on device"), FAULT, "[Errno 28] No space left on device"),
        (MemoryError(), FAULT, "out of memory: close programs, or take a smaller model or smaller batches"),
        (ValueError("a library's"), FAULT, "internal error: ValueError: a library's (--debug shows where)"),
        (TypeError("a bug"), FAULT, "internal error: TypeError: a bug (--debug shows where)"),
    ],
)
def test_whose_fault_it_is_decides_the_code(error: Exception, code: int, line: str) -> None:
    assert judge(error) == (code, line)


def test_a_plain_value_error_that_we_raise_is_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    from posttrain.records import split_by_content

    def command() -> None:
        split_by_content("x", dev_share=2)

    with pytest.raises(typer.Exit) as caught:
        guarded(command)()
    assert caught.value.exit_code == USER_ERROR
    assert capsys.readouterr().err.startswith("posttrain: dev_share 2")


def test_an_interruption_is_code_130_with_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise KeyboardInterrupt("run the same command again")

    with pytest.raises(typer.Exit) as caught:
        guarded(command)()
    assert caught.value.exit_code == INTERRUPTED
    assert capsys.readouterr().err == "posttrain: run the same command again\n"
