"""Fails where a file or a function outgrew its budget: what does not fit a screen or two is hard to review."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "scripts", "benchmarks", "recipes")
FILE_LINES = 500
FUNCTION_LINES = 70


def problems_of(path: Path, shown: str) -> Iterator[str]:
    """One line for each budget that the file breaks; `shown` is the path in the message."""
    source = path.read_text(encoding="utf-8")
    lines = source.count("\n") + (not source.endswith("\n") and bool(source))
    if lines > FILE_LINES:
        yield f"{shown}: {lines} lines, the budget of a file is {FILE_LINES}"
    for node in ast.walk(ast.parse(source, filename=shown)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                where = f"{shown}:{node.lineno}: {node.name}"
                yield f"{where} has {length} lines, the budget of a function is {FUNCTION_LINES}"


def check(root: Path) -> list[str]:
    files = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    return [problem for path in files for problem in problems_of(path, str(path.relative_to(root)))]


def main() -> int:
    problems = check(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    print("\n".join(problems) or "sizes: every file and function is within its budget")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
