"""The token-exact record of an episode.

Invariant: a token is never re-tokenised. A trajectory is an append-only list of token ids; each token carries who produced
it, the policy version that did, and the log-probability under which it was sampled (NaN where the policy did not
sample it). The arrays handed out are read-only copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posttrain.records.message import ToolResult

NO_VERSION = -1


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


@dataclass(slots=True)
class Trajectory:
    """One attempt at one task, append-only.

    task_id: `Task.id`. seed: the seed of this attempt's sampler. attempt: its index in the group. evidence: what the
    environment measured for the verifier (JSON).
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

    def append(
        self,
        producer: Producer,
        token_ids: Sequence[int],
        text: str,
        *,
        logprobs: Sequence[float] | None = None,
        policy_version: int = NO_VERSION,
    ) -> None:
        """Adds a turn. Policy tokens need one finite log-probability (natural log) each and a version >= 0; others none."""
        n = len(token_ids)
        if producer is Producer.POLICY:
            if logprobs is None or len(logprobs) != n or policy_version < 0:
                raise ValueError(f"{n} policy tokens need {n} log-probabilities and a policy version >= 0")
            if not np.isfinite(np.asarray(logprobs, dtype=np.float64)).all():
                raise ValueError("a sampled token has a log-probability that is not finite")
        elif logprobs is not None or policy_version != NO_VERSION:
            raise ValueError(f"{producer.name} tokens have no log-probability and no policy version")
        start = len(self._ids)
        self._ids.extend(int(t) for t in token_ids)
        self._logprobs.extend(logprobs if logprobs is not None else [float("nan")] * n)
        self._producers.extend([int(producer)] * n)
        self._versions.extend([policy_version] * n)
        self._turns.append(Turn(producer, start, start + n, text))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """[T] token ids."""
        return _frozen(self._ids, np.int32)

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """[T] natural-log probabilities at sampling time; NaN where the policy did not sample the token."""
        return _frozen(self._logprobs, np.float32)

    @property
    def producers(self) -> NDArray[np.uint8]:
        """[T] values of `Producer`."""
        return _frozen(self._producers, np.uint8)

    @property
    def policy_versions(self) -> NDArray[np.int32]:
        """[T] policy version of each sampled token, `NO_VERSION` elsewhere."""
        return _frozen(self._versions, np.int32)

    @property
    def policy_mask(self) -> NDArray[np.bool_]:
        """[T] True where the policy sampled the token."""
        return _frozen([p == Producer.POLICY for p in self._producers], np.bool_)

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


def _frozen(values: Sequence[object], dtype: object) -> NDArray[np.generic]:  # type: ignore[misc]
    array = np.array(values, dtype=dtype)  # type: ignore[call-overload]
    array.setflags(write=False)
    return array  # type: ignore[no-any-return]
