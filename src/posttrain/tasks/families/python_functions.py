"""`write_run_debug`: a small Python function from one sentence; its tests run, and the first failure comes back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posttrain.records import EnvironmentSpec
from posttrain.tasks.domain import Domain
from posttrain.tasks.families.base_rates import BASE
from posttrain.tasks.families.lists import WORDS
from posttrain.tasks.items import Item

SHOTS = """# Return x divided by 2.
def f(x):
    return x / 2

# Return the smaller of a and b.
def f(a, b):
    return min(a, b)

"""
TESTS = 6


@dataclass(frozen=True, slots=True)
class Kind:
    """One function. ask and body are format strings over k (a small number); reference computes the expected
    results."""

    ask: str
    parameters: str
    body: str
    reference: Callable[..., Any]
    difficulty: float = 0.5


# reference takes k first. Each has a parameter, so that the items of a kind fall on all sides.
KINDS = (
    Kind("x plus {k}", "x", "x + {k}", lambda k, x: x + k, 0.1),
    Kind("x minus {k}", "x", "x - {k}", lambda k, x: x - k, 0.1),
    Kind("{k} times x plus 1", "x", "{k} * x + 1", lambda k, x: k * x + 1, 0.3),
    Kind("the square of x minus {k}", "x", "x * x - {k}", lambda k, x: x * x - k, 0.4),
    Kind("a plus {k} times b", "a, b", "a + {k} * b", lambda k, a, b: a + k * b, 0.3),
    Kind("True if x is greater than {k}", "x", "x > {k}", lambda k, x: x > k, 0.1),
    Kind("True if x is divisible by {k}", "x", "x % {k} == 0", lambda k, x: x % k == 0, 0.3),
    Kind("the larger of x and {k}", "x", "max(x, {k})", lambda k, x: max(x, k), 0.3),
    Kind("the distance between x and {k}", "x", "abs(x - {k})", lambda k, x: abs(x - k), 0.7),
    Kind("the first {k} characters of s", "s", "s[:{k}]", lambda k, s: s[:k], 0.3),
    Kind("the last {k} characters of s", "s", "s[-{k}:]", lambda k, s: s[-k:], 0.5),
    Kind("s repeated {k} times", "s", "s * {k}", lambda k, s: s * k, 0.4),
    Kind("True if s has more than {k} characters", "s", "len(s) > {k}", lambda k, s: len(s) > k, 0.4),
    Kind("the list xs without its first {k} elements", "xs", "xs[{k}:]", lambda k, xs: xs[k:], 0.6),
    Kind("the sum of the numbers in xs plus {k}", "xs", "sum(xs) + {k}", lambda k, xs: sum(xs) + k, 0.5),
    Kind("each number in xs times {k}", "xs", "[x * {k} for x in xs]", lambda k, xs: [x * k for x in xs], 0.6),
    Kind(
        "how many numbers in xs are greater than {k}",
        "xs",
        "sum(x > {k} for x in xs)",
        lambda k, xs: sum(x > k for x in xs),
        0.9,
    ),
    Kind(
        "the numbers in xs that are less than {k}",
        "xs",
        "[x for x in xs if x < {k}]",
        lambda k, xs: [x for x in xs if x < k],
        0.7,
    ),
)


def generate(rng: random.Random) -> Item:
    """An item is the sentence and its parameters; the tests are drawn anew."""
    kind = rng.choice(KINDS)
    k = rng.randint(2, 9 if kind.parameters in ("s", "xs") else 40)  # short texts and lists: they stand in the log
    ask = kind.ask.format(k=k)
    signature = f"def f({kind.parameters}):"
    tests = _tests(rng, kind, k)
    while all(expected == tests[0][1] for _, expected in tests):  # a constant must not pass
        tests = _tests(rng, kind, k)
    head = f"# Return {ask}.\n{signature}"
    return Item(
        question=ask,
        answer=None,
        prompt=SHOTS + head,
        demonstration=("\n    return " + kind.body.format(k=k),),
        settings={"signature": signature, "tests": tests, "feedback_format": "\n# Wrong: {log}\n" + head},
        difficulty=kind.difficulty,
    )


def _tests(rng: random.Random, kind: Kind, k: int) -> list[list[Any]]:
    names = [name.strip() for name in kind.parameters.split(",")]
    calls = [[_argument(rng, name, k, i + 2 * j) for j, name in enumerate(names)] for i in range(TESTS)]
    return [[call, kind.reference(k, *call)] for call in calls]


def _argument(rng: random.Random, name: str, k: int, i: int) -> Any:
    """The value of a parameter in test i: one anywhere, the others around k, where functions differ."""
    if name == "s":
        length = (k + 2, k, k - 1, k + 1, 1, 2 * k)[i % TESTS]
        return "".join(rng.sample(WORDS, 5))[:length]
    if name == "xs":
        return [*(rng.randint(0, 12) for _ in range((k + 1, 3, k, 2, 5, 4)[i % TESTS])), k]
    return (rng.randint(-3, 20), k, k + 1, 3 * k, k - 1, 0)[i % TESTS]


def write_run_debug() -> Domain:
    return Domain(
        "write_run_debug",
        family="code",
        tasks=generate,
        answer=None,
        verifier="pass_rate",
        environment=EnvironmentSpec(
            kind="write_run_debug",
            max_turns=2,
            max_new_tokens=24,
            stop=("\n\n",),
            settings={"function": "f", "max_attempts": 2, "attempt_cost": 0.1},
        ),
        description="A small Python function from one sentence. A failing test comes back, for a second attempt.",
        right="all tests pass; the reward is the share that passes, less 0.1 for each further attempt",
        cheats=(
            "a constant passes the tests that expect it: half of them where the result is True or False",
            "the second attempt can special-case the test that was shown: one of six",
        ),
        base=BASE["write_run_debug"],
    )
