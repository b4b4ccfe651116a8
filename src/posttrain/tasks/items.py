"""Turns what a user gives (an `Item`, a row of columns, a ready `Task`) into a task with its split.

Invariant: the split of an item depends on its question alone (compared without case and runs of blanks), never on its
answer, the wording around it, its place in the file or the seed that drew it.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from posttrain.records import EnvironmentSpec, Message, Provenance, Split, Task, split_by_content, user
from posttrain.tasks.errors import DomainError, nearest
from posttrain.tasks.readers import missing

DEMONSTRATION = "demonstration"  # key of `EnvironmentSpec.settings`: the policy's turns of a right solution


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of a generator.

    question: what makes the item what it is; splits and duplicates go by it, so leave the surface form out of it.
    prompt: the text the policy sees (the question itself where None). demonstration: the policy's turns of a right
    solution, without stop strings. settings: added to the environment's. difficulty: 0 to 1.
    """

    question: str
    answer: Any
    prompt: str | None = None
    demonstration: tuple[str, ...] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    difficulty: float = 0.5


Given = Item | Task | Mapping[str, Any]
Demonstrations = str | Callable[[Task], Sequence[str] | str | None] | None


@dataclass(frozen=True, slots=True)
class Made:
    """A task and the question by which duplicates are told."""

    question: str
    task: Task


@dataclass(frozen=True, slots=True)
class TaskMaker:
    """Makes tasks of one domain. Every error is a `DomainError` that begins with `where`."""

    domain: str
    verifier: str
    check: Callable[..., Any] | None
    prompt: str | None
    answer: str | Sequence[str] | None
    environment: EnvironmentSpec
    render: Literal["chat", "text"]
    demonstration_column: str | None
    dev_share: float
    sealed_share: float
    provenance: Provenance

    def make(self, given: Any, where: str, seed: int | None = None, *, keep_split: bool = False) -> Made:
        """keep_split: whether a ready `Task` keeps its split (a list of tasks) or falls by its content (a
        generator)."""
        if isinstance(given, Task):
            return self._from_task(given, where, keep_split=keep_split)
        item = given if isinstance(given, Item) else self._from_row(given, where)
        if missing(item.question):
            raise DomainError(f"{where}: the question is empty")
        settings = {**self.environment.settings, **item.settings}
        if item.demonstration is not None:
            settings[DEMONSTRATION] = list(item.demonstration)
        content: tuple[Message, ...] = (user(item.question if item.prompt is None else item.prompt),)
        task = Task(
            domain=self.domain,
            split=self.split_of(item.question),
            prompt=content,
            verifier=self.verifier,
            answer=item.answer,
            render=self.render,
            environment=replace(self.environment, settings=settings) if settings else self.environment,
            difficulty=item.difficulty,
            provenance=replace(self.provenance, seed=seed),
            check=self.check,
        )
        return Made(item.question, _checked(task, where))

    def split_of(self, question: str) -> Split:
        return split_by_content(" ".join(question.casefold().split()), self.dev_share, self.sealed_share)

    def _from_task(self, task: Task, where: str, *, keep_split: bool) -> Made:
        if task.domain != self.domain:
            raise DomainError(
                f"{where}: a task of domain {task.domain!r} in {self.domain!r}: give it domain={self.domain!r}"
            )
        question = "\n".join(m.content for m in task.prompt)
        if missing(question):
            raise DomainError(f"{where}: the prompt is empty")
        split = task.split if keep_split else self.split_of(question)
        return Made(question, _checked(replace(task, split=split, verifier=self.verifier, check=self.check), where))

    def _from_row(self, row: Any, where: str) -> Item:
        if not isinstance(row, Mapping):
            raise DomainError(
                f"{where}: a {type(row).__name__}; a task is a row of columns (a dict), an Item or a Task"
            )
        form = self.prompt or self._default_prompt(row, where)
        names = columns_of(form)
        for name in names:
            self._cell(row, name, where, "the prompt")
        try:
            text = form.format_map(row)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DomainError(f"{where}: the prompt {form!r} does not fit the row ({error})") from error
        # One column is the question; several are kept apart, so that ("1", "23") and ("12", "3") differ.
        question = (
            str(row[names[0]])
            if len(names) == 1
            else json.dumps([str(row[name]) for name in names], ensure_ascii=False)
        )
        return Item(question, self._answer(row, where), text, self._demonstration(row, where))

    def _default_prompt(self, row: Mapping[str, Any], where: str) -> str:
        for name in ("prompt", "question"):
            if name in row:
                return f"{{{name}}}"
        raise DomainError(
            f"{where}: no column 'prompt' or 'question': "
            f"give prompt='... {{column}} ...' with one of {', '.join(map(str, row))}"
        )

    def _cell(self, row: Mapping[str, Any], name: str, where: str, use: str) -> Any:
        if name not in row:
            raise DomainError(f"{where}: no column {name!r} for {use}{nearest(name, (str(k) for k in row))}")
        if missing(row[name]):
            raise DomainError(f"{where}: column {name!r} is empty; {use} needs it")
        return row[name]

    def _answer(self, row: Mapping[str, Any], where: str) -> Any:
        if self.answer is None:
            return None
        if isinstance(self.answer, str):
            return self._cell(row, self.answer, where, "the answer (answer=None where the verifier needs none)")
        return {name: self._cell(row, name, where, "the answer") for name in self.answer}

    def _demonstration(self, row: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
        if self.demonstration_column is None:
            return None
        if self.demonstration_column in row and missing(row[self.demonstration_column]):
            return None  # demonstrations may be sparse
        return turns_of(self._cell(row, self.demonstration_column, where, "demonstrations"), where)


def turns_of(value: Any, where: str) -> tuple[str, ...]:
    """The policy's turns: one text is one turn."""
    turns = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else ()
    if not turns or not all(isinstance(t, str) for t in turns):
        raise DomainError(f"{where}: a demonstration is a text, or a list with one text for each turn of the policy")
    return turns


def columns_of(form: str) -> list[str]:
    """Names of the columns that a format string uses, in order, once each. Raises `DomainError` for a bad format
    string."""
    names: list[str] = []
    try:
        for _, name, spec, _ in string.Formatter().parse(form):
            names += [] if name is None else [re.split(r"[.\[]", name)[0], *(columns_of(spec) if spec else ())]
    except ValueError as error:
        raise DomainError(f"prompt {form!r}: {error}; write {{{{ and }}}} for braces that are text") from error
    if any(not name or name.isdigit() for name in names):
        raise DomainError(
            f"prompt {form!r}: name the columns, as in {{question}}; write {{{{ and }}}} for braces that are text"
        )
    return list(dict.fromkeys(names))


def distinct(made: Iterable[tuple[str, Made]]) -> list[Made]:
    """Leaves out repeats. Raises where one question has two answers or stands in two splits: both can not be right."""
    first: dict[str, tuple[str, Task]] = {}
    kept: list[Made] = []
    for where, one in made:
        if one.question not in first:
            first[one.question] = (where, one.task)
            kept.append(one)
            continue
        earlier, task = first[one.question]
        if task.split is not one.task.split:
            raise DomainError(
                f"{where}: the same question as {earlier}, in {one.task.split} and in {task.split}: keep one side"
            )
        if task.answer != one.task.answer:
            raise DomainError(f"{where}: the same question as {earlier} with another answer: keep the right one")
    return kept


def _checked(task: Task, where: str) -> Task:
    try:
        task.content_hash  # noqa: B018  (computing it proves that the answer can be stored)
        json.dumps(dict(task.environment.settings), allow_nan=False)
        json.dumps(task.answer, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DomainError(f"{where}: answer and settings must be JSON (text, number, list, ...): {error}") from error
    return task
