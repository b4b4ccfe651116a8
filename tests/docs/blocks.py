"""Reads the fenced blocks of the documentation.

A comment on the line above a block says what is to be done with it: `<!-- file: NAME -->` writes it as a file beside
the page's other code, `<!-- not run: REASON -->` leaves it alone, `<!-- run folder -->` runs it beside a finished run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

FENCE = re.compile(r"^```(\w*)\s*$")
MARK = re.compile(r"^<!-- (file|not run|run folder)(?:: (.*))? -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """line: of the first line of its text, counted from 1. mark, detail: of the comment above it, else ''."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order. ValueError where one is not closed."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start: int | None = None
    language, mark, detail = "", "", ""
    for i, line in enumerate(lines):
        fence = FENCE.match(line)
        if fence is None:
            continue
        if start is None:
            above = MARK.match(lines[i - 1]) if i else None
            mark, detail = (above[1], above[2] or "") if above else ("", "")
            start, language = i + 1, fence[1]
        else:
            text = "".join(f"{inner}\n" for inner in lines[start:i])
            yield Block(page, start + 1, language, text, mark, detail)
            start = None
    if start is not None:
        raise ValueError(f"{page.name}:{start}: the block is not closed")


def script(parts: list[Block]) -> str:
    """The blocks of one page as one program, each line where it stands in the page, so that an error names its line."""
    lines: list[str] = []
    for block in parts:
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"
