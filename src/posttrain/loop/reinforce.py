"""Reinforcement learning: groups from a mixture of domains, one update a step, resumable at any point.

A step writes its trajectories before it trains on them, and the state (adapter, optimizer, mixture, guard) every
`CHECKPOINT_STEPS` steps. A run that goes on starts from the last checkpoint and trains again on the trajectories that
are already there, so no attempt of a finished step is lost and none is trained twice (invariant 4), and the trace is
the same as without the interruption (invariant 6).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.loop.session import Session
from posttrain.records import Checkpoint, Group
from posttrain.scheduling.guard import GuardPolicy, GuardState
from posttrain.scheduling.guard import observe as observe_guard
from posttrain.scheduling.mixture import MixturePolicy, MixtureState, allocate, observe_group, shares
from posttrain.training.grpo import GRPO

CHECKPOINT_STEPS = (
    5  # a checkpoint is 12 bytes a trained parameter; replaying 5 updates costs about as much time as writing 5
)
POLICY_FILE = "policy.safetensors"
STATE_FILE = "state.json"


@dataclass(slots=True)
class RlState:
    """What a step leaves for the next one, beside the policy. step: the next one."""

    step: int
    mixture: MixtureState
    guard: GuardState

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "mixture": self.mixture.to_json(), "guard": self.guard.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> RlState:
        return cls(value["step"], MixtureState.from_json(value["mixture"]), GuardState.from_json(value["guard"]))


def save_checkpoint(session: Session, state: RlState) -> None:
    """Writes policy and state as the checkpoint of `state.step`."""

    def write_state(path: Path) -> None:
        path.write_text(json.dumps(state.to_json()))

    meta = Checkpoint(session.run.path.name, state.step, session.policy.version, session.policy.base_model)
    session.checkpoints.save(state.step, {POLICY_FILE: session.policy.save_state, STATE_FILE: write_state}, meta)


def load_checkpoint(session: Session) -> RlState | None:
    """Puts the newest whole checkpoint into the policy; None where the run has none yet."""
    found = session.checkpoints.latest()
    if found is None:
        return None
    _, folder = found
    session.policy.load_state(folder / POLICY_FILE)
    return RlState.from_json(json.loads((folder / STATE_FILE).read_text()))


def first_state(session: Session, warmed_up: Sequence[str] = ()) -> RlState:
    """The mixture begins with what the diagnosis saw, but for domains that the warm-up has changed since."""
    mixture = MixtureState.start(session.recipe.mixture.domains)
    for group in session.trajectories.read("diagnosis", 0) or ():
        if group.task.domain not in warmed_up:
            mixture = observe_group(mixture, group)
    return RlState(0, mixture, GuardState())


async def reinforce(session: Session, state: RlState) -> RlState:
    """All remaining steps. Stops early at `run.minutes_limit`, and with everything saved where the user asks to."""
    settings = session.recipe.rl
    limit_s = 60 * session.recipe.run.minutes_limit if session.recipe.run.minutes_limit else float("inf")
    session.metrics.truncate_after("rl", state.step - 1)
    for step in range(state.step):
        session.count_invalid(session.trajectories.read("rl", step) or [])
    while state.step < settings.steps:
        if session.stopping or session.elapsed_s > limit_s:
            save_checkpoint(session, state)
            session.check_stop()
            session.reporter.warn(f"stopped after {state.step} of {settings.steps} steps: run.minutes_limit is reached")
            break
        state = await _step(session, state)
        if state.step % CHECKPOINT_STEPS == 0 or state.step == settings.steps:
            save_checkpoint(session, state)
        session.save_clock()
    return state


async def _step(session: Session, state: RlState) -> RlState:
    started = time.perf_counter()
    settings, step = session.recipe.rl, state.step
    mix = session.recipe.mixture
    policy = MixturePolicy(signal=mix.signal, floor=mix.floor, ceiling=mix.ceiling)
    wanted = shares(state.mixture, policy)
    counts, mixture = allocate(state.mixture, policy, settings.groups_per_step)
    session.policy.engine.forget()  # a resumed step must not depend on what an earlier one left in the cache
    groups = session.trajectories.read("rl", step)
    if groups is None:
        with session.phases("generate"):
            groups = await _collect(session, counts, step)
        session.trajectories.write("rl", step, groups)
    generate_s = time.perf_counter() - started
    for group in groups:
        mixture = observe_group(mixture, group)
    rate = settings.learning_rate * min(1.0, (step + 1) / max(settings.warmup_steps, 1)) * state.guard.rate_scale
    with session.phases("update"):
        metrics = session.policy.train(
            groups,
            loss=GRPO(token_normaliser=settings.token_normaliser),
            learning_rate=rate,
            temperature=settings.temperature,
            max_grad_norm=settings.max_grad_norm,
            micro_batch_tokens=settings.micro_batch_tokens,
        )
    guard_policy = GuardPolicy(settings.min_mixed_share, settings.min_nll, settings.guard_patience_steps)
    verdict = observe_guard(state.guard, metrics["mixed_share"], metrics.get("nll"), guard_policy)
    if verdict.reason is not None:
        session.reporter.warn(f"step {step}: {verdict.reason}")
    row: dict[str, Any] = {"phase": "rl", "step": step, **metrics, "rate_scale": state.guard.rate_scale}
    row |= {
        "generate_s": generate_s,
        "step_s": time.perf_counter() - started,
        **_by_domain(groups),
        "domain_share": wanted,
    }
    session.metrics.append(row)
    lost = f"  no verdict {metrics['invalid_share']:.0%}" if metrics["invalid_share"] else ""
    note = f"reward {metrics['reward_mean']:.2f}  mixed {metrics['mixed_share']:.0%}  {row['step_s']:.1f} s/step{lost}"
    session.reporter.advance(step + 1, settings.steps, note)
    return RlState(step + 1, mixture, verdict.state)


async def _collect(session: Session, counts: dict[str, int], step: int) -> list[Group]:
    """The groups of a step. Those without contrast are replaced by new tasks of their domain, `max_refill_rounds`
    times; all attempts are kept in the record, whether they carry gradient or not."""
    settings = session.recipe.rl
    groups: list[Group] = []
    wanted = dict(counts)
    for round_ in range(settings.max_refill_rounds + 1):
        tried = frozenset(g.task.id for g in groups)
        tasks = [
            task
            for name, n in wanted.items()
            for task in session.draw_train(name, n, session.seed("rl", name, step, round_), tried)
        ]
        if not tasks:
            break
        new = await session.rollout.collect(
            tasks,
            group_size=settings.group_size,
            temperature=settings.temperature,
            seed=session.seed("rl", step, round_),
        )
        session.count_invalid(new)
        groups += new
        wanted = {name: sum(g.task.domain == name and not g.mixed for g in new) for name in wanted}
    return groups


def _by_domain(groups: list[Group]) -> dict[str, dict[str, float]]:
    names = sorted({g.task.domain for g in groups})
    means = {n: [m for g in groups if g.task.domain == n and (m := g.mean) is not None] for n in names}
    return {
        "domain_reward": {n: sum(v) / len(v) for n, v in means.items() if v},
        "domain_groups": {n: float(sum(g.task.domain == n for g in groups)) for n in names},
        "domain_mixed": {n: float(sum(g.task.domain == n and g.mixed for g in groups)) for n in names},
    }
