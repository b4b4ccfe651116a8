"""A domain: tasks that share a verifier; the unit of mixing, curriculum and reporting.

    Domain("capitals", tasks="capitals.csv", prompt="The capital of {country} is", answer="capital", verifier="exact")
    Domain("sums", tasks=lambda rng: {"a": rng.randint(1, 99), ...}, prompt="{a} + {b} =", verifier="number")

Invariants: everything is a function of the construction and the arguments (no clock, locale, time zone or `hash()`);
an item stands on one side only, because its split is a hash of its question; `draw` leaves no trace, `sample` moves a
counter.
Bounds: a file is held in memory; a generator is asked a bounded number of times for each item.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from posttrain.records import Attempt, EnvironmentSpec, Provenance, Reward, Split, Task
from posttrain.tasks.card import BaseRate, Card
from posttrain.tasks.errors import DomainError, nearest
from posttrain.tasks.items import DEMONSTRATION, Demonstrations, Given, Item, TaskMaker, columns_of, turns_of
from posttrain.tasks.readers import read_rows
from posttrain.tasks.sources import DrawnTasks, FixedTasks, Source, as_sequence, check_count

Verifier = Callable[[Task, Attempt], bool | float | Reward]
TaskSource = Iterable[Task | Item | Mapping[str, Any]] | Path | str | Callable[[random.Random], Given]

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
MAX_NAME_CHARS = 80  # it stands in task ids and in file names


class Domain:
    """Tasks that share a verifier.

    tasks: rows (mappings), `Item`s or `Task`s; or the path of a JSONL, CSV or Parquet file; or a function of
        `random.Random` that makes one item. A list's ready tasks keep their split; all else falls by its question.
    verifier: `(task, attempt) -> bool | float | Reward`, or the name of one of `posttrain.rewards`.
    prompt: format string over the columns of a row; without it the column `prompt` or `question` is the prompt.
    answer: the column that the verifier compares with; several columns make a dict; None where the verifier needs none.
    demonstrations: the column that holds a right solution, or a function of the task; the warm-up trains
        on those that the verifier accepts.
    dev_share, sealed_share: fractions of the items that are held out.
    Raises `DomainError` (one line, with the mend).
    """

    def __init__(
        self,
        name: str,
        *,
        tasks: TaskSource,
        verifier: Verifier | str,
        prompt: str | None = None,
        answer: str | Sequence[str] | None = "answer",
        environment: EnvironmentSpec | None = None,
        render: Literal["chat", "text"] = "text",
        demonstrations: Demonstrations = None,
        description: str = "",
        right: str = "",
        cheats: Sequence[str] = (),
        base: Sequence[BaseRate] = (),
        family: str = "own",
        version: str = "1",
        licence: str = "Apache-2.0",
        dev_share: float = 0.2,
        sealed_share: float = 0.1,
    ) -> None:
        _check(name, verifier, render, dev_share, sealed_share)
        if prompt is not None:
            columns_of(prompt)
        self.name, self.verifier, self.version = name, verifier, version
        self.verifier_name: str = (
            verifier
            if isinstance(verifier, str)
            else f"{name}:{getattr(verifier, '__name__', type(verifier).__name__)}"
        )
        self.environment = environment if environment is not None else EnvironmentSpec()
        self._demonstrate = demonstrations if callable(demonstrations) else None
        path = Path(tasks) if isinstance(tasks, (str, Path)) else None
        maker = TaskMaker(
            domain=name,
            verifier=self.verifier_name,
            check=None if isinstance(verifier, str) else verifier,
            prompt=prompt,
            answer=answer,
            environment=self.environment,
            render=render,
            demonstration_column=demonstrations if isinstance(demonstrations, str) else None,
            dev_share=dev_share,
            sealed_share=sealed_share,
            provenance=Provenance(f"file:{path.name}" if path else f"domain:{name}", version, licence=licence),
        )
        self._source = _source(name, tasks, path, maker)
        self._position = dict.fromkeys(Split, 0)
        shares = {Split.TRAIN: round(1 - dev_share - sealed_share, 9), Split.DEV: dev_share, Split.SEALED: sealed_share}
        self._card = Card(
            name=name,
            family=family,
            version=version,
            licence=licence,
            verifier=self.verifier_name,
            environment=self.environment.kind,
            splits={str(s): {"share": shares[s], "tasks": self._source.size(s)} for s in Split},
            description=description,
            right=right,
            cheats=tuple(cheats),
            base=tuple(base),
        )

    def sample(self, n: int, split: Split | str = Split.TRAIN, seed: int | None = None) -> list[Task]:
        """The next n tasks of the domain's endless sequence; with a seed, `draw(n, split, seed)`.

        The sequence starts over with each construction. A list is passed through as a whole before a task comes again.
        """
        if seed is not None:
            return self.draw(n, split, seed)
        check_count(n)
        split = _split(split)
        tasks = self._source.stream(n, split, self._position[split])
        self._position[split] += n
        return tasks

    def draw(self, n: int, split: Split | str, seed: int, exclude: frozenset[str] = frozenset()) -> list[Task]:
        """n distinct tasks of a split, the same for the same arguments. exclude: ids of tasks to leave out."""
        check_count(n)
        return self._source.draw(n, _split(split), seed, exclude)

    def tasks(self, split: Split | str = Split.TRAIN) -> list[Task]:
        """All tasks of a split, in the order they were given. Raises for a generator, which has no end."""
        split = _split(split)
        if not isinstance(self._source, FixedTasks):
            raise DomainError(f"domain {self.name!r} makes its tasks: use draw(n, split, seed)")
        return list(self._source.by_split[split])

    def demonstrate(self, task: Task) -> tuple[str, ...] | None:
        """The policy's turns of a right solution, without stop strings (append `task.environment.stop[0]` to each);
        None where none is known."""
        turns = self._demonstrate(task) if self._demonstrate else task.environment.settings.get(DEMONSTRATION)
        return None if turns is None else turns_of(turns, task.id)

    def card(self) -> Card:
        return self._card

    def __repr__(self) -> str:
        return f"Domain({self.name!r}, verifier={self.verifier_name!r}, environment={self.environment.kind!r})"


def _source(name: str, tasks: TaskSource, path: Path | None, maker: TaskMaker) -> Source:
    if path is not None:
        rows = read_rows(path)
        unit = "row" if path.suffix.lower() == ".parquet" else "line"
        placed = ((f"{path} {unit} {number}", row) for number, row in rows)
        return FixedTasks.of(name, ((where, maker.make(row, where)) for where, row in placed))
    if callable(tasks):
        return DrawnTasks(name, tasks, maker)
    given = as_sequence(tasks)
    if given is None or isinstance(tasks, Mapping):
        raise DomainError(
            f"tasks of {name!r} is a {type(tasks).__name__}: give rows, a path, or a function of random.Random"
        )
    numbered = ((f"task {i} of {name!r}", one) for i, one in enumerate(given))
    return FixedTasks.of(name, ((where, maker.make(one, where, keep_split=True)) for where, one in numbered))


def _split(split: Split | str) -> Split:
    try:
        return Split(split)
    except ValueError:
        raise DomainError(f"no split {split!r}{nearest(str(split), [str(s) for s in Split])}") from None


def _check(name: object, verifier: object, render: object, dev_share: float, sealed_share: float) -> None:
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not NAME.fullmatch(name):
        raise DomainError(
            f"domain name {name!r}: use lower-case letters, digits, '-', '_' and '.', at most {MAX_NAME_CHARS}, no '/'"
        )
    if not callable(verifier) and not (isinstance(verifier, str) and verifier.strip()):
        raise DomainError(
            f"verifier of {name!r} is {verifier!r}: "
            "give a function (task, attempt) -> bool | float, or a name such as 'exact'"
        )
    if render not in ("chat", "text"):
        raise DomainError(
            f"render {render!r} of {name!r}: 'chat' (the model's chat template) or 'text' (continued as it is)"
        )
    if not (dev_share >= 0 and sealed_share >= 0 and dev_share + sealed_share < 1):
        raise DomainError(
            f"dev_share {dev_share} and sealed_share {sealed_share} of {name!r} must be >= 0 "
            "and leave room for training"
        )
