"""A whole run on the tiny model: what it leaves behind, and that it goes on after any interruption as if nothing had
been."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file
from tests.loop.conftest import Start
from tests.loop.tiny_recipe import write_recipe

from posttrain.config import load_recipe
from posttrain.dashboard import render
from posttrain.loop.run import run_recipe
from posttrain.observability import read
from posttrain.storage import RunFolderError

WAIT_S = 120
CLOCKS = ("_s",)  # a step's seconds are not part of its trace


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


def trace(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run without its clocks."""
    rows = read(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.endswith(CLOCKS)} for row in rows]


def answers(path: Path) -> list[str]:
    """What the policy said to each held-out task."""
    return [item["answer"] for item in json.loads(path.read_text())["items"]]


def adapter(folder: Path) -> dict[str, bytes]:
    state = load_file(folder / "exports" / "adapter" / "adapter_model.safetensors")
    return {name: tensor.tobytes() for name, tensor in state.items()}


def test_a_run_leaves_everything_that_the_documentation_names(recipe: Path, tmp_path: Path) -> None:
    summary = run_recipe(load_recipe([recipe]), tmp_path / "run")
    folder = tmp_path / "run"
    values = json.loads((folder / "summary.json").read_text())
    assert values == json.loads(json.dumps(summary.values))
    for key in ("run_minutes", "peak_rss_gib", "training", "retention", "domains", "decision", "seed", "versions"):
        assert key in values
    for role in ("training", "retention"):
        assert 0 <= values[role]["before"] <= 1 and 0 <= values[role]["after"] <= 1
        assert (
            values[role]["interval"][0] <= values[role]["after"] - values[role]["before"] <= values[role]["interval"][1]
        )
    assert values["training"]["n"] == 60 and values["retention"]["n"] == 30
    assert set(values["domains"]) == {"reverse", "largest", "sorted"}
    assert values["decision"]["verdict"] in ("promote", "refuse", "inconclusive") and values["seed"] == 3
    assert [row["step"] for row in trace(folder) if row["phase"] == "rl"] == list(range(7))
    table = pq.read_table(folder / "trajectories" / "rl-000006.parquet")
    assert {"task_id", "token_ids", "logprobs", "reward_value", "step"} <= set(table.column_names)
    assert all(":" not in split and split == "train" for split in table["split"].to_pylist())
    page = render(folder).read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and "largest" in page
    promoted = (folder / "exports" / "champion.json").exists()
    assert promoted == (values["decision"]["verdict"] == "promote")


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft 0.21 reads an old name
def test_the_merged_folder_loads_in_transformers_and_the_adapter_in_peft(recipe: Path, tmp_path: Path) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run_recipe(load_recipe([recipe], ["rl.steps=2"]), tmp_path / "run")
    exports = tmp_path / "run" / "exports"
    merged = AutoModelForCausalLM.from_pretrained(exports / "merged")
    config = json.loads((exports / "adapter" / "adapter_config.json").read_text())
    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    with_adapter = PeftModel.from_pretrained(base, exports / "adapter")
    ids = torch.tensor([AutoTokenizer.from_pretrained(exports / "merged").encode("rev abcd=")])
    with torch.no_grad():
        assert (merged(ids).logits - with_adapter(ids).logits).abs().max() < 1e-4


def test_a_run_that_is_killed_again_and_again_ends_in_the_same_weights_and_trace(
    recipe: Path, tmp_path: Path, start: Start
) -> None:
    whole = tmp_path / "whole"
    began = time.monotonic()
    code, _, err = finish(start(str(recipe), "--folder", str(whole)))
    seconds = time.monotonic() - began
    assert code in (0, 1), err
    rng = random.Random(0)
    killed = tmp_path / "killed"
    for _ in range(5):
        process = start(str(recipe), "--folder", str(killed))
        time.sleep(seconds * rng.uniform(0.35, 1.0))
        process.kill()
        process.communicate()
    code, _, err = finish(start(str(recipe), "--folder", str(killed)))
    assert code in (0, 1), err
    assert trace(killed) == trace(whole)
    assert adapter(killed) == adapter(whole)
    for name in ("eval_before.json", "eval_after.json"):
        assert answers(killed / name) == answers(whole / name)


def test_ctrl_c_finishes_the_step_saves_and_says_how_to_go_on(recipe: Path, tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "run"
    process = start(str(recipe), "--folder", str(folder), "--set", "rl.steps=200")
    deadline = time.monotonic() + WAIT_S
    while not (folder / "metrics.jsonl").exists() or not read(folder / "metrics.jsonl"):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    assert "to go on" in err and "Traceback" not in err
    done = len(trace(folder))
    saved = sorted(p.name for p in (folder / "checkpoints").iterdir())
    assert saved[-1] == f"step-{done:06d}"


def test_a_finished_run_is_not_run_again(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe([recipe], ["rl.steps=1"])
    first = run_recipe(loaded, tmp_path / "run")
    rows = trace(tmp_path / "run")
    second = run_recipe(loaded, tmp_path / "run")
    assert trace(tmp_path / "run") == rows
    assert first.values["decision"] == second.values["decision"]


def test_a_run_folder_of_another_recipe_is_refused(recipe: Path, tmp_path: Path) -> None:
    run_recipe(load_recipe([recipe], ["rl.steps=0"]), tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"another recipe .*learning_rate"):
        run_recipe(load_recipe([recipe], ["rl.steps=0", "rl.learning_rate=0.5"]), tmp_path / "run")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("return float('nan')", "nan"),
        ("import time; time.sleep(60)", "ran past"),
    ],
)
def test_a_broken_verifier_stops_the_run_and_says_why(tmp_path: Path, start: Start, body: str, words: str) -> None:
    folder = tmp_path / "recipe"
    path = write_recipe(folder, verifier="check.py:check", extra="")
    (folder / "check.py").write_text(f"def check(task, attempt):\n    {body}\n")
    few = ["--set", "rewards.verifier_timeout_s=0.3", "--set", "rl.max_invalid_share=0.0"]
    code, _, err = finish(start(str(path), "--folder", str(tmp_path / "run"), *few))
    assert code == 3, err
    assert "have no verdict" in err and words in err and "Traceback" not in err


def test_a_prompt_longer_than_the_context_is_told_before_any_work(recipe: Path, tmp_path: Path, start: Start) -> None:
    code, _, err = finish(start(str(recipe), "--folder", str(tmp_path / "run"), "--set", "model.max_context_tokens=16"))
    assert code == 2
    assert "shorten the prompt" in err.splitlines()[-1] and "Traceback" not in err
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not read(tmp_path / "run" / "metrics.jsonl")
