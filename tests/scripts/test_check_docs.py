"""A link, heading, target or command that does not exist fails the documentation check."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_docs

COMMANDS: check_docs.Commands = {"run": None, "config": {"show": None}}


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text("X := 1\ninstall: a\n\techo\ntest-fast: install\n", encoding="utf-8")
    (tmp_path / "docs").mkdir()
    text = '# One `posttrain`: two!\n\n## Same\n\n## Same\n\n```\n# no heading\n```\n<a id="custom"></a>\n'
    (tmp_path / "docs" / "other.md").write_text(text, encoding="utf-8")
    return tmp_path


def problems(root: Path, text: str) -> list[str]:
    (root / "README.md").write_text(text, encoding="utf-8")
    return check_docs.check(root, COMMANDS)


@pytest.mark.parametrize(
    "good",
    [
        "[a](docs/other.md) [b](docs/other.md#one-posttrain-two) [c](docs/other.md#same-1) [d](docs/other.md#custom)",
        "[folder](docs) [site](https://example.org/#x) ![picture](docs/other.md)",
        "# Here\n[self](#here)",
        "`[not a link](nowhere.md)`",
        "- one should\n    make sure of it",
        "```\n[in code](nowhere.md)\n```",
        "`make install`, `make` and `make test-fast`; please make sense",
        "`posttrain run recipes/x.toml`, `posttrain config show R`, `posttrain --help`, `posttrain RUN`",
        "```\nfrom posttrain import x\n$ A=1 .venv/bin/posttrain run x\nmake install  # note\n```",
    ],
)
def test_what_exists_passes(docs: Path, good: str) -> None:
    assert problems(docs, good) == []


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("[a](docs/gone.md)", "README.md:1: docs/gone.md: no such file"),
        ("\n[a](docs/other.md#two)", "README.md:2: docs/other.md#two: no such heading"),
        ("[a](docs/other.md#no-heading)", "no such heading"),
        ("[a](docs/other.md#same-2)", "no such heading"),
        ("[self](#there)", "README.md:1: #there: no such heading"),
        ("![picture](docs/gone.png)", "no such file"),
        ("run `make demmo`", "make demmo: no such target"),
        ("```sh\nmake test\n```", "README.md:2: make test: no such target"),
        ("text\n\n    make install\n    make demmo", "README.md:4: make demmo: no such target"),
        ("`posttrain rum x`", "posttrain rum: no such command"),
        ("```\n$ .venv/bin/posttrain config shw R\n```", "posttrain config shw: no such command"),
    ],
)
def test_what_does_not_exist_fails_with_its_line(docs: Path, bad: str, says: str) -> None:
    (problem,) = problems(docs, bad)
    assert says in problem


def test_hidden_and_built_folders_are_not_read(docs: Path) -> None:
    for folder in (".venv", "runs"):
        (docs / folder).mkdir()
        (docs / folder / "x.md").write_text("[a](gone.md)", encoding="utf-8")
    assert problems(docs, "") == []


def test_the_documentation_of_this_repository_is_sound(repository: Path) -> None:
    assert check_docs.check(repository, check_docs.cli_commands(repository)) == []
