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
from pathlib import Path
from typing import Any

from posttrain.config import DomainSection, LoadedRecipe, Recipe
from posttrain.inference.renderer import PromptError
from posttrain.loop.policy import Policy
from posttrain.observability import MetricsLog, Phases, Reporter
from posttrain.records import EnvironmentSpec, Split, Task
from posttrain.rewards import resolve_verifier
from posttrain.rollout import Rollout
from posttrain.sandbox import SandboxSpec
from posttrain.storage import CheckpointStore, RunFolder, TrajectoryStore, write_atomic
from posttrain.tasks import Domain, DomainError, get_domain


class Interrupted(Exception):
    """The user asked the run to stop; everything up to the last step is saved."""


class ContextTooSmall(ValueError):
    """A domain's prompts do not fit into the context."""


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
        """Keeps the seconds so far, for `run_minutes` of a run that goes on later."""
        (self.run.path / "clock.json").write_text(
            json.dumps({"elapsed_s": self.elapsed_s, "phases": self.phases.seconds})
        )

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


def load_clock(folder: Path) -> tuple[float, dict[str, float]]:
    """(seconds, seconds by phase) of the earlier processes of a run; zero where there were none or the file is torn."""
    try:
        value = json.loads((folder / "clock.json").read_text())
        return float(value["elapsed_s"]), {str(k): float(v) for k, v in value["phases"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0.0, {}


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


def load_domains(loaded: LoadedRecipe) -> dict[str, Domain]:
    """Built-in domains and the recipe's own. Raises DomainError before any work starts."""
    own = {section.name: section for section in loaded.recipe.domain}
    names = [*loaded.recipe.mixture.domains, *loaded.recipe.mixture.retention]
    if not loaded.recipe.mixture.domains:
        raise DomainError(
            "the recipe trains no domain: name at least one in [mixture] domains (see `posttrain domains list`)"
        )
    return {name: own_domain(own[name], loaded.base_folder) if name in own else get_domain(name) for name in names}


def own_domain(section: DomainSection, base_folder: Path) -> Domain:
    """The domain that a `[[domain]]` table describes; its files are relative to the recipe."""
    verifier = resolve_verifier(section.verifier, base_folder) if ":" in section.verifier else section.verifier
    if isinstance(verifier, str):
        resolve_verifier(verifier)  # an unknown name is an error now, not at the first verdict
    environment = EnvironmentSpec(max_new_tokens=section.max_new_tokens, stop=tuple(section.stop))
    return Domain(
        section.name,
        tasks=base_folder / section.tasks,
        prompt=section.prompt,
        answer=section.answer,
        demonstrations=section.demonstration or None,
        verifier=verifier,
        environment=environment,
        render=section.render,
    )


def check_prompts(policy: Policy, tasks: Sequence[Task]) -> None:
    """Raises `ContextTooSmall` for the first task whose prompt and answer do not fit."""
    for task in tasks:
        try:
            ids = policy.renderer.render(task)
        except PromptError as error:
            raise ContextTooSmall(f"domain {task.domain}: {error}") from None
        need = len(ids) + task.environment.max_new_tokens
        if need > policy.max_context_tokens:
            raise ContextTooSmall(
                f"domain {task.domain}: a prompt of {len(ids)} tokens and {task.environment.max_new_tokens} new ones "
                f"need {need}, the context has {policy.max_context_tokens}: shorten the prompt, or raise "
                "model.max_context_tokens"
            )
