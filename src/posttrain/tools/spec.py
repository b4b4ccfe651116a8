"""What a tool is: a name, typed parameters, and a pure function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

ParameterType = Literal["int", "float", "str"]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_JSON_TYPES = {"int": "integer", "float": "number", "str": "string"}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """parameters: name -> type, in order; all are required. function is called with them by name and returns what the
    policy is
    shown (as text); a ValueError of it is an error for the policy to read, anything else a bug of the tool."""

    name: str
    parameters: Mapping[str, ParameterType]
    description: str
    function: Callable[..., Any]

    def __post_init__(self) -> None:
        for name in (self.name, *self.parameters):
            if not _NAME.fullmatch(name):
                raise ValueError(f"tool {self.name!r}: {name!r} is no name: letters, digits and '_', not a digit first")
        for name, kind in self.parameters.items():
            if kind not in _JSON_TYPES:
                raise ValueError(f"tool {self.name!r}: parameter {name!r} has type {kind!r}: give int, float or str")


def json_schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool as chat templates and OpenAI-compatible servers describe one (JSON Schema, draft 2020-12)."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {name: {"type": _JSON_TYPES[kind]} for name, kind in tool.parameters.items()},
                "required": list(tool.parameters),
                "additionalProperties": False,
            },
        },
    }
