"""The domains that come with posttrain. A plain table: nothing registers itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from posttrain.tasks.domain import Domain
from posttrain.tasks.errors import DomainError, nearest
from posttrain.tasks.families.arithmetic import arithmetic, multiply, one_digit_add
from posttrain.tasks.families.comparison import larger, maximum
from posttrain.tasks.families.knowledge import capitals, opposites, plural
from posttrain.tasks.families.lists import count_words, last_word
from posttrain.tasks.families.python_functions import write_run_debug
from posttrain.tasks.families.shell_lines import shell
from posttrain.tasks.families.tool_call import tool_call

TRAINING: Mapping[str, Callable[[], Domain]] = {
    "arithmetic": arithmetic,
    "larger": larger,
    "maximum": maximum,
    "last_word": last_word,
    "count_words": count_words,
    "tool_call": tool_call,
    "shell": shell,
    "write_run_debug": write_run_debug,
}
RETENTION: Mapping[str, Callable[[], Domain]] = {
    "one_digit_add": one_digit_add,
    "multiply": multiply,
    "capitals": capitals,
    "plural": plural,
    "opposites": opposites,
}
BUILTIN: Mapping[str, Callable[[], Domain]] = {**TRAINING, **RETENTION}


def list_domains() -> tuple[str, ...]:
    """Names of the built-in domains, those to train on first."""
    return tuple(BUILTIN)


def get_domain(name: str) -> Domain:
    """A fresh built-in domain (its `sample` starts at the beginning). Raises `DomainError` with the nearest names."""
    if name not in BUILTIN:
        raise DomainError(f"no domain {name!r}{nearest(name, BUILTIN)}")
    return BUILTIN[name]()
