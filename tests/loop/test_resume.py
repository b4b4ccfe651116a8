"""A run that is interrupted in unkind ways: killed before every durable write, damaged, or changed under its feet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.loop.conftest import Start
from tests.loop.test_run import adapter, answers, finish, trace
from tests.loop.tiny_recipe import write_recipe

from posttrain.config import ConfigError, load_recipe
from posttrain.loop.run import run_recipe
from posttrain.storage import RunFolderError

SHORT = ["rl.steps=3", "rl.groups_per_step=4", "diagnosis.tasks_per_domain=3"]
EVERY = 7  # each process dies before its seventh durable write

# Kills itself before the n-th rename: that is where a file or folder becomes visible.
DIES = """
import os, signal, sys
left = int(sys.argv.pop(1))
def dying(real):
    def rename(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return rename
os.replace, os.rename = dying(os.replace), dying(os.rename)
from posttrain.cli.main import main
sys.argv[0] = "posttrain"
main()
"""


@pytest.mark.timeout(300)
def test_a_run_that_dies_before_every_few_writes_still_ends_the_same(recipe: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    run_recipe(load_recipe([recipe], SHORT), whole)
    killed = tmp_path / "killed"
    settings = [part for item in SHORT for part in ("--set", item)]
    command = [sys.executable, "-c", DIES, str(EVERY), "run", str(recipe), "--folder", str(killed), *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    deaths = 0
    while True:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
        if done.returncode != -9:
            break
        deaths += 1
        assert deaths < 40, "the run makes no progress"
    assert done.returncode in (0, 1), done.stderr
    assert deaths >= 3
    assert trace(killed) == trace(whole)
    assert adapter(killed) == adapter(whole)
    assert answers(killed / "eval_after.json") == answers(whole / "eval_after.json")
    leftovers = [p.name for p in (killed / "exports").iterdir() if p.name.startswith(".")]
    assert not leftovers


def test_a_damaged_last_checkpoint_is_trained_again_from_its_trajectories(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    loaded = load_recipe([recipe], SHORT)
    run_recipe(loaded, folder)
    rows, weights = trace(folder), adapter(folder)
    newest = max((folder / "checkpoints").iterdir())
    damaged = newest / "policy.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-100])
    for name in ("export", "gate"):
        (folder / "stages" / f"{name}.json").unlink()
    run_recipe(loaded, folder)
    assert trace(folder) == rows
    assert adapter(folder) == weights


def test_a_verifier_that_changed_since_the_run_began_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "recipe"
    path = write_recipe(base, verifier="check.py:check")
    (base / "check.py").write_text("def check(task, attempt):\n    return attempt.answer.strip() == task.answer\n")
    run_recipe(load_recipe([path], ["rl.steps=0"]), tmp_path / "run")
    (base / "check.py").write_text("def check(task, attempt):\n    return True\n")
    with pytest.raises(RunFolderError, match=r"check\.py"):
        run_recipe(load_recipe([path], ["rl.steps=0"]), tmp_path / "run")


def test_a_mistake_that_was_found_before_any_work_can_be_mended_in_the_same_folder(
    recipe: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="shorten the prompt"):
        run_recipe(load_recipe([recipe], ["rl.steps=0", "model.max_context_tokens=16"]), tmp_path / "run")
    run_recipe(load_recipe([recipe], ["rl.steps=0"]), tmp_path / "run")
    assert (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("setting", ["gate.max_retention_drop=1.0", "gate.min_gain=1.0"])
def test_a_gate_that_could_not_decide_is_refused_with_the_recipe(recipe: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match="gate"):
        load_recipe([recipe], [setting])


def test_demonstrations_of_a_file_are_learnt_and_a_second_start_goes_on(tmp_path: Path, start: Start) -> None:
    base = tmp_path / "recipe"
    path = write_recipe(base)
    text = path.read_text().replace(
        "[sft]\nenabled = false", '[sft]\ndomains = ["largest"]\nepochs = 1\nbatch_tokens = 256\nlearning_rate = 3e-3'
    )
    path.write_text(text.replace('name = "largest"\n', 'name = "largest"\ndemonstration = "answer"\n'))
    code, _, err = finish(start(str(path), "--folder", str(tmp_path / "run"), "--set", "rl.steps=1"))
    assert code in (0, 1), err
    sft = [row for row in trace(tmp_path / "run") if row["phase"] == "sft"]
    assert len(sft) > 5 and sft[-1]["nll"] < sft[0]["nll"]
    marked = json.loads((tmp_path / "run" / "stages" / "sft.json").read_text())["payload"]
    assert marked == {"domains": ["largest"], "updates": len(sft)}


def test_an_earlier_champion_does_not_come_to_mean_a_later_candidate(recipe: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    loaded = load_recipe([recipe], ["rl.steps=0"])  # changes nothing, so the gate can not promote
    run_recipe(loaded, folder)
    (folder / "exports" / "champion.json").write_text('{"champion": "somewhere"}')
    (folder / "stages" / "export.json").unlink()
    summary = run_recipe(loaded, folder)
    assert not summary.promoted
    assert not (folder / "exports" / "champion.json").exists()
