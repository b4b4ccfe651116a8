"""Merges layers of settings: a later layer wins, key by key, and each value remembers which layer and line it is from.

Tables merge key by key and lists are replaced. Domains are tables under their names here, so they merge too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.config.errors import ConfigError
from posttrain.config.origins import Lines, Origin, leaves


@dataclass(slots=True)
class Layers:
    """What was merged so far. origins, tables: dotted key -> where the value, or the table's first key, was written."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    tables: dict[str, Origin] = field(default_factory=dict)

    def add(self, values: Mapping[str, Any], origin: Origin, lines: Lines) -> None:
        """Puts a layer on top; `lines` of its file count domains by number, and are empty for a flag."""
        names = list(values["domain"]) if isinstance(values.get("domain"), dict) else []
        for path, value in leaves(values):
            named = path[0] == "domain" and len(path) > 1
            written = ("domain", names.index(str(path[1])), *path[2:]) if named else path
            where = Origin(origin.source, lines.get(written, 0))
            for end in range(1, len(path)):
                table = Origin(origin.source, lines.get(written[:end], where.line))
                self.tables.setdefault(dotted(path[:end]), table)
            self.origins[dotted(path)] = where
            self._set(path, value, where)

    def _set(self, path: tuple[str | int, ...], value: Any, where: Origin) -> None:
        inner: Any = self.values
        for depth, name in enumerate(path[:-1], 1):
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{where}: {dotted(path)}: {dotted(path[:depth])} is a value and has no keys")
        there = inner.get(path[-1])
        if isinstance(there, dict) and there:
            if value == {}:
                return  # an empty table changes nothing
            example = f"{dotted(path)}.{next(iter(there))}"
            raise ConfigError(f"{where}: {dotted(path)} is a table: set one of its keys, like {example}")
        inner[path[-1]] = value


def dotted(path: Iterable[str | int]) -> str:
    return ".".join(str(p) for p in path)
