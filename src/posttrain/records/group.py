"""The attempts at one task that are compared with each other, and the batch that trains on them.

Invariant: a `Batch` can not hold a task of a held-out split; the constructor raises `HeldOutLeak`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posttrain.records.reward import Invalid, Reward, Scored
from posttrain.records.task import Task
from posttrain.records.trajectory import Trajectory


class HeldOutLeak(ValueError):
    """A task that measures the model was about to train it."""


@dataclass(frozen=True, slots=True)
class Group:
    """G attempts at `task` with a reward each."""

    task: Task
    trajectories: tuple[Trajectory, ...]
    rewards: tuple[Reward, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "trajectories", tuple(self.trajectories))  # a list could grow after the check
        object.__setattr__(self, "rewards", tuple(self.rewards))
        if len(self.trajectories) != len(self.rewards) or not self.rewards:
            raise ValueError(
                f"{len(self.trajectories)} trajectories with {len(self.rewards)} rewards: a group has one reward each"
            )
        strangers = {t.task_id for t in self.trajectories} - {self.task.id}
        if strangers:
            raise ValueError(f"attempts at {sorted(strangers)} in a group of {self.task.id}")

    @property
    def scored(self) -> list[tuple[Trajectory, float]]:
        """The attempts that have a verdict, with its value; invalid ones take no part."""
        return [(t, r.value) for t, r in zip(self.trajectories, self.rewards, strict=True) if isinstance(r, Scored)]

    @property
    def invalid(self) -> list[Invalid]:
        return [r for r in self.rewards if isinstance(r, Invalid)]

    @property
    def mean(self) -> float | None:
        """Mean reward of the scored attempts, None where there are none."""
        values = [v for _, v in self.scored]
        return sum(values) / len(values) if values else None

    @property
    def mixed(self) -> bool:
        """Whether the scored attempts differ: only then does the group carry a gradient."""
        values = [v for _, v in self.scored]
        return len(values) > 1 and max(values) - min(values) > 1e-9


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups that one update trains on."""

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))  # a list could grow after the check
        for group in self.groups:
            if group.task.split.held_out:
                raise HeldOutLeak(
                    f"{group.task.id} is held out ({group.task.split}); a training batch may only hold train tasks"
                )

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)
