"""The built-in verifiers: pure functions, total over any text.

What for: the answers of the built-in domains, and a start for a domain of one's own. Each failing verdict says why in
one of the words of `Failure`. Evidence that the environment should have left and did not is `Invalid`: the policy is
not to blame. Bounds: of an answer only its last `TAIL_CHARS` characters are searched.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypeGuard

from posttrain.records import Attempt, Failure, Invalid, Reward, Scored, Task
from posttrain.rewards.verdict import Verifier, failure_of

TAIL_CHARS = 10_000  # an answer stands at the end; what a flood of text holds before that is no answer
TOOL_OUTCOME = 0.8  # of `tool_answer`: weight of the right final answer
TOOL_COMPLIANCE = 0.2  # and of a call that could be executed: the step that has to be learned first
ATTEMPT_COST = 0.1  # of `pass_rate`, for each attempt after the first, where the task declares none

_NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])[-+\u2212]?\.[0-9]+"
)
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def exact(task: Task, attempt: Attempt) -> Reward:
    """The answer equals the expected one, but for white space around it."""
    return _verdict(attempt.answer.strip() == _expected(task).strip(), attempt)


def number(task: Task, attempt: Attempt) -> Reward:
    """The last number in the answer has the expected value: 1,000 = 1000.0; a sign counts, `5-3` ends in 3."""
    expected = _as_number(_expected(task))
    if expected is None:
        return Invalid(f"the task's answer {task.answer!r} is not a number")
    found = last_number(attempt.answer)
    return _verdict(found == expected, attempt, found is not None)


def word(task: Task, attempt: Attempt) -> Reward:
    """The answer ends in the expected word (or words), whatever the case and punctuation."""
    expected = words(_expected(task))
    if not expected:
        return Invalid(f"the task's answer {task.answer!r} holds no word")
    found = words(attempt.answer)
    return _verdict(found[-len(expected) :] == expected, attempt, bool(found))


def contains_word(task: Task, attempt: Attempt) -> Reward:
    """The expected word (or words, in a row) stands anywhere in the answer. Gives credit to who names everything: for
    retention
    measurements, not for training."""
    expected = words(_expected(task))
    if not expected:
        return Invalid(f"the task's answer {task.answer!r} holds no word")
    found = words(attempt.answer)
    n = len(expected)
    return _verdict(any(found[i : i + n] == expected for i in range(len(found) - n + 1)), attempt, bool(found))


def stdout_equals(task: Task, attempt: Attempt) -> Reward:
    """The command ended with 0 and printed the expected text, but for white space at the ends of lines and of the text.

    evidence: `exit`, `stdout` (what ran), `timed_out`, `truncated_output`.
    """
    status, stdout = attempt.evidence.get("exit"), attempt.evidence.get("stdout")
    if not isinstance(status, int) or not isinstance(stdout, str):
        return Invalid("no evidence of a command: the environment must leave exit and stdout")
    if attempt.truncated or not attempt.answer.strip():
        return Scored(0.0, {"outcome": 0.0}, failure_of(attempt))
    if status != 0 or attempt.evidence.get("timed_out") or attempt.evidence.get("truncated_output"):
        return Scored(0.0, {"outcome": 0.0}, Failure.TOOL_ERROR)
    return _verdict(_lines(stdout) == _lines(_expected(task)), attempt)


def pass_rate(task: Task, attempt: Attempt) -> Reward:
    """The share of tests that the last program passed, less a cost for each further attempt, at least 0.

    evidence: `pass_rate` (0 to 1), `attempts_used` (>= 1). The task's environment may set `attempt_cost`. parts:
    `outcome` (pass rate), `cost` (what was taken off).
    """
    rate, used = attempt.evidence.get("pass_rate"), attempt.evidence.get("attempts_used", 1)
    cost = task.environment.settings.get("attempt_cost", ATTEMPT_COST)
    if not _share(rate):
        return Invalid(f"evidence pass_rate is {rate!r}: the environment must leave a number from 0 to 1")
    if isinstance(used, bool) or not isinstance(used, int) or used < 1:
        return Invalid(f"evidence attempts_used is {used!r}: the environment must leave a whole number >= 1")
    if not _share(cost):
        return Invalid(f"the task's attempt_cost is {cost!r}: a number from 0 to 1")
    value = max(0.0, float(rate) - cost * (used - 1))
    failure = None if rate == 1 else failure_of(attempt)
    return Scored(value, {"outcome": float(rate), "cost": float(rate) - value}, failure)


def tool_answer(task: Task, attempt: Attempt) -> Reward:
    """The final number is right and a tool call was executed: an answer that was guessed is not correct.

    evidence: `tool_ok` (whether the call was executed), absent where no call was reached. value = TOOL_OUTCOME *
    outcome + TOOL_COMPLIANCE * compliance.
    """
    expected = _as_number(_expected(task))
    if expected is None:
        return Invalid(f"the task's answer {task.answer!r} is not a number")
    called = attempt.evidence.get("tool_ok") is True
    found = last_number(attempt.answer)
    right = called and found == expected
    parts = {"outcome": float(right), "compliance": float(called)}
    value = TOOL_OUTCOME * parts["outcome"] + TOOL_COMPLIANCE * parts["compliance"]
    if right:
        return Scored(value, parts)
    if attempt.truncated or not attempt.answer.strip():
        failure = failure_of(attempt)
    elif not called:
        failure = Failure.TOOL_ERROR if attempt.evidence.get("tool") else Failure.FORMAT
    else:
        failure = Failure.WRONG if found is not None else Failure.NO_ANSWER
    return Scored(value, parts, failure)


BUILTIN: Mapping[str, Verifier] = {
    "exact": exact,
    "number": number,
    "word": word,
    "contains_word": contains_word,
    "stdout_equals": stdout_equals,
    "pass_rate": pass_rate,
    "tool_answer": tool_answer,
}


def last_number(text: str) -> Decimal | None:
    """The last number in a text, None where there is none. ASCII digits, thousands in groups of three, a true minus
    sign too."""
    found = _NUMBER.findall(text[-TAIL_CHARS:])
    return _as_number(found[-1]) if found else None


def words(text: str) -> list[str]:
    """The words of a text, compatible characters unified (NFKC), case folded, without punctuation."""
    return _WORD.findall(unicodedata.normalize("NFKC", text[-TAIL_CHARS:]).casefold())


def _as_number(text: str) -> Decimal | None:
    try:
        value = Decimal(text.strip().replace(",", "").replace("\u2212", "-"))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def _expected(task: Task) -> str:
    return task.answer if isinstance(task.answer, str) else json.dumps(task.answer)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _share(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1


def _verdict(right: bool, attempt: Attempt, found: bool = True) -> Scored:
    if right:
        return Scored(1.0, {"outcome": 1.0})
    failure = failure_of(attempt)
    return Scored(0.0, {"outcome": 0.0}, Failure.NO_ANSWER if failure == Failure.WRONG and not found else failure)
