"""`tool_call`: ask a calculator in XML, read its result, answer. Two turns."""

from __future__ import annotations

import random
from collections.abc import Callable

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.forms import draw_other
from posttrain.tasks.items import Item

ASK = {
    "add": ("What is {a} plus {b}?", "Add {a} and {b}.", "What is the sum of {a} and {b}?"),
    "multiply": ("What is {a} times {b}?", "Multiply {a} by {b}.", "What is the product of {a} and {b}?"),
}
COMPUTE: dict[str, Callable[[int, int], int]] = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
RESULT_FORMAT = "Result: {result}\nAnswer:"
SHOTS = (("add", 31, 12), ("multiply", 27, 15))

Sum = tuple[str, int, int]


def call_of(name: str, a: int, b: int) -> str:
    return f"<{name}><a>{a}</a><b>{b}</b></{name}>"


def _shot(name: str, a: int, b: int) -> str:
    result = COMPUTE[name](a, b)
    ask, answer = ASK[name][0].format(a=a, b=b), RESULT_FORMAT.format(result=result)
    return f"{ask}\nCall: {call_of(name, a, b)}\n{answer} {result}\n"


def generate(rng: random.Random) -> Item:
    """An item is the operation and its numbers, however they are asked for."""

    def draw(rng: random.Random) -> Sum:
        return rng.choice(tuple(COMPUTE)), rng.randint(10, 99), rng.randint(10, 99)

    name, a, b = draw_other(rng, draw, [*SHOTS, *((name, b, a) for name, a, b in SHOTS)])
    variant = rng.randrange(len(ASK[name]))
    result = COMPUTE[name](a, b)
    return Item(
        question=f"{name} {min(a, b)} {max(a, b)}",
        answer=result,
        prompt="".join(_shot(*shot) for shot in SHOTS) + f"{ASK[name][variant].format(a=a, b=b)}\nCall:",
        demonstration=(" " + call_of(name, a, b), f" {result}"),
        difficulty=(0.3, 0.2, 0.5)[variant],
    )


def tool_call() -> Domain:
    return Domain(
        "tool_call",
        family="tools",
        tasks=generate,
        verifier="tool_answer",
        environment=EnvironmentSpec(
            kind="tool",
            max_turns=2,
            max_new_tokens=24,
            settings={"tools": list(COMPUTE), "result_format": RESULT_FORMAT},
        ),
        description="A sum or product, computed by calling a tool in XML; then the answer.",
        right="a tool ran without an error, and the number in the last turn is the result",
        cheats=("any call that runs, with the result worked out in the head: products of two digits make that rare",),
        base=BASE["tool_call"],
    )
