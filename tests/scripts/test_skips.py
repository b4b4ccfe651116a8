"""A skipped test is counted and explained, and fails the session where its reason is not allowed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
@pytest.mark.skip(reason="no sandbox here: kernel")
def test_a(): ...
@pytest.mark.slow
def test_slow(): print("SLOW RAN")
def test_b(): pytest.skip("no network")
def test_c(): print("FAST RAN")
"""


@pytest.fixture
def project(tmp_path: Path, repository: Path) -> Path:
    shutil.copy(repository / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    shutil.copy(repository / "tests" / "conftest.py", tmp_path / "tests")
    (tmp_path / "tests" / "test_it.py").write_text(TESTS, encoding="utf-8")
    return tmp_path


def run(project: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_skips_are_counted_with_their_reasons(project: Path) -> None:
    code, said = run(project)
    assert code == 0
    assert "skipped: 2\n" in said and "tests/test_it.py::test_b: no network\n" in said


def test_a_skip_that_is_not_allowed_fails_the_session(project: Path) -> None:
    allowed = project / "allowed.txt"
    allowed.write_text("# comment\nno sandbox here\n", encoding="utf-8")
    code, said = run(project, "--allowed-skips=allowed.txt")
    assert code == 1
    assert "test_b: no network  <- not an allowed skip" in said
    assert "test_a: no sandbox here: kernel\n" in said
    allowed.write_text("no sandbox here\nno network\n", encoding="utf-8")
    assert run(project, "--allowed-skips=allowed.txt")[0] == 0


def test_slow_tests_run_last_and_can_be_left_out(project: Path) -> None:
    said = run(project, "-s")[1]
    assert said.index("FAST RAN") < said.index("SLOW RAN")
    assert "SLOW RAN" not in run(project, "-s", "-m", "not slow")[1]
