"""Sums and products: `arithmetic` trains two-digit addition, `one_digit_add` and `multiply` are kept to see what is
forgotten."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.forms import completion, draw_other, few_shot
from posttrain.tasks.families.held import RETENTION_SHARES
from posttrain.tasks.items import Item

RIGHT = "the number in the answer is the result"
CHEATS = ("none known: the result does not stand in the prompt, and a guess is right in about 1 of 100 cases",)

Pair = tuple[int, int]


def pairs(
    low: int, high: int, forms: Sequence[str], shots: Sequence[Pair], result: Callable[[int, int], int], sign: str
) -> Callable[[random.Random], Item]:
    """Items over two numbers of [low, high]. `a + b` and `b + a` are one item, so that they stand on one side."""

    def draw(rng: random.Random) -> Pair:
        return rng.randint(low, high), rng.randint(low, high)

    def generate(rng: random.Random) -> Item:
        a, b = draw_other(rng, draw, [*shots, *((b, a) for a, b in shots)])
        form = rng.choice(forms)
        rows = [{"a": x, "b": y, "answer": result(x, y)} for x, y in shots]
        answer = result(a, b)
        return Item(
            question=f"{min(a, b)} {sign} {max(a, b)}",
            answer=answer,
            prompt=few_shot(form, rows, {"a": a, "b": b}),
            demonstration=(completion(form, answer),),
            difficulty=answer / result(high, high),
        )

    return generate


def arithmetic() -> Domain:
    forms = ("{a} + {b} = {answer}", "{a} plus {b} is {answer}")
    return Domain(
        "arithmetic",
        family="arithmetic",
        tasks=pairs(10, 99, forms, ((31, 12), (27, 45)), lambda a, b: a + b, "+"),
        verifier="number",
        environment=EnvironmentSpec(max_new_tokens=8),
        description="The sum of two numbers of two digits.",
        right=RIGHT,
        cheats=CHEATS,
        base=BASE["arithmetic"],
    )


def one_digit_add() -> Domain:
    return Domain(
        "one_digit_add",
        family="arithmetic",
        tasks=pairs(
            1, 9, ("{a} + {b} = {answer}", "{a} plus {b} is {answer}"), ((3, 4), (6, 2)), lambda a, b: a + b, "+"
        ),
        verifier="number",
        environment=EnvironmentSpec(max_new_tokens=6),
        description="The sum of two numbers of one digit. Kept out of training.",
        right=RIGHT,
        cheats=("there are 43 items: a model that trained on them would know them by heart, so no split of it trains",),
        base=BASE["one_digit_add"],
        **RETENTION_SHARES,
    )


def multiply() -> Domain:
    return Domain(
        "multiply",
        family="arithmetic",
        tasks=pairs(
            2, 12, ("{a} * {b} = {answer}", "{a} times {b} is {answer}"), ((3, 4), (6, 2)), lambda a, b: a * b, "*"
        ),
        verifier="number",
        environment=EnvironmentSpec(max_new_tokens=6),
        description="The product of two numbers up to twelve. Kept out of training.",
        right=RIGHT,
        cheats=("there are 64 items: a model that trained on them would know them by heart, so no split of it trains",),
        base=BASE["multiply"],
        **RETENTION_SHARES,
    )
