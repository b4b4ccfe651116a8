"""The built-in tools, and how a call becomes a result. A plain dictionary: nothing registers itself.

Invariant: what the policy got wrong (no call, a bad argument, an unknown item) is a `ToolResult` with ok False and
words that help it; an exception that is not a ValueError is a bug of the tool and is raised.
Bounds: a result is cut after `MAX_RESULT_CHARS`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from posttrain.records import ToolCall, ToolResult
from posttrain.tools.spec import ToolSpec

MAX_RESULT_CHARS = 2000  # what a policy with a short context can still read


def _add(a: int, b: int) -> int:
    return a + b


def _subtract(a: int, b: int) -> int:
    return a - b


def _multiply(a: int, b: int) -> int:
    return a * b


BUILTIN: Mapping[str, ToolSpec] = {
    "add": ToolSpec("add", {"a": "int", "b": "int"}, "The sum a + b.", _add),
    "subtract": ToolSpec("subtract", {"a": "int", "b": "int"}, "The difference a - b.", _subtract),
    "multiply": ToolSpec("multiply", {"a": "int", "b": "int"}, "The product a * b.", _multiply),
}


def price_of(prices: Mapping[str, Any]) -> ToolSpec:
    """A tool that looks an item up in `prices` (item -> price)."""
    table = {str(item).casefold(): price for item, price in prices.items()}

    def look_up(item: str) -> Any:
        try:
            return table[item.casefold()]
        except KeyError:
            known = ", ".join(list(table)[:10])
            raise ValueError(f"no item {item[:40]!r}: there is {known}") from None

    return ToolSpec("price_of", {"item": "str"}, "The price of an item.", look_up)


def tools_for(settings: Mapping[str, Any]) -> dict[str, ToolSpec]:
    """The tools of one episode, from its environment's settings: `tools` (names, all the built-in ones where it is
    absent) and
    `prices` (item -> price), which `price_of` needs. ValueError for a name that does not exist."""
    available = dict(BUILTIN)
    if "prices" in settings:
        available["price_of"] = price_of(settings["prices"])
    names = settings.get("tools", list(available))
    unknown = [n for n in names if n not in available]
    if unknown:
        why = " (it needs the setting 'prices')" if "price_of" in unknown else ""
        raise ValueError(f"unknown tool {unknown[0]!r}{why}: there is {', '.join(available)}")
    return {name: available[name] for name in names}


def execute(call: ToolCall, tools: Mapping[str, ToolSpec]) -> ToolResult:
    """Runs a parsed call; seconds: wall clock of the tool. A call with an error is answered with that error."""
    if call.error is not None:
        return ToolResult(call, f"error: {call.error}", ok=False)
    tool = tools.get(call.name)
    if tool is None:
        return ToolResult(call, f"error: unknown tool {call.name[:40]!r}", ok=False)
    if set(call.arguments) != set(tool.parameters):
        return ToolResult(call, f"error: {call.name} takes {', '.join(tool.parameters) or 'no arguments'}", ok=False)
    start = time.perf_counter()
    try:
        content, ok = str(tool.function(**call.arguments)), True
    except ValueError as error:
        content, ok = f"error: {error}", False
    if len(content) > MAX_RESULT_CHARS:
        content = content[:MAX_RESULT_CHARS] + "… (cut)"
    return ToolResult(call, content, ok, time.perf_counter() - start)
