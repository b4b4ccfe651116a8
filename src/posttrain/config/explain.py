"""Turns what pydantic found into one line: where it was written, the key, the value, and what may stand there."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from posttrain.config.layers import Layers, dotted
from posttrain.config.origins import DEFAULT, Origin
from posttrain.config.recipe import DOMAIN_NAME, IN_WORDS, DomainSection, Recipe, Section

MAX_SHOWN = 60  # characters of a wrong value in a message


def sections() -> dict[str, type[Section]]:
    """Section name -> its model, in the order of the recipe; `domain` is the model of one entry."""
    found: dict[str, type[Section]] = {}
    for name, info in Recipe.model_fields.items():
        found[name] = DomainSection if name == "domain" else info.annotation  # type: ignore[assignment]
    return found


def explain(error: ValidationError, layers: Layers) -> str:
    """The first problem as one line, and how many more there are."""
    problems = error.errors(include_url=False)
    # An unknown key explains a missing one, so it is told first.
    problems.sort(key=lambda p: p["type"] != "extra_forbidden")
    line = _one(problems[0], layers)
    return line if len(problems) == 1 else f"{line} (and {len(problems) - 1} more)"


def _one(problem: ErrorDetails, layers: Layers) -> str:
    path, message = list(problem["loc"]), str(problem["msg"]).removeprefix("Value error, ")
    if message.startswith("["):  # a validator of ours: it names the key it is about
        inner, _, message = message[1:].partition("] ")
        path += inner.split(".")
    inside_list = len(path) > (3 if path[:1] == ["domain"] else 2)
    path = _named(path, layers.values)
    key = dotted(path)
    where = layers.origins.get(key) or layers.tables.get(key) or _nearest_origin(path, layers)
    prefix = "" if where is DEFAULT else f"{where}: "
    if problem["type"] == "extra_forbidden":
        return f"{prefix}{key}: unknown key; {_suggestion([str(p) for p in path])}"
    if problem["type"] == "missing":
        return f"{prefix}{key} is missing: give {_wanted(path)}"
    if problem["type"] == "value_error":
        return f"{prefix}{key}: {message}"
    if inside_list:
        element = IN_WORDS[DOMAIN_NAME] if path[-1] in ("domains", "retention") else "a string"
        return f"{prefix}{key} holds {_shown(problem['input'])}: give {element}"
    return f"{prefix}{key} = {_shown(problem['input'])}: give {_wanted(path)}"


def _named(path: list[int | str], values: Mapping[str, Any]) -> list[int | str]:
    """Domains by their names instead of their numbers, and without the number inside a list of plain values."""
    if path[:1] == ["domain"] and len(path) > 1 and isinstance(path[1], int):
        return ["domain", list(values["domain"])[path[1]], *path[2:]][:3]
    return path[:2]


def _nearest_origin(path: list[int | str], layers: Layers) -> Origin:
    for end in range(len(path) - 1, 0, -1):
        found = layers.tables.get(dotted(path[:end]))
        if found:
            return found
    return DEFAULT


def _suggestion(path: list[str]) -> str:
    known = sections()
    if len(path) == 1:
        owners = [s for s, model in known.items() if path[0] in model.model_fields]
        if owners:
            return f"{path[0]} belongs under [{owners[0]}]"
        near = difflib.get_close_matches(path[0], known, 1, 0.5)
        return f"did you mean [{near[0]}]?" if near else f"the sections are {', '.join(known)}"
    section = path[0]
    fields = list(known[section].model_fields)
    near = difflib.get_close_matches(path[-1], fields, 1, 0.6)
    if near:
        return f"did you mean {near[0]}?"
    elsewhere = [f"{s}.{path[-1]}" for s, model in known.items() if path[-1] in model.model_fields]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    nearest = max(fields, key=lambda name: difflib.SequenceMatcher(None, path[-1], name).ratio())
    return f"the nearest key of [{section}] is {nearest}; docs/configuration.md lists them all"


def _wanted(path: list[int | str]) -> str:
    model = sections().get(str(path[0]))
    if model is None or len(path) == 1:
        return f"a table: write [{path[0]}] above its keys"
    info = model.model_fields[str(path[-1])]
    default = info.get_default(call_default_factory=True, validated_data={})
    shown = "" if default in (PydanticUndefined, None) else f" (default {toml_value(default)})"
    return allowed_values(info) + shown


def allowed_values(info: FieldInfo) -> str:
    """What may stand in a field, in words: `a whole number of at least 1`."""
    return _words(info.annotation, list(info.metadata))


def _words(annotation: Any, metadata: list[Any]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(json.dumps(a) for a in arguments)
    if origin in (Union, UnionType):
        return _words(next(a for a in arguments if a is not NoneType), metadata)
    if origin is list:
        return 'a list of strings, like ["a", "b"]'
    if annotation is bool:
        return "true or false"
    if annotation is str:
        pattern = next((p for m in metadata if (p := getattr(m, "pattern", None))), None)
        if pattern:
            return IN_WORDS[pattern]
        return "a string that is not empty" if any(getattr(m, "min_length", 0) for m in metadata) else "a string"
    noun = "a whole number" if annotation is int else "a number"
    bounds = [_bound(m) for m in metadata]
    return " ".join([noun, " and ".join(b for b in bounds if b)]).strip().replace("and of at", "and at")


def _bound(constraint: Any) -> str:
    for name, word in (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "of at most")):
        limit = getattr(constraint, name, None)
        if limit is not None:
            return f"{word} {limit}" if isinstance(limit, int) else f"{word} {limit:g}"
    return ""


def toml_value(value: Any) -> str:
    """A value as it would be written in a recipe."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML forbids it unescaped
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    return "unset" if value is None else str(value)


def _shown(value: Any) -> str:
    text = toml_value(value).replace("\n", " ")
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
