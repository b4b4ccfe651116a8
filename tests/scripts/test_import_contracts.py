"""The table of rooms is enforced: a planted import breaks it, for real, in a copy of the sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.import_contracts import parse_rooms, room_violation


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    environment = {"PYTHONPATH": str(root / "src"), "PATH": ""}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A tree with the real contracts over a few small rooms."""
    shutil.copy(repository / "pyproject.toml", tmp_path)
    (tmp_path / "scripts").mkdir()
    for name in ("__init__.py", "import_contracts.py"):
        shutil.copy(repository / "scripts" / name, tmp_path / "scripts")
    for room in ("", "records", "config", "sandbox", "tasks", "inference", "training", "scheduling"):
        folder = tmp_path / "src" / "posttrain" / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("", encoding="utf-8")
    for module in ("model", "sources"):
        (tmp_path / "src" / "posttrain" / "inference" / f"{module}.py").write_text("import torch\n", encoding="utf-8")
    return tmp_path


def plant(root: Path, module: str, line: str) -> subprocess.CompletedProcess[str]:
    (root / "src" / "posttrain" / module).write_text(line + "\n", encoding="utf-8")
    return lint(root)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("tasks/a.py", "from posttrain.sandbox import x\nfrom posttrain.records import y"),
        ("training/a.py", "import torch\nfrom posttrain.inference.model import x"),
        ("records/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import posttrain.tasks"),
    ],
)
def test_what_the_table_allows_passes_though_rooms_are_missing(copy: Path, module: str, line: str) -> None:
    done = plant(copy, module, line)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "says"),
    [
        ("records/a.py", "import posttrain.config", "records may not import config"),
        ("config/a.py", "def f():\n    from posttrain.tasks import x", "posttrain.config.a:2 imports posttrain.tasks"),
        ("training/a.py", "import posttrain.inference.sources", "training may not import inference.sources"),
        ("kitchen.py", "import posttrain.tasks", "kitchen is not a room of the table"),
        ("tasks/a.py", "import torch", "posttrain.tasks.a -> torch"),
        ("scheduling/a.py", "import posttrain.records.b", "posttrain.scheduling.a -> posttrain.records.b -> torch"),
        ("tasks/a.py", "import pydantic", "posttrain.tasks.a -> pydantic"),
    ],
)
def test_what_the_table_forbids_fails_and_says_where(copy: Path, module: str, line: str, says: str) -> None:
    (copy / "src" / "posttrain" / "records" / "b.py").write_text(
        "import torch\n" if "records.b" in line else "", encoding="utf-8"
    )
    done = plant(copy, module, line)
    assert done.returncode == 1
    assert says in " ".join(done.stdout.split())


def test_a_room_has_one_line_of_its_own() -> None:
    assert parse_rooms(["a: b c.d", "b:"]) == {"a": frozenset({"b", "c.d"}), "b": frozenset()}
    for bad in (["a b"], ["a: b", "a: c"]):
        with pytest.raises(ValueError, match="one line a room"):
            parse_rooms(bad)


def test_allowing_a_module_does_not_allow_its_namesakes() -> None:
    rooms = parse_rooms(["training: inference.model", "inference:"])
    assert room_violation("p", rooms, "p.training.x", "p.inference.model.layers") is None
    assert (
        room_violation("p", rooms, "p.training.x", "p.inference.models") == "training may not import inference.models"
    )
    assert room_violation("p", rooms, "p.training.x", "p") is not None
