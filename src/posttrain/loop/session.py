"""What the stages of a run share: recipe, run folder, policy, rollout, domains, and how the run is followed and
stopped.

Invariants: one process works in a run folder at a time; a stage that is marked is never run again; `stopping` is
looked at between steps only, so that what is saved is always whole.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.config import Recipe
from posttrain.loop.policy import Policy
from posttrain.observability import MetricsLog, Phases, Reporter, peak_rss_bytes, peak_rss_of_children_bytes
from posttrain.records import Group, Split, Task
from posttrain.rewards import InvalidBudget, TooManyInvalid
from posttrain.rollout import Rollout
from posttrain.sandbox import SandboxSpec
from posttrain.storage import CheckpointStore, RunFolder, TrajectoryStore, write_atomic
from posttrain.tasks import Domain

MIN_SEEN = 20  # attempts of a domain before its share of invalid ones says anything


class Interrupted(Exception):
    """The user asked the run to stop; everything up to the last step is saved."""


@dataclass(slots=True)
class Session:
    """The state of a run while it works. Seconds of earlier processes of the same run stand in `clock.json`."""

    recipe: Recipe
    run: RunFolder
    policy: Policy
    rollout: Rollout
    domains: dict[str, Domain]
    reporter: Reporter
    metrics: MetricsLog
    trajectories: TrajectoryStore
    checkpoints: CheckpointStore
    phases: Phases = field(default_factory=Phases)
    stopping: bool = False
    started: float = field(default_factory=time.monotonic)
    earlier_s: float = 0.0
    peak_rss_bytes: int = 0
    budgets: dict[str, InvalidBudget] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds that this run has worked, over all its processes."""
        return self.earlier_s + time.monotonic() - self.started

    def check_stop(self) -> None:
        """Raises `Interrupted` where the user asked to stop. Call it where everything is saved."""
        self.save_clock()
        if self.stopping:
            raise Interrupted

    def save_clock(self) -> None:
        """Keeps seconds and peak memory so far, for the summary of a run that goes on later."""
        self.peak_rss_bytes = max(self.peak_rss_bytes, peak_rss_bytes() + peak_rss_of_children_bytes())
        value = {"elapsed_s": self.elapsed_s, "peak_rss_bytes": self.peak_rss_bytes, "phases": self.phases.seconds}
        self.save_json("clock.json", value)

    def load_clock(self) -> None:
        """Takes over what earlier processes of this run kept."""
        path = self.run.path / "clock.json"
        if path.exists():
            value = json.loads(path.read_text())
            self.earlier_s, self.peak_rss_bytes = value["elapsed_s"], value["peak_rss_bytes"]
            for name, seconds in value["phases"].items():
                self.phases.add(name, seconds)

    def count_invalid(self, groups: Sequence[Group]) -> None:
        """Counts attempts without a verdict, by domain. Raises `TooManyInvalid` where a domain passes its limit."""
        for group in groups:
            name = group.task.domain
            budget = self.budgets.setdefault(name, InvalidBudget(self.recipe.rl.max_invalid_share, MIN_SEEN))
            try:
                budget.add(group.rewards)
            except TooManyInvalid as error:
                raise TooManyInvalid(f"domain {name}: {error}") from None

    def draw_train(self, name: str, n: int, seed: int, exclude: frozenset[str] = frozenset()) -> list[Task]:
        """At most n training tasks of a domain; fewer where a file of tasks does not hold as many others."""
        held = self.domains[name].card().splits[Split.TRAIN]["tasks"]
        used = sum(task_id.startswith(f"{name}/") for task_id in exclude)
        n = n if held is None else min(n, int(held) - used)
        return self.domains[name].draw(n, Split.TRAIN, seed, exclude) if n > 0 else []

    def seed(self, *parts: object) -> int:
        """A 32-bit seed for one purpose of this run: depends on the run's seed and the parts alone."""
        text = "/".join(map(str, (self.recipe.run.seed, *parts)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])

    def held_out(self) -> list[Task]:
        """The tasks that are measured before and after: the same for the same recipe."""
        settings = self.recipe.evaluation
        names = [*self.recipe.mixture.domains, *self.recipe.mixture.retention]
        return [
            t
            for name in names
            for t in self.domains[name].draw(settings.items_per_domain, Split(settings.split), self.seed("eval"))
        ]

    def save_json(self, name: str, value: Any) -> None:
        write_atomic(self.run.path / name, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def sandbox_spec(recipe: Recipe) -> SandboxSpec:
    """The limits of code that the policy writes."""
    s = recipe.sandbox
    return SandboxSpec(
        timeout_s=s.timeout_s,
        cpu_s=max(1, int(s.timeout_s) + 1),
        memory_mib=s.memory_mib,
        output_bytes=s.output_bytes,
        driver=s.driver,
        allow_unsafe=s.allow_unsafe_process,
    )
