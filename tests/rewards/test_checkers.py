"""The built-in verifiers: right in every form is right, wrong is wrong and says why, and no text makes them stumble."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.records import Attempt, EnvironmentSpec, Failure, Invalid, Scored, Split, Task, user
from posttrain.rewards import BUILTIN
from posttrain.rewards.checkers import last_number, words


def task(answer: Any, **settings: Any) -> Task:
    return Task("d", Split.TRAIN, (user("q"),), "number", answer=answer, environment=EnvironmentSpec(settings=settings))


def verdict(
    name: str, answer: Any, text: str, evidence: dict[str, Any] | None = None, truncated: bool = False, **settings: Any
) -> Scored:
    result = BUILTIN[name](task(answer, **settings), Attempt(text, text, evidence or {}, truncated=truncated))
    assert isinstance(result, Scored), result
    return result


RIGHT = [
    ("exact", "a b", " a b\n"),
    ("exact", 5, "5"),
    ("number", 42, "42"),
    ("number", 42, "12 + 30 = 42."),
    ("number", 1000, "It is 1,000"),
    ("number", 1234567, "1,234,567 people"),
    ("number", 1000, "1000.00"),
    ("number", -5, "minus: -5"),
    ("number", -5, "\u22125"),
    ("number", 3, "5-3"),
    ("number", 0.5, ".5"),
    ("number", "2.50", "$2.5"),
    ("number", 7, "x7 is 7th, so 7"),
    ("number", 10**50, f"{10**50:,}"),
    ("word", "yes", "The answer is: **Yes**."),
    ("word", "don't", "No, I don’t!".replace("’", "'")),
    ("word", "New York", "in new york"),
    ("word", "café", "cafe\u0301"),
    ("contains_word", "red", "It was Red, then blue"),
    ("contains_word", "New York", "from new york to rome"),
]
WRONG = [
    ("exact", "a b", "a  b", Failure.WRONG),
    ("exact", "Yes", "yes", Failure.WRONG),
    ("exact", "a", "", Failure.NO_ANSWER),
    ("number", 42, "42 or 43", Failure.WRONG),
    ("number", 5, "-5", Failure.WRONG),
    ("number", 42, "forty-two", Failure.NO_ANSWER),
    ("number", 42, " \n", Failure.NO_ANSWER),
    ("number", 42, "x42", Failure.NO_ANSWER),
    ("number", 3, "٣", Failure.NO_ANSWER),
    ("number", 123, "1,23", Failure.WRONG),
    ("word", "yes", "yes, no", Failure.WRONG),
    ("word", "yes", "yesterday", Failure.WRONG),
    ("word", "yes", "...", Failure.NO_ANSWER),
    ("word", "yes", "уes", Failure.WRONG),  # the first letter is Cyrillic
    ("contains_word", "red", "bored", Failure.WRONG),
    ("contains_word", "New York", "York New", Failure.WRONG),
]


@pytest.mark.parametrize(("name", "answer", "text"), RIGHT)
def test_right_in_another_form_is_right(name: str, answer: Any, text: str) -> None:
    assert verdict(name, answer, text) == Scored(1.0, {"outcome": 1.0})


@pytest.mark.parametrize(("name", "answer", "text", "failure"), WRONG)
def test_wrong_is_wrong_and_says_why(name: str, answer: Any, text: str, failure: str) -> None:
    assert verdict(name, answer, text) == Scored(0.0, {"outcome": 0.0}, failure)
    assert verdict(name, answer, text, truncated=True).failure == Failure.TRUNCATED


def test_a_command_is_judged_by_what_it_printed() -> None:
    ran = {"exit": 0, "stdout": "a  \nb\n\n"}
    assert verdict("stdout_equals", "a\nb", "ls", ran).value == 1
    assert verdict("stdout_equals", "a\nc", "ls", ran).failure == Failure.WRONG
    assert verdict("stdout_equals", "a\nb", "", ran).failure == Failure.NO_ANSWER
    assert verdict("stdout_equals", "a\nb", "ls", {**ran, "exit": 1}).failure == Failure.TOOL_ERROR
    assert verdict("stdout_equals", "a\nb", "ls", {**ran, "timed_out": True}).failure == Failure.TOOL_ERROR
    assert verdict("stdout_equals", "a\nb", "ls", {**ran, "truncated_output": True}).failure == Failure.TOOL_ERROR


def test_tests_passed_count_less_the_cost_of_further_attempts() -> None:
    assert verdict("pass_rate", None, "x", {"pass_rate": 1.0, "attempts_used": 1}) == Scored(
        1.0, {"outcome": 1.0, "cost": 0.0}
    )
    later = verdict("pass_rate", None, "x", {"pass_rate": 1.0, "attempts_used": 3}, attempt_cost=0.2)
    assert later.value == pytest.approx(0.6) and later.parts["cost"] == pytest.approx(0.4) and later.failure is None
    failed = verdict("pass_rate", None, "x", {"pass_rate": 0.25, "attempts_used": 9})
    assert failed.value == 0 and failed.parts == {"outcome": 0.25, "cost": 0.25} and failed.failure == Failure.WRONG


def test_a_guess_without_the_tool_is_not_correct() -> None:
    called = {"tool": "add", "tool_ok": True, "tool_result": "42"}
    assert verdict("tool_answer", 42, "it is 42", called) == Scored(1.0, {"outcome": 1.0, "compliance": 1.0})
    assert verdict("tool_answer", 42, "it is 41", called) == Scored(
        0.2, {"outcome": 0.0, "compliance": 1.0}, Failure.WRONG
    )
    assert verdict("tool_answer", 42, "done", called).failure == Failure.NO_ANSWER
    assert verdict("tool_answer", 42, "42") == Scored(0.0, {"outcome": 0.0, "compliance": 0.0}, Failure.FORMAT)
    assert verdict("tool_answer", 42, "42", {"tool": "", "tool_ok": False}).failure == Failure.FORMAT
    assert verdict("tool_answer", 42, "42", {"tool": "add", "tool_ok": False}).failure == Failure.TOOL_ERROR
    assert verdict("tool_answer", 42, "42", {"tool_ok": "yes"}).value == 0


FAULTS = [
    ("number", "many", {}),
    ("number", True, {}),
    ("number", "NaN", {}),
    ("word", "...", {}),
    ("stdout_equals", "a", {}),
    ("stdout_equals", "a", {"exit": 0}),
    ("pass_rate", None, {}),
    ("pass_rate", None, {"pass_rate": float("nan")}),
    ("pass_rate", None, {"pass_rate": 2}),
    ("pass_rate", None, {"pass_rate": True}),
    ("pass_rate", None, {"pass_rate": 1, "attempts_used": 0}),
    ("tool_answer", None, {"tool_ok": True}),
]


@pytest.mark.parametrize(("name", "answer", "evidence"), FAULTS)
def test_what_is_not_the_policys_fault_is_invalid(name: str, answer: Any, evidence: dict[str, Any]) -> None:
    assert isinstance(BUILTIN[name](task(answer), Attempt("42", evidence=evidence)), Invalid)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda v: st.lists(v, max_size=2), max_leaves=3
)
evidence = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("exit", "stdout", "pass_rate", "attempts_used", "tool_ok", "tool"), json_values)
)


@given(
    st.sampled_from(sorted(BUILTIN)),
    json_values,
    st.text() | st.from_regex(r"[-+0-9.,eE\u2212 ]*"),
    evidence,
    st.booleans(),
)
def test_no_text_and_no_evidence_make_a_checker_stumble(
    name: str, answer: Any, text: str, seen: dict[str, Any], cut: bool
) -> None:
    result = BUILTIN[name](task(answer), Attempt(text, text, seen, truncated=cut))
    if isinstance(result, Scored):
        assert 0 <= result.value <= 1 and all(math.isfinite(p) for p in result.parts.values())
        assert result.failure in Failure.ALL or result.parts["outcome"] == 1
    else:
        assert isinstance(result, Invalid) and result.reason and "\n" not in result.reason


@given(
    st.integers() | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=3),
    st.text(alphabet="ab c\n:=$*"),
)
def test_a_number_is_found_behind_any_words(value: Any, before: str) -> None:
    assert last_number(f"{before} {value}") == value == last_number(f"{before}={value:,}.")


@given(st.text(), st.text())
def test_words_do_not_depend_on_case_or_marks(a: str, b: str) -> None:
    assert words(a + " " + b) == words(a) + words(b)
    assert words(f"**{a}**!") == words(a)


@pytest.mark.parametrize("piece", ["1", "1,", "1,234", "-", ".", "a'", "1.1", "\u2212", "é"])
def test_a_flood_of_text_takes_no_time(piece: str) -> None:
    text = piece * (5_000_000 // len(piece))
    for name in ("exact", "number", "word", "contains_word", "tool_answer"):
        assert verdict(name, 42, text, {"tool_ok": True}).value < 1
