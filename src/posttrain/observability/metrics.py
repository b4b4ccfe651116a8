"""The metrics of a run: one JSON object per line, on the disk before the next step starts.

Invariants: a row is there whole or not at all (a line that a kill tore is dropped when the log is opened again); a
number that is not finite is null, so that every JSON reader can read the file; after `truncate_after` no step of a
phase is there twice.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Row = dict[str, Any]


class MetricsLog:
    """Appends rows to the file at `path`, which is created. One writer at a time. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        whole = _whole_bytes(path)
        if whole < path.stat().st_size:
            self._file.truncate(whole)
            os.fsync(self._file.fileno())

    def append(self, row: Mapping[str, Any]) -> None:
        """Writes one row, durably. Values are JSON, or numpy and torch scalars; a `phase` and a `step` make it one that
        `truncate_after` can take back. TypeError, naming the key, for anything else; OSError, naming the file, where
        the disk can not take the row (the rows before it are whole)."""
        line = json.dumps({key: _plain(value, key) for key, value in row.items()}, allow_nan=False)
        whole = self.path.stat().st_size
        try:
            rest = memoryview(line.encode() + b"\n")
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(whole)  # half a row in the middle would make the file unreadable
            raise OSError(error.errno, f"can not write metrics ({error.strerror})", str(self.path)) from error

    def truncate_after(self, phase: str, step: int) -> int:
        """Drops the rows of `phase` whose step is greater than `step`; returns how many.

        Call it when a run goes on from a checkpoint, with the last step that the checkpoint holds.
        """
        rows = list(_lines(self.path))
        kept = [line for line, row in rows if not _is_after(row, phase, step)]
        if len(kept) < len(rows):
            self._replace(b"".join(kept))
        return len(rows) - len(kept)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replace(self, content: bytes) -> None:
        """Whole or not at all: a kill in between leaves the old file, and the rows are dropped next time."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        self._file.close()
        self._file = self.path.open("ab", buffering=0)


def read(path: Path) -> list[Row]:
    """The rows of a log, one that is being written left out. ValueError, with the line, where the file is damaged."""
    return [row for _, row in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    content = path.read_bytes()[: _whole_bytes(path)]
    for number, line in enumerate(content.splitlines(keepends=True), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is damaged ({error}): remove that line") from error
        yield line, row


def _whole_bytes(path: Path) -> int:
    """Length of the file up to its last whole row. A kill tears only the last line: it has no end, or (where the disk
    kept the length but not the content) does not parse."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    last = content.rfind(b"\n", 0, max(0, whole - 1)) + 1
    try:
        json.loads(content[last:whole] or b"{}")
    except ValueError:
        return last
    return whole


def _is_after(row: Row, phase: str, step: int) -> bool:
    return row.get("phase") == phase and isinstance(row.get("step"), int) and row["step"] > step


def _plain(value: Any, key: str) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _plain(inner, f"{key}.{name}") for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, key) for inner in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a scalar of numpy or torch
        return _plain(value.item(), key)
    raise TypeError(f"metric {key} is a {type(value).__name__}: it has to be a number, a text, or a list or dict")
