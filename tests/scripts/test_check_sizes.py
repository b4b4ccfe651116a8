"""The size budgets fail on what is too long, and on nothing else."""

from __future__ import annotations

from pathlib import Path

from scripts import check_sizes


def source(function_lines: int, file_lines: int) -> str:
    function = "def f() -> None:\n" + "    pass\n" * (function_lines - 1)
    return function + "\n" * (file_lines - function_lines)


def planted(tmp_path: Path, text: str, folder: str = "src") -> list[str]:
    path = tmp_path / folder / "deep" / "module.py"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return check_sizes.check(tmp_path)


def test_what_just_fits_passes(tmp_path: Path) -> None:
    assert planted(tmp_path, source(check_sizes.FUNCTION_LINES, check_sizes.FILE_LINES)) == []


def test_a_file_of_one_line_too_many_fails(tmp_path: Path) -> None:
    (problem,) = planted(tmp_path, source(2, check_sizes.FILE_LINES + 1), "tests")
    assert problem.startswith("tests/deep/module.py: 501 lines")


def test_a_function_of_one_line_too_many_fails_even_inside_a_class(tmp_path: Path) -> None:
    inner = source(check_sizes.FUNCTION_LINES + 1, 71).replace("\n", "\n    ").rstrip(" ")
    (problem,) = planted(tmp_path, "class A:\n    " + inner.replace("def", "async def", 1), "benchmarks")
    assert problem.startswith("benchmarks/deep/module.py:2: f has 71 lines")


def test_this_repository_is_within_its_budgets(repository: Path) -> None:
    assert check_sizes.check(repository) == []
