"""Reads the rows of a JSONL, CSV or Parquet file, each with its number, so that an error can say where.

Bounds: the file is held in memory as a whole; one above `MAX_FILE_BYTES` is refused. pyarrow is imported only for
Parquet.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.tasks.errors import DomainError

MAX_FILE_BYTES = 1 << 30  # 1 GiB: some millions of rows; more wants a reader that streams

Row = tuple[int, dict[str, Any]]


def read_rows(path: Path) -> list[Row]:
    """(row number, columns) of each row. Numbers are lines for JSONL and CSV (from 1), rows for Parquet (from 1).

    Raises `DomainError` for a file that is absent, too large, of another kind, empty, or broken, with the row.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DomainError(
            f"{path}: tasks are read from {', '.join(READERS)}; this is {path.suffix or 'a name without an ending'!r}"
        )
    try:
        size_bytes = path.stat().st_size
        if not path.is_file():
            raise DomainError(f"{path} is not a file")
        if size_bytes > MAX_FILE_BYTES:
            raise DomainError(f"{path} has {size_bytes:,} bytes; at most {MAX_FILE_BYTES:,} are read: split the file")
        rows = reader(path)
    except OSError as error:
        raise DomainError(f"{path}: {error.strerror or error}") from error
    if not rows:
        raise DomainError(f"{path} has no rows: a domain needs at least one task")
    return rows


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DomainError(f"{path} line {line}: not UTF-8; save the file as UTF-8") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON; write null or leave the row out")


def _read_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise DomainError(f"{path} line {number}: not a JSON object ({str(error)[:80]})") from error
        if not isinstance(value, dict):
            raise DomainError(
                f'{path} line {number}: a {type(value).__name__}; each line is an object such as {{"question": ...}}'
            )
        rows.append((number, value))
    return rows


def _read_csv(path: Path) -> list[Row]:
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    header: list[str] = []
    rows: list[Row] = []
    start = 1  # line where the row begins: a quoted value may hold line ends
    try:
        for cells in reader:
            if cells and not header:
                header = cells
                if len(set(header)) < len(header):
                    raise DomainError(f"{path}: a column name stands twice in the header: {', '.join(header)}")
            elif cells:
                if len(cells) != len(header):
                    raise DomainError(
                        f"{path} line {start}: not {len(header)} columns as in the header; quote values with a comma"
                    )
                rows.append((start, dict(zip(header, cells, strict=True))))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DomainError(f"{path} line {start}: {error}") from error
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DomainError(
            f"{path}: not a Parquet file that can be read ({str(error).splitlines()[0][:100]})"
        ) from error
    return list(enumerate(table.to_pylist(), start=1))


READERS: dict[str, Callable[[Path], list[Row]]] = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}


def missing(value: Any) -> bool:
    """Whether a cell holds nothing: null, NaN, or an empty text."""
    return (
        value is None
        or (isinstance(value, float) and not math.isfinite(value))
        or (isinstance(value, str) and not value.strip())
    )
