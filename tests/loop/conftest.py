"""Fixtures of whole runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.loop.tiny_recipe import write_recipe

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "recipe")


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """`posttrain run` as a process of its own."""

    def run(*arguments: str) -> subprocess.Popen[str]:
        environment = os.environ | {"POSTTRAIN_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "posttrain", "run", *arguments]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )

    return run
