"""What there is to learn: a task, its split, and where it came from.

Invariant: the split is part of a task's identity (it stands in the id), so a batch that trains on a held-out task can
be refused by looking at the task alone. The content hash leaves the split out: two tasks with the same hash on
different sides are a leak that can be found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from posttrain.records.message import Message

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Split(StrEnum):
    """Which side of the wall a task stands on. Only `TRAIN` may ever reach an optimizer."""

    TRAIN = "train"
    DEV = "dev"
    SEALED = "sealed"

    @property
    def held_out(self) -> bool:
        return self is not Split.TRAIN


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a task came from: generator or file, its version, the seed that made this item, and its licence."""

    source: str
    version: str = "1"
    seed: int | None = None
    licence: str = "Apache-2.0"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What the policy acts in for one episode.

    `kind` names an environment of `posttrain.rollout` (`single_turn`, `tool`, `shell`, `write_run_debug`). `max_turns`
    bounds the policy's turns; `max_new_tokens` bounds the tokens of one turn; `stop` ends a turn (the stop string is
    kept in the tokens). `settings` are the environment's own parameters (JSON).
    """

    kind: str = "single_turn"
    max_turns: int = 1
    max_new_tokens: int = 32
    stop: tuple[str, ...] = ("\n",)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One problem and how it is checked.

    prompt: the messages the policy sees; they are rendered to tokens once, by the policy's renderer.
    render: `chat` puts the prompt through the model's chat template; `text` joins the contents as they are, for the
        policy to continue.
    verifier: the name of the verifier that judges an attempt; `answer` is what it compares with (JSON; never shown to
        the policy). difficulty: 0 (easy) to 1 (hard), comparable inside one domain only.
    check: the verifier itself where it is the user's own function, called as check(task, attempt); it takes no part in
        equality, identity or serialisation (the name does).
    """

    domain: str
    split: Split
    prompt: tuple[Message, ...]
    verifier: str
    answer: Any = None
    render: Literal["chat", "text"] = "text"
    environment: EnvironmentSpec = EnvironmentSpec()
    difficulty: float = 0.5
    provenance: Provenance = Provenance("unknown")
    check: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", tuple(self.prompt))
        object.__setattr__(self, "split", Split(self.split))  # a plain "train" would have no `held_out`
        if not self.domain or "/" in self.domain:
            raise ValueError(
                f"domain {self.domain!r}: a domain has a name, without '/' (it is the first part of a task's id)"
            )
        if not 0 <= self.difficulty <= 1:
            raise ValueError(f"difficulty {self.difficulty} of a task in {self.domain}: it is 0 (easy) to 1 (hard)")

    @property
    def content_hash(self) -> str:
        """SHA-256 (hex) of what makes two items the same item: domain, prompt and answer."""
        content = [self.domain, self.render, [m.to_json() for m in self.prompt], self.answer]
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def id(self) -> str:
        """`domain/split/hash`: stable over processes and machines."""
        return f"{self.domain}/{self.split}/{self.content_hash[:16]}"


def split_by_content(content: str, dev_share: float = 0.2, sealed_share: float = 0.1) -> Split:
    """The split that an item's content falls on: a hash, so that the same item always falls on the same side.

    content: the text that makes the item what it is (usually the question). Shares are fractions of all items.
    """
    if not (dev_share >= 0 and sealed_share >= 0 and dev_share + sealed_share < 1):
        raise ValueError(
            f"dev_share {dev_share} and sealed_share {sealed_share} must be >= 0 and leave room for training"
        )
    u = int.from_bytes(hashlib.sha256(content.encode()).digest()[:8]) / 2**64
    if u < sealed_share:
        return Split.SEALED
    return Split.DEV if u < sealed_share + dev_share else Split.TRAIN
