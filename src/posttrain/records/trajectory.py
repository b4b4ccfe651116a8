"""The token-exact record of an episode.

Invariant: a token is never re-tokenised. A trajectory is an append-only list of token ids; each token carries who
produced it, the policy version that did, and the log-probability under which it was sampled (NaN where the policy did
not sample it). The arrays handed out are read-only copies.
Log-probabilities are rounded to float32 when they are appended, so what is kept, handed out and saved is one value.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from operator import index
from typing import TYPE_CHECKING, Any

from posttrain.records.message import ToolResult

if TYPE_CHECKING:  # numpy takes most of the time of `import posttrain.records`; it is loaded with the first array
    import numpy as np
    from numpy.typing import NDArray

NO_VERSION = -1
_INT32 = range(-(2**31), 2**31)


class Producer(IntEnum):
    """Who wrote a token. Only `POLICY` tokens carry gradient."""

    PROMPT = 0
    POLICY = 1
    ENVIRONMENT = 2


class StopReason(StrEnum):
    STOP = "stop"  # the policy ended its turn (stop string or end-of-text token)
    LENGTH = "length"  # max_new_tokens or the context ran out
    CANCELLED = "cancelled"
    FAULT = "fault"  # the infrastructure failed; the reward is Invalid


@dataclass(frozen=True, slots=True)
class Turn:
    """A contiguous span `[start, end)` of token ids by one producer, and its text as it was decoded once."""

    producer: Producer
    start: int
    end: int
    text: str


@dataclass(slots=True)
class Cost:
    """What an episode used: seconds of wall clock by phase and token counts by kind."""

    generate_s: float = 0.0
    environment_s: float = 0.0
    score_s: float = 0.0
    prompt_tokens: int = 0
    policy_tokens: int = 0


@dataclass(slots=True, eq=False)
class Trajectory:
    """One attempt at one task, append-only.

    task_id: `Task.id`. seed: the seed of this attempt's sampler, 0 to 2^64 - 1. attempt: its index in the group.
    evidence: what the environment measured for the verifier (JSON). Two trajectories are equal where every field is,
    the log-probabilities bit for bit (NaN equals NaN).
    """

    task_id: str
    attempt: int = 0
    seed: int = 0
    stop_reason: StopReason = StopReason.STOP
    tool_results: list[ToolResult] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    _ids: list[int] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _producers: list[int] = field(default_factory=list)
    _versions: list[int] = field(default_factory=list)
    _turns: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"the seed of an attempt is 0 to 2^64 - 1, not {self.seed}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trajectory):
            return NotImplemented
        return self._comparable() == other._comparable()

    __hash__ = None  # type: ignore[assignment]  # it grows

    def _comparable(self) -> tuple[object, ...]:
        fields = (self.task_id, self.attempt, self.seed, self.stop_reason, self.tool_results, self.evidence, self.cost)
        tokens = (self._ids, self._producers, self._versions, self._turns)
        return (*fields, *tokens, array("f", self._logprobs).tobytes())

    def append(
        self,
        producer: Producer,
        token_ids: Sequence[int],
        text: str,
        *,
        logprobs: Sequence[float] | None = None,
        policy_version: int = NO_VERSION,
    ) -> None:
        """Adds a turn, whole or (after a `ValueError`) not at all.

        Policy tokens need one log-probability (natural log, finite in float32) each and a version >= 0; others none.
        """
        ids = [index(t) for t in token_ids]
        n = len(ids)
        sampled = array("f", [math.nan] * n)
        if any(t not in _INT32 for t in ids):
            raise ValueError(f"token id {next(t for t in ids if t not in _INT32)} does not fit in 32 bits")
        if producer is Producer.POLICY:
            if logprobs is None or len(logprobs) != n or policy_version < 0:
                raise ValueError(f"{n} policy tokens need {n} log-probabilities and a policy version >= 0")
            sampled = array("f", logprobs)
            if not all(map(math.isfinite, sampled)):
                raise ValueError("a sampled token has a log-probability that is not finite")
        elif logprobs is not None or policy_version != NO_VERSION:
            raise ValueError(f"{producer.name} tokens have no log-probability and no policy version")
        start = len(self._ids)
        self._ids.extend(ids)
        self._logprobs.extend(sampled)
        self._producers.extend([int(producer)] * n)
        self._versions.extend([policy_version] * n)
        self._turns.append(Turn(producer, start, start + n, text))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """[T] token ids."""
        return _frozen(self._ids, "int32")

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[T] natural-log probabilities at sampling time; NaN where the policy did not sample the token."""
        return _frozen(self._logprobs, "float32")

    @property
    def producers(self) -> NDArray[np.uint8]:
        """[T] values of `Producer`."""
        return _frozen(self._producers, "uint8")

    @property
    def policy_versions(self) -> NDArray[np.int32]:
        """[T] policy version of each sampled token, `NO_VERSION` elsewhere."""
        return _frozen(self._versions, "int32")

    @property
    def policy_mask(self) -> NDArray[np.bool_]:
        """[T] True where the policy sampled the token."""
        return _frozen([p == Producer.POLICY for p in self._producers], "bool")

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(self._turns)

    @property
    def prompt_tokens(self) -> int:
        """Number of leading tokens that the policy did not write: what a group shares."""
        return self._turns[0].end if self._turns and self._turns[0].producer is Producer.PROMPT else 0

    @property
    def answer(self) -> str:
        """The text of the last policy turn ('' where there is none): what a verifier judges."""
        return next((t.text for t in reversed(self._turns) if t.producer is Producer.POLICY), "")

    @property
    def text(self) -> str:
        """Everything after the prompt, as one string."""
        return "".join(t.text for t in self._turns if t.producer is not Producer.PROMPT)


def _frozen(values: Sequence[float], dtype: str) -> NDArray[Any]:
    import numpy as np

    frozen = np.array(values, dtype=dtype)
    frozen.setflags(write=False)
    return frozen
