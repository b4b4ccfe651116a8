"""The sample episodes that the report shows: the same held-out tasks before and after, the most telling first."""

from __future__ import annotations

from typing import Any

from posttrain.records import Group, Invalid
from posttrain.storage import TrajectoryStore

PER_DOMAIN = 3


def pick_episodes(store: TrajectoryStore, per_domain: int = PER_DOMAIN) -> list[dict[str, Any]]:
    """Episodes as JSON, before and after side by side: in each domain those that changed for the better, then for the
    worse, then others."""
    before = {g.task.id: g for g in store.read("eval_before", 0) or []}
    after = {g.task.id: g for g in store.read("eval_after", 0) or []}
    by_domain: dict[str, list[tuple[float, str]]] = {}
    for task_id in sorted(before.keys() & after.keys()):
        change = _value(after[task_id]) - _value(before[task_id])
        by_domain.setdefault(before[task_id].task.domain, []).append((change, task_id))
    out = []
    for domain in sorted(by_domain):
        # one that improved, one that got worse (if any), then the next that improved: a fair picture in three
        ranked = sorted(by_domain[domain], key=lambda pair: (-pair[0], pair[1]))
        chosen = list(dict.fromkeys([ranked[0][1], ranked[-1][1], *(task_id for _, task_id in ranked[1:])]))[
            :per_domain
        ]
        for task_id in chosen:
            out += [_episode(before[task_id], "before"), _episode(after[task_id], "after")]
    return out


def _value(group: Group) -> float:
    reward = group.rewards[0]
    return 0.0 if isinstance(reward, Invalid) else reward.value


def _episode(group: Group, when: str) -> dict[str, Any]:
    reward, trajectory = group.rewards[0], group.trajectories[0]
    invalid = isinstance(reward, Invalid)
    return {
        "task_id": group.task.id,
        "domain": group.task.domain,
        "when": when,
        "turns": [{"producer": t.producer.name.lower(), "text": t.text} for t in trajectory.turns],
        "reward": None if isinstance(reward, Invalid) else reward.value,
        "failure": reward.reason if isinstance(reward, Invalid) else reward.failure,
        "invalid": invalid,
    }
