"""What a verifier sees of an episode: the answer and the evidence, not the token ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Attempt:
    """One finished episode, as a verifier judges it.

    answer: text of the last policy turn, without the stop string. text: everything after the prompt. evidence: what the
    environment measured (JSON; written by the environment, never by the policy), e.g. `stdout`, `pass_rate`.
    truncated: whether the last policy turn ran out of tokens.
    """

    answer: str
    text: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    policy_turns: int = 1
    truncated: bool = False
