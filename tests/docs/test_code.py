"""The code of the documentation runs as it is written: on the tiny model, with fewer steps, and otherwise unchanged."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
from pathlib import Path

import pytest
from tests import tiny
from tests.docs.blocks import PAGES, ROOT, Block, blocks, script
from tests.loop.tiny_recipe import write_recipe

from posttrain.config import load_recipe
from posttrain.loop.preflight import load_domains
from posttrain.loop.run import run_recipe
from posttrain.observability import read
from posttrain.records import Split
from posttrain.records.arrow import schema

STEPS = ("range(30)", "range(2)")  # what the README trains, and what is enough to see that it runs
RUN = "runs/quickstart"  # the run that the pages speak of


def python_blocks(page: Path, mark: str) -> list[Block]:
    return [b for b in blocks(page) if b.language == "python" and b.mark == mark]


def with_python(mark: str) -> list[Path]:
    return [page for page in PAGES if python_blocks(page, mark)]


def write_files(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.mark == "file":
            (folder / block.detail).write_text(block.text, encoding="utf-8")


def run_page(page: Path, mark: str, folder: Path) -> None:
    """Runs the page's blocks as one program in `folder`, as `python page.py` would."""
    text = script(python_blocks(page, mark)).replace("smollm2-135m", str(tiny.model_folder())).replace(*STEPS)
    program = folder / f"{page.stem}.py"
    program.write_text(text, encoding="utf-8")
    with contextlib.chdir(folder):
        runpy.run_path(str(program), run_name="__main__")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_CACHE", str(tmp_path_factory.getbasetemp() / "docs-cache"))


@pytest.fixture(scope="module")
def beside_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds `runs/quickstart`: a finished run of the tiny model."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POSTTRAIN_CACHE", str(folder / "cache"))
        loaded = load_recipe([write_recipe(folder / "recipe")], ["rl.steps=2", "evaluation.items_per_domain=6"])
        run_recipe(loaded, folder / RUN)
    return folder


def test_there_is_code_to_run() -> None:
    assert {page.name for page in with_python("")} >= {"README.md", "concepts.md", "your-own-domain.md", "sandbox.md"}


@pytest.mark.parametrize("page", with_python(""), ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    run_page(page, "", tmp_path)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft reads an old name
@pytest.mark.parametrize("page", with_python("run folder"), ids=lambda page: page.name)
def test_the_python_that_reads_a_run_reads_one(page: Path, beside_a_run: Path) -> None:
    run_page(page, "run folder", beside_a_run)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    assert all(block.detail for block in blocks(page) if block.mark == "not run")


def test_own_domain_in_the_readme_is_at_most_15_lines() -> None:
    first = python_blocks(ROOT / "README.md", "")[0]
    assert len(first.text.splitlines()) <= 15


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page) if b.language == "toml"], ids=lambda block: str(block)
)
def test_a_recipe_loads_and_its_domains_give_tasks(block: Block, tmp_path: Path) -> None:
    write_files(block.page, tmp_path)
    recipe = tmp_path / "shown.toml"
    recipe.write_text(block.text, encoding="utf-8")
    loaded = load_recipe([recipe])
    for section in loaded.recipe.domain:
        domain = load_domains(loaded)[section.name]
        assert any(domain.tasks(split) for split in Split)


def test_every_file_of_a_run_is_documented_and_every_key_of_it(beside_a_run: Path) -> None:
    """What run-folder.md leaves out, a reader of the folder would have to guess."""
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    folder = beside_a_run / RUN
    names = {p.name for p in folder.rglob("*") if p.is_file() and p.suffix not in (".parquet",)}
    tokenizer = {p.name for p in (folder / "exports" / "merged").iterdir() if p.name.startswith("tokenizer")}
    summary = json.loads((folder / "summary.json").read_text())
    keys = {*summary, *summary["training"], *summary["decision"], *summary["cost"]}
    keys |= {key for row in summary["domains"].values() for key in row}
    rows = read(folder / "metrics.jsonl")
    assert any(row["updated"] for row in rows), "no update: the keys of one would go unchecked"
    keys |= {key for row in rows for key in row} | set(schema().names)
    marks = {p.name for p in (folder / "stages").iterdir()}
    assert set(re.findall(r"stages/(\w+\.json)", page)) == marks
    documented = page.replace("`", " ").replace("/", " ").replace(",", " ").split()
    assert sorted((names - tokenizer | keys) - set(documented) - {word.rstrip(":;.") for word in documented}) == []
