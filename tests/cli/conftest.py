"""Runs the command line as a person does: in a process of its own, with its own cache and working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Posttrain = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def posttrain(tmp_path: Path) -> Posttrain:
    """posttrain("config", "show", path) -> the finished process."""
    here = tmp_path / "here"
    here.mkdir()

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "posttrain", *map(str, arguments)],
            cwd=here,
            env={**os.environ, "POSTTRAIN_CACHE": str(tmp_path / "cache"), "COLUMNS": "100", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )

    return run
