"""recipes/rl_loop.py, the loop that a user copies: it runs as it stands, against the public names only."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests import tiny

SCRIPT = Path(__file__).resolve().parents[2] / "recipes" / "rl_loop.py"


def test_the_loop_that_users_copy_trains_and_measures() -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--model",
        str(tiny.model_folder()),
        "--steps",
        "2",
        "--tasks",
        "3",
        "--items",
        "4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.search(r"step  1  reward \d\.\d\d", done.stdout)
    assert re.search(r"held-out accuracy \d\.\d\d -> \d\.\d\d", done.stdout)


def test_the_loop_that_users_copy_is_short() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 120
