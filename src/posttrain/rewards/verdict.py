"""From what a verifier returns to a `Reward`. Pure.

Invariant: whatever is not clearly a verdict (None, text, NaN, an array, a number beyond all scales, an exception) is
`Invalid` with one line that says why. Never a silent zero.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from posttrain.records import Attempt, Failure, Invalid, Reward, Scored, Task

Verifier = Callable[[Task, Attempt], bool | float | Scored | Invalid]

MAX_VALUE = 1e6  # a reward beyond this is a bug of the verifier: no scale that a person declares comes near
REASON_CHARS = 300


def as_reward(value: object, attempt: Attempt) -> Reward:
    """A bool is 1 or 0, a finite number itself; Scored and Invalid stay. Anything else is Invalid.

    A bare value of 0 or less gets the failure that the attempt itself shows: truncated, no answer, or wrong.
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a scalar of numpy
    if isinstance(value, Invalid):
        return Invalid(one_line(value.reason))
    if isinstance(value, Scored):
        numbers = [value.value, *value.parts.values()]
    elif isinstance(value, (bool, int, float)):
        numbers = [value]
    else:
        return Invalid(f"verifier returned {_kind(value)}: it must return a bool, a number, Scored or Invalid")
    for number in numbers:
        if not math.isfinite(number):
            return Invalid(f"verifier returned {number!r}: a reward is a finite number")
        if abs(number) > MAX_VALUE:
            return Invalid(f"verifier returned {float(number):g}: a reward is at most {MAX_VALUE:g}")
    if isinstance(value, Scored):
        return value
    score = float(value)
    return Scored(score, failure=None if score > 0 else failure_of(attempt))


def failure_of(attempt: Attempt) -> str:
    """Why an attempt without credit failed, as far as it shows by itself."""
    if attempt.truncated:
        return Failure.TRUNCATED
    return Failure.WRONG if attempt.answer.strip() else Failure.NO_ANSWER


def explain(error: BaseException) -> str:
    """One line: type, message, and the file and line where the verifier raised."""
    frames = traceback.extract_tb(error.__traceback__)
    # Of a function that was sent by value only its name and line are known, not its file.
    place = frames[-1] if frames else None
    file = f" of {PurePath(place.filename).name}" if place and not place.filename.startswith("<") else ""
    where = f" (in {place.name}, line {place.lineno}{file})" if place else ""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the boundary to a user's own exception class, whose __str__ may itself raise
        message = ""
    return (
        one_line(f"verifier raised {type(error).__name__}{': ' if message else ''}{message}", REASON_CHARS - len(where))
        + where
    )


def encode(reward: Reward) -> dict[str, Any]:
    """JSON values; `decode` is the way back."""
    if isinstance(reward, Invalid):
        return {"invalid": reward.reason}
    return {
        "value": float(reward.value),
        "parts": {str(k): float(v) for k, v in reward.parts.items()},
        "failure": reward.failure,
    }


def decode(message: dict[str, Any]) -> Reward:
    if "invalid" in message:
        return Invalid(message["invalid"])
    return Scored(message["value"], message["parts"], message["failure"])


def one_line(text: str, limit: int = REASON_CHARS) -> str:
    line = " ".join(str(text)[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _kind(value: Any) -> str:
    if value is None:
        return "None (is a return missing?)"
    if isinstance(value, str):
        return f"the text {one_line(value, 40)!r}"
    return type(value).__name__
