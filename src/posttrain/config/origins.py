"""Which line of a TOML file, or which flag, a value came from.

`tomllib` forgets lines, so the file is walked statement by statement; each statement is still parsed by `tomllib`, and
the walk is only done on files that `tomllib` accepted as a whole.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
Lines = Mapping[Path, int]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value was written. source: a file as it was named, `--set` or `default`; line: 1-based, 0 for none."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


DEFAULT = Origin("default")
FLAG = Origin("--set")


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, value) of everything that is not a table; a list of tables counts as tables with numbers for names."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    elif path:
        yield path, value


def key_lines(text: str) -> dict[Path, int]:
    """Line (1-based) of each leaf of a valid TOML document. Tables are entered too, at the line of their header."""
    found: dict[Path, int] = {}
    table: Path = ()
    tables_seen: dict[Path, int] = {}
    lines = text.replace("\r\n", "\n").split("\n")
    at = 0
    while at < len(lines):
        start = lines[at].strip()
        if not start or start.startswith("#"):
            at += 1
        elif start.startswith("["):
            table = _header(start, tables_seen)
            found.setdefault(table, at + 1)
            at += 1
        else:
            statement, after = _statement(lines, at)
            for path, _ in leaves(statement):
                for end in range(1, len(path) + 1):
                    found.setdefault((*table, *path[:end]), at + 1)
            at = after
    return found


def _header(line: str, seen: dict[Path, int]) -> Path:
    """The path of `[a.b]` or `[[a]]`; arrays of tables get the number of this element."""
    parsed: Any = tomllib.loads(line)
    names: list[str] = []
    while True:
        if isinstance(parsed, list):
            parsed = parsed[0]
        if not parsed:
            break
        (name,) = parsed
        names.append(name)
        parsed = parsed[name]
    path: Path = ()
    for position, name in enumerate(names, 1):
        path = (*path, name)
        last = position == len(names)
        if last and line.startswith("[["):
            seen[path] = seen.get(path, -1) + 1
        if path in seen:
            path = (*path, seen[path])
    return path


def _statement(lines: list[str], start: int) -> tuple[dict[str, Any], int]:
    """The statement that begins at this line, parsed, and the index of the line after it."""
    for end in range(start + 1, len(lines) + 1):
        try:
            return tomllib.loads("\n".join(lines[start:end])), end
        except tomllib.TOMLDecodeError:
            continue  # a value that goes on in the next line
    raise AssertionError("a document that tomllib accepted has a statement that it does not")
