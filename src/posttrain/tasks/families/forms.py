"""Few-shot prompts as plain text, in forms that a language model continues by itself.

Each form is a line of text with the answer where it would naturally stand; the shots are that line filled in, the
question is the same line cut at the answer. Plain text was measured to do better than the chat template with a small
model, and is half as long.

Invariant: an item is never one of the shots (`draw_other`), so that none is answered in its own prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
MAX_TRIES = 1000  # shots are a handful among hundreds of items: a thousandth collision in a row is a bug


def few_shot(form: str, shots: Sequence[Mapping[str, Any]], question: Mapping[str, Any]) -> str:
    """form: a text with `{answer}` in it and other columns before it. Ends right before the blank that precedes the
    answer: tokenizers put that blank into the answer's first token."""
    before = form.split("{answer}")[0].rstrip(" ")
    return "\n".join([*(form.format(**shot) for shot in shots), before.format(**question)])


def completion(form: str, answer: object) -> str:
    """What a policy writes that continues `few_shot` rightly, without the stop string."""
    return " " + ("{answer}" + form.split("{answer}")[1]).format(answer=answer)


def draw_other(rng: random.Random, draw: Callable[[random.Random], T], shots: Collection[T]) -> T:
    """An item that is not one of the shots."""
    for _ in range(MAX_TRIES):
        item = draw(rng)
        if item not in shots:
            return item
    raise AssertionError(f"{MAX_TRIES} items in a row were shots")
