"""Run folders: one recipe, one process, and stages that stay done."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from posttrain.storage import STAGES, RunFolder
from posttrain.storage.run_folder import RunFolderError

SRC = Path(__file__).resolve().parents[2] / "src"
RECIPE = {"model": {"name": "tiny"}, "rl": {"steps": 28, "learning_rate": 3e-4}, "domains": ["add", "max"]}


def test_a_stage_that_is_done_stays_done(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with RunFolder.open(path, RECIPE, "# mine") as run:
        assert run.stage("diagnosis") is None
        assert not run.done("model")
        run.stage_done("model", None)
        run.stage_done("diagnosis", {"add": 0.3})
    with RunFolder.open(path, RECIPE, "# mine") as run:
        assert run.done("model")
        assert run.stage("diagnosis") == {"add": 0.3}
        assert [name for name in STAGES if run.done(name)] == ["model", "diagnosis"]
        run.stage_done("diagnosis", {"add": 0.4})
        assert run.stage("diagnosis") == {"add": 0.4}
        assert run.fingerprint == RECIPE
        assert run.checkpoints.is_dir()
    assert (path / "recipe.toml").read_text() == "# mine"


def test_a_stage_nobody_knows_is_an_error(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, RECIPE, "") as run:
        with pytest.raises(ValueError, match="eval_before"):
            run.stage("evaluation")
        with pytest.raises(ValueError, match="gate found out is not JSON"):
            run.stage_done("gate", {"p": math.nan})
        assert not run.done("gate")


def test_the_folder_of_another_recipe_is_refused_with_what_differs(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, RECIPE, "") as run:
        run.stage_done("model", {})
        run.stage_done("eval_before", {})
    other = {"model": {"name": "tiny"}, "rl": {"steps": 30, "learning_rate": 3e-4, "clip": 1.0}, "domains": ["add"]}
    with pytest.raises(RunFolderError) as caught:
        RunFolder.open(tmp_path, other, "")
    message = str(caught.value)
    assert "rl.steps is 28 there and 30 here" in message
    assert "rl.clip is not set there and 1.0 here" in message
    assert 'domains is ["add", "max"] there and ["add"] here' in message
    assert "learning_rate" not in message
    assert "\n" not in message
    many = {f"key{i}": i for i in range(9)}
    with pytest.raises(RunFolderError, match=r"and \d+ more"):
        RunFolder.open(tmp_path, many, "")
    # A refused start holds no lock and changed nothing.
    with RunFolder.open(tmp_path, RECIPE, "") as run:
        assert run.fingerprint == RECIPE


def test_a_folder_in_which_nothing_was_done_yet_takes_a_mended_recipe(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, RECIPE, "") as run:
        run.stage_done("model", {"dtype": "float32"})
    other = {"model": {"name": "other"}}
    with RunFolder.open(tmp_path, other, "new") as run:
        assert run.fingerprint == other
        assert not run.done("model")
    assert (tmp_path / "recipe.toml").read_text() == "new"


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"thesis\.txt.*choose an empty"):
        RunFolder.open(tmp_path, RECIPE, "")
    assert not (tmp_path / "recipe.json").exists()


def test_a_start_that_was_killed_before_the_recipe_was_saved_can_start_again(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99\n")
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / ".recipe.json.0123abcd.tmp").write_text("{")
    with RunFolder.open(tmp_path, RECIPE, "new") as run:
        assert run.fingerprint == RECIPE
    assert not (tmp_path / ".recipe.json.0123abcd.tmp").exists()


def test_one_process_at_a_time_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys, time
        from pathlib import Path
        from posttrain.storage import RunFolder
        run = RunFolder.open(Path(sys.argv[1]), {"a": 1}, "")
        print("open", flush=True)
        time.sleep(60)
    """)
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(2):  # being refused must not loosen the lock of the holder
            with pytest.raises(RunFolderError, match=rf"in use by another run \(process {process.pid} on "):
                RunFolder.open(tmp_path, {"a": 1}, "")
        assert not RunFolder.view(tmp_path).done("model")
        os.kill(process.pid, signal.SIGKILL)
    RunFolder.open(tmp_path, {"a": 1}, "").close()


def test_the_same_process_can_not_open_a_folder_twice(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, RECIPE, ""):
        with pytest.raises(RunFolderError, match="already"):
            RunFolder.open(tmp_path, RECIPE, "")
        code = (
            "import sys; from pathlib import Path; from posttrain.storage import RunFolder\n"
            "RunFolder.open(Path(sys.argv[1]), {}, '')"
        )
        env = {**os.environ, "PYTHONPATH": str(SRC)}
        command = [sys.executable, "-c", code, str(tmp_path)]
        other = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert f"process {os.getpid()}" in other.stderr, "the second open released the lock of the first"
    RunFolder.open(tmp_path, RECIPE, "").close()


def test_a_folder_can_be_looked_at_while_a_run_works_in_it(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder.view(tmp_path)
    with RunFolder.open(tmp_path, RECIPE, "") as run:
        run.stage_done("model", {"size": 1})
        view = RunFolder.view(tmp_path)
        assert view.stage("model") == {"size": 1}
        with pytest.raises(RunFolderError, match="reading only"):
            view.stage_done("gate", None)


def test_a_damaged_marker_says_how_to_go_on(tmp_path: Path) -> None:
    with RunFolder.open(tmp_path, RECIPE, "") as run:
        run.stage_done("gate", 1)
        (tmp_path / "stages" / "gate.json").write_text("{")
        with pytest.raises(RunFolderError, match=r"gate\.json is damaged .* remove it"):
            run.stage("gate")
