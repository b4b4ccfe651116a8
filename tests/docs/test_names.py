"""The documentation names what there is: files, options of commands, settings, verifiers, domains."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from scripts.check_docs import split_code
from tests.docs.blocks import PAGES, ROOT
from typer.testing import CliRunner

from posttrain.cli.main import app
from posttrain.config import load_recipe
from posttrain.rewards import BUILTIN
from posttrain.tasks import list_domains

FOLDERS = ("src", "tests", "recipes", "docs", "scripts", "benchmarks")
FILE = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]+\.\w+")
COMMAND = re.compile(r"^\s*(?:\S*/)?posttrain\s+(.+)$")
SETTING = re.compile(r"(run|model|adapter|mixture|evaluation|diagnosis|sft|rl|gate|sandbox)\.([a-z_]+)")
FILE_LIKE = ("safetensors", "toml", "jsonl", "json", "py", "md", "html")  # `sandbox.md` is a page and no setting


def code_of(page: Path) -> list[tuple[int, str]]:
    return split_code(page.read_text(encoding="utf-8"))[1]


def commands() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        for number, line in code_of(page):
            match = COMMAND.match(line)
            if match:
                found.append((f"{page.name}:{number}", shlex.split(match[1], comments=True)))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_of_the_repository_that_is_named_exists(page: Path) -> None:
    named = {name for _, code in code_of(page) for name in FILE.findall(code) if code.startswith(name)}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_the_architecture_names_every_file_of_every_room_and_no_other() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    start = page.index("### What each file answers")
    rooms: dict[str, set[str]] = {}
    heading: list[str] = []
    for line in page[start : page.index("## One RL step")].splitlines():
        spans = re.findall(r"`([^`]+)`", line)
        if line and not line.startswith(("|", "#")):
            heading = spans
            rooms |= {name: set() for name in spans}
        elif line.startswith("| `"):
            for name in re.findall(r"`([^`]+)`", line.split("|")[1]):
                room, _, file = name.rpartition("/") if len(heading) > 1 else (heading[0], "", name)
                rooms[room].add(file)
    package = ROOT / "src" / "posttrain"
    there = {
        folder.name: {
            f"{p.name}/" if p.is_dir() else p.name
            for p in folder.iterdir()
            if (p.suffix == ".py" and p.name != "__init__.py") or (p.is_dir() and (p / "__init__.py").exists())
        }
        for folder in package.iterdir()
        if (folder / "__init__.py").exists()
    }
    assert rooms == there


@pytest.mark.parametrize(("where", "words"), commands(), ids=[where for where, _ in commands()])
def test_every_option_of_a_command_exists(where: str, words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, f"{where}: posttrain {' '.join(words)}: {result.output}"


def test_every_override_that_is_shown_can_be_set() -> None:
    shown = [words[i + 1] for _, words in commands() for i, word in enumerate(words[:-1]) if word == "--set"]
    assert shown
    for override in shown:
        load_recipe([ROOT / "recipes" / "quickstart.toml"], [override])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_setting_that_is_named_exists(page: Path) -> None:
    known = load_recipe([]).origins
    named = {m.group(0) for _, code in code_of(page) if (m := SETTING.match(code)) and m[2] not in FILE_LIKE}
    assert sorted(name for name in named if name not in known) == []


def test_every_built_in_verifier_is_explained() -> None:
    page = (ROOT / "docs" / "your-own-domain.md").read_text(encoding="utf-8")
    assert [name for name in BUILTIN if f"`{name}`" not in page] == []


def test_the_readme_counts_the_domains_right() -> None:
    from posttrain.tasks.catalogue import RETENTION, TRAINING

    assert len(list_domains()) == len(TRAINING) + len(RETENTION)
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{len(TRAINING)} built-in domains to train on and {len(RETENTION)} to watch" in page
