"""The quickstart itself, on the real model, cut to a few steps: what `make demo` does, from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CUT = {
    "evaluation.items_per_domain": 10,
    "diagnosis.tasks_per_domain": 4,
    "diagnosis.samples_per_task": 4,
    "sft.demonstrations_per_domain": 24,
    "sft.epochs": 1,
    "rl.steps": 2,
    "rl.groups_per_step": 6,
    "rl.max_refill_rounds": 0,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quickstart_runs_on_the_real_model_and_its_export_is_checked(tmp_path: Path) -> None:
    settings = [part for key, value in CUT.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "posttrain", "run", str(ROOT / "recipes" / "quickstart.toml"), *settings]
    done = subprocess.run([*command, "--folder", str(tmp_path / "run"), "--json"], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    roles = [row["role"] for row in summary["domains"].values()]
    assert roles.count("training") >= 7 and roles.count("retention") >= 2
    assert 0.1 < summary["training"]["before"] < 0.8, "the base model no longer does what the prompts are made for"
    assert summary["peak_rss_gib"] < 4.5
    export = json.loads((tmp_path / "run" / "stages" / "export.json").read_text())["payload"]
    assert export["round_trip_nats"] < 2e-3
    invalid = sum(row["invalid"] for row in summary["domains"].values())
    assert invalid == 0, "every attempt has a verdict"
