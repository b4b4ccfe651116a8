"""What is said in an episode: messages, and the tool calls in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, before it is rendered to tokens."""

    role: Role
    content: str

    def to_json(self) -> dict[str, str]:
        return {"role": str(self.role), "content": self.content}

    @classmethod
    def from_json(cls, value: Mapping[str, str]) -> Message:
        return cls(Role(value["role"]), value["content"])


def user(content: str) -> Message:
    return Message(Role.USER, content)


def assistant(content: str) -> Message:
    return Message(Role.ASSISTANT, content)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the policy asked for. `error` says why the text could not be parsed; `name` is then empty."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the environment answered. `ok` is False where the tool reported an error (a result, not a fault)."""

    call: ToolCall
    content: str
    ok: bool = True
    seconds: float = 0.0
