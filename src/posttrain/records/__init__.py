"""The words that every other package shares. Imports nothing of ours, and no torch."""

from posttrain.records.attempt import Attempt
from posttrain.records.checkpoint import Checkpoint
from posttrain.records.group import Batch, Group, HeldOutLeak
from posttrain.records.message import Message, Role, ToolCall, ToolResult, assistant, user
from posttrain.records.reward import Failure, Invalid, Reward, Scored
from posttrain.records.task import EnvironmentSpec, Provenance, Split, Task, split_by_content
from posttrain.records.trajectory import NO_VERSION, Cost, Producer, StopReason, Trajectory, Turn

__all__ = [
    "NO_VERSION",
    "Attempt",
    "Batch",
    "Checkpoint",
    "Cost",
    "EnvironmentSpec",
    "Failure",
    "Group",
    "HeldOutLeak",
    "Invalid",
    "Message",
    "Producer",
    "Provenance",
    "Reward",
    "Role",
    "Scored",
    "Split",
    "StopReason",
    "Task",
    "ToolCall",
    "ToolResult",
    "Trajectory",
    "Turn",
    "assistant",
    "split_by_content",
    "user",
]
