"""Where a domain's tasks come from: a fixed list, or a generator that is asked again and again.

Invariants: `draw` is pure (same arguments, same tasks, on every machine and in every process) and gives distinct
items; `stream` is the endless sequence that training consumes, a pure function of the position. No `hash()`, no order
of a set.
Bounds: a generator is asked at most `MAX_MISSES` times for one new item.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from posttrain.records import Split, Task
from posttrain.tasks.errors import DomainError
from posttrain.tasks.items import Given, Made, TaskMaker, distinct

MAX_MISSES = 2000  # tries for one new item: a share of 1 % is still found with probability 1 - 2e-9

Generator = Callable[[random.Random], Given]


def rng_for(*parts: object) -> random.Random:
    """A generator seeded by SHA-256 of the parts' text: the same in every process."""
    return random.Random(int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:16]))


class Source(Protocol):
    """size: number of tasks of a split, None where they are drawn."""

    def size(self, split: Split) -> int | None: ...
    def draw(self, n: int, split: Split, seed: int, exclude: frozenset[str]) -> list[Task]: ...
    def stream(self, n: int, split: Split, position: int) -> list[Task]: ...


@dataclass(frozen=True, slots=True)
class FixedTasks:
    """A list of tasks, by split."""

    domain: str
    by_split: dict[Split, tuple[Task, ...]]

    @classmethod
    def of(cls, domain: str, made: Iterator[tuple[str, Made]]) -> FixedTasks:
        kept = distinct(made)
        if not kept:
            raise DomainError(f"domain {domain!r} has no tasks: give at least one")
        return cls(domain, {split: tuple(m.task for m in kept if m.task.split is split) for split in Split})

    def size(self, split: Split) -> int | None:
        return len(self.by_split[split])

    def draw(self, n: int, split: Split, seed: int, exclude: frozenset[str]) -> list[Task]:
        tasks = [t for t in self.by_split[split] if t.id not in exclude]
        if len(tasks) < n:
            left_out = f" ({len(self.by_split[split]) - len(tasks)} excluded)" if exclude else ""
            raise DomainError(
                f"domain {self.domain!r} has {len(tasks)} {split} tasks{left_out}, {n} were asked for: "
                "ask for fewer, add tasks or change dev_share"
            )
        return rng_for(self.domain, split, seed).sample(tasks, n)

    def stream(self, n: int, split: Split, position: int) -> list[Task]:
        """Passes over the list, each in another order: every task is seen once before any is seen twice."""
        tasks = self.by_split[split]
        if not tasks:
            raise DomainError(f"domain {self.domain!r} has no {split} tasks: add tasks or change dev_share")
        out: list[Task] = []
        while len(out) < n:
            turn, start = divmod(position + len(out), len(tasks))
            order = rng_for(self.domain, split, "pass", turn).sample(tasks, len(tasks))
            out += order[start : start + n - len(out)]
        return out


@dataclass(frozen=True, slots=True)
class DrawnTasks:
    """A generator of items."""

    domain: str
    generator: Generator
    maker: TaskMaker

    def __post_init__(self) -> None:
        one, two = (self._ask(rng_for(self.domain, "check"), None) for _ in range(2))
        if one.task.content_hash != two.task.content_hash:
            raise DomainError(
                f"the generator of {self.domain!r} gives different items for the same random.Random: "
                "draw from its argument only"
            )

    def size(self, split: Split) -> int | None:
        return None

    def draw(self, n: int, split: Split, seed: int, exclude: frozenset[str]) -> list[Task]:
        return self._collect(n, split, seed, rng_for(self.domain, split, seed), exclude)

    def stream(self, n: int, split: Split, position: int) -> list[Task]:
        return self._collect(n, split, position, rng_for(self.domain, split, "stream", position), frozenset())

    def _ask(self, rng: random.Random, seed: int | None) -> Made:
        where = f"generator of {self.domain!r}"
        try:
            given = self.generator(rng)
        except (
            Exception
        ) as error:  # a user's function may raise anything; it becomes one line, with the cause behind it
            raise DomainError(f"{where} raised {type(error).__name__}: {error}") from error
        return self.maker.make(given, where, seed)

    def _collect(self, n: int, split: Split, seed: int, rng: random.Random, exclude: frozenset[str]) -> list[Task]:
        seen: set[str] = set()
        out: list[Task] = []
        misses = 0
        while len(out) < n:
            made = self._ask(rng, seed)
            if made.task.split is split and made.question not in seen and made.task.id not in exclude:
                seen.add(made.question)
                out.append(made.task)
                misses = 0
                continue
            misses += 1
            if misses >= MAX_MISSES:
                found = f"only {len(out)} different" if out else "no"
                raise DomainError(
                    f"the generator of {self.domain!r} gave {found} new {split} items in {MAX_MISSES} tries, "
                    f"{n} were asked for: "
                    "ask for fewer, widen it or change dev_share"
                )
        return out


def check_count(n: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise DomainError(f"{n!r} tasks were asked for: ask for a whole number from 1")


def as_sequence(tasks: object) -> Sequence[object] | None:
    """tasks as a list where they are one; None for a text, which is a path, and for what can not be walked."""
    if isinstance(tasks, (str, bytes)):
        return None
    try:
        return list(tasks)  # type: ignore[call-overload, no-any-return]
    except TypeError:
        return None
