"""Which number is the largest: of two (`larger`), of four (`maximum`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.forms import completion, draw_other, few_shot
from posttrain.tasks.items import Item

RIGHT = "the number in the answer is the largest"


def comparisons(
    count: int, ranges: Sequence[tuple[int, int]], forms: Sequence[tuple[str, str]], shots: Sequence[tuple[int, ...]]
) -> Callable[[random.Random], Item]:
    """Items over `count` different numbers, in an order that says nothing. An item is its numbers, whatever their
    order.

    forms: a form, and what stands between the numbers in it.
    """

    def draw(rng: random.Random) -> tuple[int, ...]:
        low, high = rng.choice(ranges)
        return tuple(rng.sample(range(low, high + 1), count))

    def generate(rng: random.Random) -> Item:
        numbers = draw_other(rng, draw, shots)
        form, join = rng.choice(forms)
        rows = [{"numbers": join.join(map(str, shot)), "answer": max(shot)} for shot in shots]
        answer = max(numbers)
        second = sorted(numbers)[-2]
        return Item(
            question=" ".join(map(str, sorted(numbers))),
            answer=answer,
            prompt=few_shot(form, rows, {"numbers": join.join(map(str, numbers))}),
            demonstration=(completion(form, answer),),
            difficulty=1 - (answer - second) / answer,  # a close second is hard to tell
        )

    return generate


def larger() -> Domain:
    forms = (("The larger of {numbers} is {answer}.", " and "), ("Which is larger, {numbers}? {answer}.", " or "))
    return Domain(
        "larger",
        family="comparison",
        tasks=comparisons(2, ((10, 99), (10, 99), (100, 999)), forms, ((31, 12), (27, 45))),
        verifier="number",
        environment=EnvironmentSpec(max_new_tokens=8),
        description="The larger of two numbers.",
        right=RIGHT,
        cheats=("always the first (or the last) number of the prompt is right in half of the cases",),
        base=BASE["larger"],
    )


def maximum() -> Domain:
    forms = (("max({numbers}) = {answer}", ", "), ("The largest of {numbers} is {answer}.", ", "))
    return Domain(
        "maximum",
        family="comparison",
        tasks=comparisons(4, ((10, 99),), forms, ((31, 12, 58, 40), (77, 45, 23, 61))),
        verifier="number",
        environment=EnvironmentSpec(max_new_tokens=8),
        description="The largest of four numbers of two digits.",
        right=RIGHT,
        cheats=("always the first number is right in a quarter of the cases",),
        base=BASE["maximum"],
    )
