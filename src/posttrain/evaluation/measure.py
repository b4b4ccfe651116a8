"""Runs an evaluation: one greedy attempt at each held-out task, through the same episodes that training uses.

Invariant: only held-out tasks are measured. Bound: `SLICE` tasks at a time, so that progress shows and memory stays
flat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posttrain.evaluation.results import EvalResult, ItemResult, passed
from posttrain.records import Group, Invalid, Task
from posttrain.rollout import Rollout

SLICE = 64


async def measure(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    policy_version: int = 0,
    confidence: float = 0.95,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[EvalResult, list[Group]]:
    """The scores of the policy on `tasks` (held out, each once), and the episodes behind them (groups of one)."""
    groups = await attempt_once(rollout, tasks, progress=progress)
    return result_of(groups, policy_version=policy_version, confidence=confidence), groups


async def attempt_once(
    rollout: Rollout,
    tasks: Sequence[Task],
    *,
    judged: Callable[[list[Group]], None] = lambda groups: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Group]:
    """One greedy attempt at each task, as groups of one.

    judged: is given the groups of each slice as they come; it may raise to stop. ValueError for a training task.
    """
    trained = next((t for t in tasks if not t.split.held_out), None)
    if trained is not None:
        raise ValueError(f"{trained.id} is a training task: an evaluation measures held-out tasks only")
    groups: list[Group] = []
    for start in range(0, len(tasks), SLICE):
        new = await rollout.collect(tasks[start : start + SLICE], group_size=1, temperature=0.0, seed=0)
        judged(new)
        groups += new
        progress(len(groups), len(tasks))
    return groups


def result_of(groups: Sequence[Group], *, policy_version: int = 0, confidence: float = 0.95) -> EvalResult:
    """The scores that these episodes (groups of one) show."""
    items = tuple(_item(group) for group in groups)
    return EvalResult(items, confidence=confidence, policy_version=policy_version)


def _item(group: Group) -> ItemResult:
    reward, trajectory = group.rewards[0], group.trajectories[0]
    cost = trajectory.cost
    seconds = cost.generate_s + cost.environment_s + cost.score_s
    if isinstance(reward, Invalid):
        return ItemResult(group.task.id, group.task.domain, None, False, reward.reason, trajectory.answer, seconds)
    right = passed(reward)
    return ItemResult(group.task.id, group.task.domain, reward.value, right, reward.failure, trajectory.answer, seconds)
