"""Judges an answer. Runs in a process of its own, with a time limit; if it raises, the attempt has no verdict."""

from __future__ import annotations

from posttrain import Attempt, Task


def judge(task: Task, attempt: Attempt) -> bool | float:
    """True or False, or a number from 0 to 1 for a partial credit.

    task.answer is the answer column of the row. attempt.answer is what the model wrote, without the stop string.
    """
    words = attempt.answer.split()
    return bool(words) and words[0].strip(",;:'\"").lower() == str(task.answer).lower()
