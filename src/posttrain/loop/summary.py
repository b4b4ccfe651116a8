"""What a run found out, in one file: `summary.json`.

run_minutes, peak_rss_gib, seed, model, recipe, command, confidence
training, retention   {before, after, n, interval}: macro held-out accuracy, 0 to 1; interval of the change
domains               the same for each domain, with its role and the intervals of both sides
decision              {verdict, reasons}
cost                  seconds by phase (`*_s`) and tokens (`*_tokens`)
goals                 what the quickstart promises; null for another recipe
versions              of what computed it
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from posttrain.evaluation import Comparison, Decision
from posttrain.loop.session import Session
from posttrain.observability import read
from posttrain.storage import TrajectoryStore

QUICKSTART_GOALS = {"run_minutes": 10.0, "gain_points": 20.0, "peak_rss_gib": 4.0}


@dataclass(frozen=True, slots=True)
class Summary:
    """The contents of summary.json and where it lies."""

    folder: Path
    values: dict[str, Any]

    @property
    def promoted(self) -> bool:
        return bool(self.values["decision"]["verdict"] == "promote")


def make_summary(session: Session, comparison: Comparison, decision: Decision, command: str) -> Summary:
    """Everything that the run can say of itself."""
    recipe = session.recipe
    values: dict[str, Any] = {
        "run_minutes": session.elapsed_s / 60,
        "peak_rss_gib": session.peak_rss_bytes / 2**30,
        "seed": recipe.run.seed,
        "model": f"{recipe.model.source}, {str(session.policy.model.dtype).removeprefix('torch.')}",
        "model_checksum": session.policy.base_model,
        "recipe": recipe.run.name,
        "command": command,
        "decision": decision.to_json(),
        "cost": _cost(session),
        "goals": QUICKSTART_GOALS if recipe.run.name == "quickstart" else None,
        "versions": versions(),
    }
    return Summary(session.run.path, values | comparison.to_json())


def versions() -> dict[str, str]:
    """Of posttrain, Python and what computes."""
    names = ("posttrain", "torch", "tokenizers", "transformers", "numpy", "pyarrow")
    return {"python": platform.python_version(), "machine": platform.machine(), **{n: _version(n) for n in names}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"  # run from a source folder


def _cost(session: Session) -> dict[str, float]:
    cost = {f"{name}_s": seconds for name, seconds in session.phases.seconds.items()}
    rows = read(session.run.metrics) if session.run.metrics.exists() else []
    cost["trained_tokens"] = sum(row.get("tokens") or 0 for row in rows)
    cost["updates"] = sum(row.get("updated") or 0 for row in rows)
    cost |= _sampled(session.trajectories)
    return cost


def _sampled(store: TrajectoryStore) -> dict[str, float]:
    attempts = prompt = policy = 0
    for _, groups in store.iterate("rl"):
        for group in groups:
            attempts += len(group.trajectories)
            policy += sum(t.cost.policy_tokens for t in group.trajectories)
            prompt += group.trajectories[0].cost.prompt_tokens
    return {"rl_attempts": attempts, "rl_prompt_tokens": prompt, "rl_sampled_tokens": policy}
