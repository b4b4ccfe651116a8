"""Reading a list of words: which stands last (`last_word`), how many there are (`count_words`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.forms import completion, few_shot
from posttrain.tasks.items import Item

WORDS = tuple(
    """apple river stone chair cloud tiger bread window garden pencil ocean lemon horse candle bridge island pepper
    rocket silver basket engine flower mirror orange planet ribbon tunnel violet wagon zebra anchor barrel
    button carpet castle coffee copper cotton desert dragon eagle feather forest hammer harbor jacket kitchen
    ladder market meadow needle parrot pocket rabbit saddle shadow ticket turtle
    valley winter""".split()  # noqa: SIM905
)
# The shots use words of their own: no item repeats one.
SHOTS = (("book", "lamp", "fish", "moon"), ("desk", "train", "salt"))
COUNT_SHOTS = (("book", "lamp", "fish", "moon"), ("desk", "train"), ("salt", "ring", "pond", "leaf", "boat", "rope"))


def lists(
    low: int,
    high: int,
    forms: Sequence[str],
    join: str,
    shots: Sequence[Sequence[str]],
    result: Callable[[Sequence[str]], object],
) -> Callable[[random.Random], Item]:
    """Items over a list of low to high different words."""

    def generate(rng: random.Random) -> Item:
        words = rng.sample(WORDS, rng.randint(low, high))
        form = rng.choice(forms)
        rows = [{"words": join.join(shot), "answer": result(shot)} for shot in shots]
        answer = result(words)
        return Item(
            question=" ".join(words),
            answer=answer,
            prompt=few_shot(form, rows, {"words": join.join(words)}),
            demonstration=(completion(form, answer),),
            difficulty=len(words) / high,
        )

    return generate


def last_word() -> Domain:
    return Domain(
        "last_word",
        family="lists",
        tasks=lists(
            3,
            6,
            ("List: {words}\nLast word: {answer}", "Words: {words}. The last word is {answer}."),
            ", ",
            SHOTS,
            lambda words: words[-1],
        ),
        verifier="word",
        environment=EnvironmentSpec(max_new_tokens=8),
        description="The last word of a list of three to six words.",
        right="the word in the answer is the last of the list",
        cheats=("repeating the whole list ends with the right word: max_new_tokens is too small for it",),
        base=BASE["last_word"],
    )


def count_words() -> Domain:
    return Domain(
        "count_words",
        family="lists",
        tasks=lists(
            2,
            6,
            ("Words: {words}\nCount: {answer}", "Words: {words}. Number of words: {answer}"),
            " ",
            COUNT_SHOTS,
            len,
        ),
        verifier="number",
        environment=EnvironmentSpec(max_new_tokens=6),
        description="How many words a list of two to six words has.",
        right="the number in the answer is the count",
        cheats=("always the same number is right in a fifth of the cases",),
        base=BASE["count_words"],
    )
