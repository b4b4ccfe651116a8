"""One run: model, evaluate, diagnose, warm up, reinforce, evaluate again, gate, export.

Each stage leaves a durable marker in the run folder with what later stages need; starting the same run again skips
what is marked and goes on where it stopped. Ctrl-C (or SIGTERM) finishes the step, saves, and raises `Interrupted`; a
second one stops at once, which loses nothing but the step.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posttrain.config import LoadedRecipe
from posttrain.config.fingerprint import WITHOUT_EFFECT
from posttrain.delivery.export import check_round_trip, export_adapter, export_merged
from posttrain.delivery.promotion import promote
from posttrain.evaluation import Comparison, Decision, Diagnosis, EvalResult, GatePolicy, compare, decide, diagnose
from posttrain.evaluation.diagnose import Thresholds
from posttrain.evaluation.measure import attempt_once, result_of
from posttrain.inference.lora import LoRA
from posttrain.loop.episodes import pick_episodes
from posttrain.loop.policy import Policy
from posttrain.loop.preflight import check_prompts, check_tasks, load_domains, own_files, train_tasks
from posttrain.loop.reinforce import first_state, load_checkpoint, reinforce, save_checkpoint
from posttrain.loop.session import Session, sandbox_spec
from posttrain.loop.summary import Summary, make_summary
from posttrain.loop.warm_up import domains_at_zero, train_on, verified_demonstrations
from posttrain.observability import MetricsLog, Reporter, SilentReporter
from posttrain.records import Group
from posttrain.rollout import Rollout
from posttrain.sandbox.probe import working_bwrap
from posttrain.storage import CheckpointStore, RunFolder, TrajectoryStore, require_free
from posttrain.tasks import Domain

CHECKPOINTS_ON_DISK = 3  # two are kept, and the next is written before the oldest goes
OTHER_DISK_BYTES = 32 * 2**20  # trajectories, metrics and the report of a run of some hundred steps
CODE_ENVIRONMENTS = ("shell", "write_run_debug")


def run_recipe(
    loaded: LoadedRecipe, folder: Path | None = None, reporter: Reporter | None = None, *, command: str = ""
) -> Summary:
    """Runs (or goes on with) a recipe and returns its summary.

    folder: where everything is written; default the recipe's `run.folder`, else runs/NAME. Raises ValueError-family
    errors for what the user got wrong (before work starts where that can be known), `SandboxError` where untrusted
    code can not be isolated, `Interrupted` where the user stopped it.
    """
    recipe = loaded.recipe
    path = folder or Path(recipe.run.folder or f"runs/{recipe.run.name}")
    domains = load_domains(loaded)
    _check_sandbox(domains, loaded)
    check_tasks(recipe, domains)
    fingerprint = recipe.model_dump(mode="json", exclude=WITHOUT_EFFECT) | own_files(loaded, domains)
    written = "\n".join(Path(s).read_text() for s in loaded.sources)
    reporter = reporter or SilentReporter()
    with RunFolder.open(path, fingerprint, written) as run:
        if run.done("export") and run.summary.exists():
            reporter.message(f"{path} is finished already; choose another folder to run it again")
            return Summary(path, json.loads(run.summary.read_text()))
        return asyncio.run(_run(loaded, run, domains, reporter, command))


async def _run(
    loaded: LoadedRecipe, run: RunFolder, domains: dict[str, Domain], reporter: Reporter, command: str
) -> Summary:
    recipe = loaded.recipe
    policy = _load(loaded, run, reporter)
    if not run.done("export"):
        require_free(run.path, disk_bytes(policy), "the run")
    rollout = Rollout(
        policy, group_size=recipe.rl.group_size, temperature=recipe.rl.temperature, sandbox=sandbox_spec(recipe),
        sandboxes_parallel=recipe.sandbox.parallel,
        verifier_timeout_s=recipe.rewards.verifier_timeout_s,
    )  # fmt: skip
    async with rollout:
        with MetricsLog(run.metrics) as metrics:
            session = Session(
                recipe, run, policy, rollout, domains, reporter, metrics,
                TrajectoryStore(run.trajectories), CheckpointStore(run.checkpoints, reporter.warn),
            )  # fmt: skip
            session.load_clock()
            with _signals(session):
                return await _stages(session, command)


async def _stages(session: Session, command: str) -> Summary:
    check_prompts(session.policy, [*session.held_out(), *train_tasks(session.domains, session.recipe)])
    before = await _evaluate(session, "eval_before", "Evaluate the base model")
    diagnosis = await _diagnose(session)
    await _warm_up(session, diagnosis)
    await _reinforce(session)
    after = await _evaluate(session, "eval_after", "Evaluate the trained model")
    comparison, decision = _gate(session, before, after)
    _export(session, decision)
    session.save_json("episodes.json", pick_episodes(session.trajectories))
    session.save_clock()
    summary = make_summary(session, comparison, decision, command)
    session.save_json("summary.json", summary.values)
    return summary


def _load(loaded: LoadedRecipe, run: RunFolder, reporter: Reporter) -> Policy:
    """The policy with a fresh adapter. The dtype that `auto` chose at the first start stays for the whole run."""
    recipe = loaded.recipe
    marked: dict[str, Any] | None = run.stage("model")
    reporter.stage("Model", recipe.model.source)
    policy = Policy.load(
        recipe.model.source,
        adapter=LoRA(recipe.adapter.rank, recipe.adapter.alpha),
        dtype=marked["dtype"] if marked else recipe.model.dtype,
        threads=recipe.model.threads,
        max_context_tokens=recipe.model.max_context_tokens,
        seed=recipe.run.seed,
        progress=lambda text, share: reporter.advance(share, 1.0, text),
    )
    if marked and marked["checksum"] != policy.base_model:
        raise ValueError(
            f"{run.path} was begun with another version of {recipe.model.source}: choose another run folder"
        )
    reporter.message(f"{policy.model.dtype}, {torch.get_num_threads()} threads".removeprefix("torch."))
    if not marked:
        dtype = str(policy.model.dtype).removeprefix("torch.")
        run.stage_done("model", {"dtype": dtype, "checksum": policy.base_model})
    return policy


def disk_bytes(policy: Policy) -> int:
    """What a run writes at most: checkpoints (parameters and two moments), the adapter, the merged float32 model, the
    rest."""
    adapter = sum(p.nbytes for p in policy.adapter.parameters().values()) if policy.adapter is not None else 0
    merged = 4 * policy.folder.parameter_count if policy.folder is not None else 0
    return (3 * CHECKPOINTS_ON_DISK + 1) * adapter + merged + OTHER_DISK_BYTES


async def _evaluate(session: Session, name: str, title: str) -> EvalResult:
    marked = session.run.stage(name)
    if marked is not None:
        return EvalResult.from_json(marked)
    tasks = session.held_out()
    session.reporter.stage(title, f"{len(tasks)} held-out tasks of {len(session.domains)} domains")
    session.policy.engine.forget()
    groups = session.trajectories.read(name, 0)
    if groups is None:
        with session.phases("evaluate"):
            groups = await attempt_once(
                session.rollout,
                tasks,
                judged=session.count_invalid,
                progress=lambda done, total: session.reporter.advance(done, total),
            )
        session.trajectories.write(name, 0, groups)
    result = result_of(groups, policy_version=session.policy.version, confidence=session.recipe.evaluation.confidence)
    session.save_json(f"{name}.json", result.to_json())
    session.run.stage_done(name, result.to_json())
    session.check_stop()
    return result


async def _diagnose(session: Session) -> Diagnosis:
    marked = session.run.stage("diagnosis")
    if marked is not None:
        return Diagnosis.from_json(marked)
    settings = session.recipe.diagnosis
    names = session.recipe.mixture.domains
    session.reporter.stage(
        "Diagnose",
        f"{settings.tasks_per_domain} tasks x {settings.samples_per_task} attempts in each of {len(names)} domains",
    )
    session.policy.engine.forget()
    groups = session.trajectories.read("diagnosis", 0)
    if groups is None:
        with session.phases("diagnose"):
            groups = await _try_tasks(session, names)
        session.trajectories.write("diagnosis", 0, groups)
    limits = Thresholds(at_zero=settings.learnable_min, saturated=settings.learnable_max)
    result = diagnose(groups, names, limits)
    session.save_json("diagnosis.json", result.to_json())
    for row in result.format_table():
        session.reporter.message(
            "  ".join(cell.ljust(width) for cell, width in zip(row, (16, 26, 9, 11, 8, 12, 7, 0), strict=False))
        )
    session.run.stage_done("diagnosis", result.to_json())
    session.check_stop()
    return result


async def _try_tasks(session: Session, names: list[str]) -> list[Group]:
    settings = session.recipe.diagnosis
    groups: list[Group] = []
    for done, name in enumerate(names):
        tasks = session.draw_train(name, settings.tasks_per_domain, session.seed("diagnosis"))
        new = await session.rollout.collect(
            tasks, group_size=settings.samples_per_task, seed=session.seed("diagnosis", name)
        )
        session.count_invalid(new)
        groups += new
        session.reporter.advance(done + 1, len(names), name)
    return groups


async def _warm_up(session: Session, diagnosis: Diagnosis) -> None:
    if session.run.done("sft"):
        return
    names = domains_at_zero(session, diagnosis)
    updates = 0
    if names:
        session.reporter.stage("SFT warm-up", f"verified demonstrations in {', '.join(names)}")
        with session.phases("sft"):
            demonstrations = await verified_demonstrations(session, names)
            updates = train_on(session, demonstrations)
    save_checkpoint(session, first_state(session, warmed_up=names))
    session.run.stage_done("sft", {"domains": names, "updates": updates})
    session.check_stop()


async def _reinforce(session: Session) -> None:
    state = load_checkpoint(session)
    if state is None:
        raise ValueError(
            f"{session.run.path} has lost its checkpoints: remove the folder, or choose another, and run again"
        )
    marked = session.run.stage("rl")
    if marked is not None and marked["policy_version"] == session.policy.version:
        return  # else the last checkpoint was damaged: the steps behind it are trained again from their trajectories
    settings = session.recipe.rl
    session.reporter.stage(
        "RL", f"{settings.steps} steps of {settings.groups_per_step} groups of {settings.group_size}"
    )
    state = await reinforce(session, state)
    session.run.stage_done("rl", {"steps": state.step, "policy_version": session.policy.version})
    session.check_stop()


def _gate(session: Session, before: EvalResult, after: EvalResult) -> tuple[Comparison, Decision]:
    settings = session.recipe.gate
    mixture = session.recipe.mixture
    if after.policy_version != session.policy.version:
        raise ValueError(
            f"the second evaluation is of version {after.policy_version}, the policy of {session.policy.version}: "
            f"remove {session.run.path / 'stages' / 'eval_after.json'} and run again"
        )
    comparison = compare(before, after, set(mixture.domains), set(mixture.retention), settings.confidence)
    decision = decide(comparison, GatePolicy(settings.min_gain, settings.max_retention_drop, settings.confidence))
    session.run.stage_done("gate", decision.to_json())
    return comparison, decision


def _export(session: Session, decision: Decision) -> None:
    """Adapter and merged folder, checked by a round trip; the champion pointer only past the gate."""
    if session.run.done("export"):
        return
    session.reporter.stage("Export", "adapter (PEFT) and merged folder (Hugging Face)")
    adapter, base = session.policy.adapter, session.policy.folder
    assert adapter is not None and base is not None, "a run trains an adapter of an imported model"
    with session.phases("export"):
        export_adapter(adapter, base, session.run.exports / "adapter")
        session.reporter.advance(1, 3, "adapter")
        unchecked = export_merged(adapter, base, session.run.exports / ".merged.unchecked.tmp")
        gc.collect()
        session.reporter.advance(2, 3, "merged folder")
        prompts = [session.policy.renderer.render(t) for t in session.held_out()[::40][:4]]
        try:
            gap = check_round_trip(unchecked, adapter, base, prompts)
        except BaseException:  # also a Ctrl-C: what was not checked must not stay
            shutil.rmtree(unchecked)
            raise
        merged = session.run.exports / "merged"
        # a pointer to an earlier candidate of this folder must not come to mean this one
        (session.run.exports / "champion.json").unlink(missing_ok=True)
        shutil.rmtree(merged, ignore_errors=True)
        unchecked.rename(merged)
        session.reporter.advance(3, 3, f"round trip: {gap:.1e} nats")
    if decision.verdict == "promote":
        promote(
            session.run.exports / "champion.json",
            merged.resolve(),
            decision,
            {"policy_version": session.policy.version},
        )
    session.run.stage_done("export", {"round_trip_nats": gap})


def _check_sandbox(domains: dict[str, Domain], loaded: LoadedRecipe) -> None:
    """Refuses to start where a domain runs code and nothing isolates it."""
    if (
        any(d.environment.kind in CODE_ENVIRONMENTS for d in domains.values())
        and loaded.recipe.sandbox.driver == "bwrap"
    ):
        working_bwrap()


@contextmanager
def _signals(session: Session) -> Iterator[None]:
    """First Ctrl-C or SIGTERM: stop after this step. Second: stop now. Plain handlers, since an update is one long call
    during which no event loop runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever embeds this handles signals
        return

    def stop(number: int, frame: object) -> None:
        if session.stopping:
            raise KeyboardInterrupt
        session.stopping = True
        # not through the reporter: a handler may interrupt it in the middle of a line
        os.write(2, b"\nstopping after this step; press Ctrl-C again to stop now\n")

    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, stop) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
