"""Finds a tool call in what the policy wrote. Total: any text gives a `ToolCall`, never an exception.

Two forms, the same call: `<tool name="add"><a>12</a><b>30</b></tool>` and, shorter, `<add><a>12</a><b>30</b></add>`.
The first call in the text counts; what stands before and after it is ignored. A call cut off by the stop string may
lack its last closing tag. A malformed one gives `ToolCall(error=...)` with words that tell the policy what to write
instead. This is not XML: no entities but the five named ones, no attributes but `name`, no nesting, so that nothing
can expand or refer elsewhere. Bounds: `MAX_TEXT_CHARS` are looked at, `MAX_ARGUMENT_CHARS` for one argument,
`MAX_DIGITS` for a number; time is linear in them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from html import unescape
from typing import Any

from posttrain.records import ToolCall
from posttrain.tools.spec import ParameterType, ToolSpec

MAX_TEXT_CHARS = 200_000
MAX_ARGUMENT_CHARS = 16_384
MAX_DIGITS = 400  # more than any double; Python's own limit for text to int is 4300
_SHOWN = 40  # characters of the policy's own text in an error

_OPEN = re.compile(
    r"<([A-Za-z_][A-Za-z0-9_]{0,63})(?:\s{1,8}name\s{0,8}=\s{0,8}(?:\"([^\"<>]{0,64})\"|'([^'<>]{0,64})'))?\s{0,8}>"
)
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos);")


def parse_call(text: str, tools: Mapping[str, ToolSpec]) -> ToolCall:
    """The first call of one of `tools` in `text`. Where there is none: `error` says why, `name` is empty."""
    text = text[:MAX_TEXT_CHARS]
    first = next(_OPEN.finditer(text), None)
    if first is None:
        return _error(f"no call found: write {_form(tools)}")
    tag, name = first.group(1), first.group(2) or first.group(3)
    if tag == "tool":
        if not name:
            return _error(f'<tool> needs a name: write <tool name="NAME">, NAME one of {_names(tools)}')
    elif name is None:
        name = tag
    else:
        return _error(f"<{tag}> takes no name=: write {_form(tools)}")
    tool = tools.get(name)
    if tool is None:
        return _error(f"unknown tool {_quote(name)}: there is {_names(tools)}")
    arguments = _arguments(text, first.end(), tag, tool)
    return _error(arguments) if isinstance(arguments, str) else ToolCall(tool.name, arguments)


def _arguments(text: str, at: int, closing: str, tool: ToolSpec) -> dict[str, Any] | str:
    """The arguments from position `at` on, or what is wrong with them."""
    arguments: dict[str, Any] = {}
    end = f"</{closing}>"
    while True:
        while at < len(text) and text[at].isspace():
            at += 1
        if text.startswith(end, at) or at == len(text):
            missing = [p for p in tool.parameters if p not in arguments]
            return f"{tool.name} lacks {', '.join(missing)}: write {_form({tool.name: tool})}" if missing else arguments
        opening = _OPEN.match(text, at)
        if opening is None or opening.group(2) is not None or opening.group(3) is not None:
            return f"expected an argument or {end}, found {_quote(text[at:])}"
        name = opening.group(1)
        kind = tool.parameters.get(name)
        if kind is None:
            return f"{tool.name} has no parameter {_quote(name)}: it takes {', '.join(tool.parameters) or 'none'}"
        if name in arguments:
            return f"{name} is given twice"
        stop = text.find(f"</{name}>", opening.end(), opening.end() + MAX_ARGUMENT_CHARS + len(name) + 3)
        if stop < 0:
            if len(text) - opening.end() > MAX_ARGUMENT_CHARS:
                return f"{name} is longer than {MAX_ARGUMENT_CHARS} characters"
            return f"<{name}> is not closed: write <{name}>VALUE</{name}>"
        value = _value(text[opening.end() : stop], kind)
        if value is None:
            return f"{name} must be {_describe(kind)}, not {_quote(text[opening.end() : stop])}"
        arguments[name] = value
        at = stop + len(name) + 3


def _value(text: str, kind: ParameterType) -> int | float | str | None:
    """None where the text is no such value."""
    if kind == "str":
        return None if "<" in text else _ENTITY.sub(lambda m: unescape(m.group()), text).strip()
    text = text.strip()
    if len(text) > MAX_DIGITS:
        return None
    if kind == "int":
        return int(text) if _INT.fullmatch(text) else None
    number = float(text) if _FLOAT.fullmatch(text) else math.inf
    return number if math.isfinite(number) else None


def _describe(kind: ParameterType) -> str:
    return {"int": "a whole number", "float": "a number", "str": "text without '<'"}[kind]


def _form(tools: Mapping[str, ToolSpec]) -> str:
    """How a call of the first tool looks."""
    for tool in tools.values():
        return (
            f"<{tool.name}>"
            + "".join(f"<{p}>{k.upper()}</{p}>" for p, k in tool.parameters.items())
            + f"</{tool.name}>"
        )
    return "nothing: there are no tools"


def _names(tools: Mapping[str, ToolSpec]) -> str:
    return ", ".join(tools) or "none"


def _quote(text: str) -> str:
    line = " ".join(text[: 4 * _SHOWN].split())
    return f"'{line[:_SHOWN]}{'…' if len(line) > _SHOWN else ''}'"


def _error(reason: str) -> ToolCall:
    return ToolCall("", {}, error=reason)
