"""Supervised warm-up: domains that never succeed by sampling get demonstrations that their verifier accepted.

    train tasks -> demonstrations -> played in the real environment -> those with full marks -> SFT updates

Invariant: nothing is learnt that the verifier did not accept.
"""

from __future__ import annotations

import random

from posttrain.evaluation import Diagnosis, passed
from posttrain.loop.session import Session
from posttrain.records import Group, Producer, Scored, StopReason, Task
from posttrain.rollout import Rollout, ScriptedPolicy
from posttrain.training.sft import SFT, Demonstration

LOOKED_AT = 16  # tasks that are asked for a demonstration: a file may hold one for some of its rows only


class NoDemonstrations(ValueError):
    """A domain shall be warmed up but has no demonstration that its verifier accepts."""


def domains_at_zero(session: Session, diagnosis: Diagnosis) -> list[str]:
    """The domains to warm up: those the recipe names, else those whose diagnosed pass rate is below its limit and which
    have demonstrations."""
    settings = session.recipe.sft
    if not settings.enabled:
        return []
    if settings.domains:
        return list(settings.domains)
    rates = {name: diagnosis.domains[name].pass_rate for name in session.recipe.mixture.domains}
    low = [name for name, rate in rates.items() if rate is not None and rate < settings.below_pass_rate]
    able = [name for name in low if _demonstrates(session, name)]
    for name in sorted(set(low) - set(able)):
        rate = rates[name]
        session.reporter.warn(f"{name}: pass rate {rate:.0%} and no demonstrations: RL may find nothing to learn from")
    return able


def _demonstrates(session: Session, name: str) -> bool:
    tasks = session.draw_train(name, LOOKED_AT, 0)
    return any(session.domains[name].demonstrate(task) is not None for task in tasks)


async def verified_demonstrations(session: Session, names: list[str]) -> list[Demonstration]:
    """Demonstrations of train tasks that got full marks when they were played. Raises `NoDemonstrations` where none
    did."""
    out: list[Demonstration] = []
    for done, name in enumerate(names):
        domain = session.domains[name]
        tasks = session.draw_train(name, session.recipe.sft.demonstrations_per_domain, session.seed("sft", name))
        scripts = [(t, turns) for t in tasks if (turns := domain.demonstrate(t)) is not None]
        groups = await _play(session, scripts)
        good = [_demonstration(g) for g in groups if _accepted(g)]
        if not good:
            raise NoDemonstrations(
                f"domain {name} has no demonstration that its verifier accepts ({len(scripts)} tried): "
                "take it out of sft.domains, or mend them"
            )
        session.reporter.message(f"{name}: {len(good)} of {len(tasks)} demonstrations accepted by the verifier")
        session.reporter.advance(done + 1, len(names))
        out += good
    return out


async def _play(session: Session, scripts: list[tuple[Task, tuple[str, ...]]]) -> list[Group]:
    policy = ScriptedPolicy(session.policy.renderer, scripts, max_context_tokens=session.policy.max_context_tokens)
    async with Rollout(
        policy,
        group_size=1,
        sandbox=session.rollout.spec,
        sandboxes_parallel=session.rollout.parallel,
        verifier_timeout_s=session.recipe.rewards.verifier_timeout_s,
    ) as rollout:
        return await rollout.collect([task for task, _ in scripts], seed=0)


def _accepted(group: Group) -> bool:
    reward, trajectory = group.rewards[0], group.trajectories[0]
    return isinstance(reward, Scored) and passed(reward) and trajectory.stop_reason is StopReason.STOP


def _demonstration(group: Group) -> Demonstration:
    trajectory = group.trajectories[0]
    ids = trajectory.token_ids.tolist()
    segments = tuple(
        (t.producer, tuple(ids[t.start : t.end])) for t in trajectory.turns if t.producer is not Producer.PROMPT
    )
    return Demonstration(group.task.domain, group.task.split, tuple(ids[: trajectory.prompt_tokens]), segments)


def train_on(session: Session, demonstrations: list[Demonstration]) -> int:
    """The updates of the warm-up. Returns their number."""
    settings = session.recipe.sft
    batches = [
        batch
        for epoch in range(settings.epochs)
        for batch in _batches(demonstrations, settings.batch_tokens, session.seed("sft", "epoch", epoch))
    ]
    session.metrics.truncate_after("sft", -1)
    for step, batch in enumerate(batches):
        if session.stopping:
            session.check_stop()
        warm = min(1.0, (step + 1) / 5)  # AdamW's first steps have no second moment to speak of
        metrics = session.policy.train(batch, loss=SFT(), learning_rate=settings.learning_rate * warm)
        session.metrics.append({"phase": "sft", "step": step, **metrics})
        session.reporter.advance(step + 1, len(batches), f"nll {metrics['nll']:.3f}")
    return len(batches)


def _batches(demonstrations: list[Demonstration], batch_tokens: int, seed: int) -> list[list[Demonstration]]:
    """A shuffled pass, cut where a batch (prompts included) is full."""
    order = list(demonstrations)
    random.Random(seed).shuffle(order)
    batches: list[list[Demonstration]] = []
    size = batch_tokens + 1
    for demo in order:
        tokens = len(demo.prompt) + sum(len(ids) for _, ids in demo.segments)
        if size + tokens > batch_tokens:
            batches.append([])
            size = 0
        batches[-1].append(demo)
        size += tokens
    return batches
