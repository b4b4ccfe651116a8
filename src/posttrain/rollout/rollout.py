"""Groups of episodes: tasks and a policy in, scored groups out.

Episodes advance in waves: all open episodes sample their next turn in one batch, then their environments answer at the
same time, then the next wave samples. Bounds: an episode has at most `environment.max_turns` turns, each wave one call
of the sampler; sandboxes and verifiers bring their own limits.
Invariants: every attempt ends exactly once, with a reward or with `Invalid`; a fault never becomes a zero. The seed of
an attempt depends on (seed, task, attempt) only.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from posttrain.inference.renderer import Renderer
from posttrain.inference.sampling import Sample, SampleRequest
from posttrain.records import (
    Attempt,
    Group,
    Invalid,
    Producer,
    Reward,
    StopReason,
    Task,
    Trajectory,
)
from posttrain.rewards import VerifierProcess
from posttrain.rollout.environment import Environment, make_environment
from posttrain.sandbox import SandboxError, SandboxPool, SandboxSpec


class Policy(Protocol):
    """What a rollout needs of a policy."""

    renderer: Renderer
    max_context_tokens: int

    def sample(self, requests: list[SampleRequest]) -> list[list[Sample]]: ...


@dataclass(slots=True)
class _Episode:
    group: int
    task: Task
    environment: Environment
    trajectory: Trajectory
    prompt: tuple[int, ...]
    branch: list[int] = field(default_factory=list)
    turns: int = 0
    fault: str | None = None
    open: bool = True


def attempt_seed(seed: int, task_id: str, attempt: int) -> int:
    """64 bits that depend on these three alone: the same on every machine and in every batch."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task_id}/{attempt}".encode()).digest()[:8])


class Rollout:
    """Runs episodes of `policy`. Use as an asynchronous context manager: it owns sandboxes and the verifier process.

    group_size: attempts at each task. sandbox: limits of code that the policy writes; started at first need.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        group_size: int = 8,
        temperature: float = 1.0,
        seed: int = 0,
        sandbox: SandboxSpec | None = None,
        sandboxes_parallel: int = 2,
        verifier_timeout_s: float = 5.0,
    ):
        if group_size < 1:
            raise ValueError(f"group_size is {group_size}: give a whole number >= 1")
        self.policy = policy
        self.group_size, self.temperature, self.seed = group_size, temperature, seed
        self.spec = sandbox if sandbox is not None else SandboxSpec(timeout_s=5.0)
        self.parallel = sandboxes_parallel
        self._verifiers = VerifierProcess(timeout_s=verifier_timeout_s)
        self._pool: SandboxPool | None = None
        self._calls = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        await self._verifiers.close()

    async def collect(
        self,
        tasks: Iterable[Task],
        *,
        group_size: int | None = None,
        temperature: float | None = None,
        seed: int | None = None,
    ) -> list[Group]:
        """One group for each task, in order. seed: of this call; by default each call gets the next of the rollout's
        own.

        Raises `ContextOverflow` for a prompt that does not fit, and what the sampler raises; faults of single attempts
        are `Invalid` in their group.
        """
        if seed is None:
            seed, self._calls = attempt_seed(self.seed, "collect", self._calls), self._calls + 1
        tasks = list(tasks)
        size = self.group_size if group_size is None else group_size
        if size < 1:
            raise ValueError(f"group_size is {size}: give a whole number >= 1")
        seen: Counter[str] = Counter()
        episodes = []
        for i, task in enumerate(tasks):
            # a task that is asked for twice is tried anew: its attempts go on counting, and so get other seeds
            first = seen[task.id] * size
            seen[task.id] += 1
            episodes += [self._open(i, task, first + a, seed) for a in range(size)]
        while live := [e for e in episodes if e.open]:
            await self._wave(live, self.temperature if temperature is None else temperature)
        rewards = await self._score(episodes)
        groups = []
        for i, task in enumerate(tasks):
            part = slice(i * size, (i + 1) * size)
            groups.append(Group(task, tuple(e.trajectory for e in episodes[part]), tuple(rewards[part])))
        return groups

    def _sandboxes(self) -> SandboxPool:
        if self._pool is None:
            self._pool = SandboxPool(self.spec, parallel=self.parallel)
        return self._pool

    def _open(self, group: int, task: Task, attempt: int, seed: int) -> _Episode:
        prompt = tuple(self.policy.renderer.render(task))
        trajectory = Trajectory(task.id, attempt=attempt, seed=attempt_seed(seed, task.id, attempt))
        trajectory.append(Producer.PROMPT, prompt, "\n".join(m.content for m in task.prompt))
        trajectory.cost.prompt_tokens = len(prompt)
        return _Episode(group, task, make_environment(task, self._sandboxes), trajectory, prompt)

    async def _wave(self, live: list[_Episode], temperature: float) -> None:
        """One turn of every open episode."""
        started = time.perf_counter()
        by_group: dict[int, list[_Episode]] = {}
        for episode in live:
            by_group.setdefault(episode.group, []).append(episode)
        groups = list(by_group.values())
        # In this thread: the engine uses every core, and from a second one it would keep a second pool of threads and
        # a second set of buffers. Sandboxes and verifiers keep their own time meanwhile.
        samples = self.policy.sample([self._request(g, temperature) for g in groups])
        seconds = (time.perf_counter() - started) / len(live)
        pairs = [(e, s) for g, row in zip(groups, samples, strict=True) for e, s in zip(g, row, strict=True)]
        await asyncio.gather(*(self._advance(e, s, seconds) for e, s in pairs))

    def _request(self, group: Sequence[_Episode], temperature: float) -> SampleRequest:
        environment = group[0].task.environment
        return SampleRequest(
            prefix=group[0].prompt,
            branches=tuple(tuple(e.branch) for e in group),
            seeds=tuple(e.trajectory.seed for e in group),
            max_new_tokens=environment.max_new_tokens,
            temperature=temperature,
            stop=environment.stop,
        )

    async def _advance(self, episode: _Episode, sample: Sample, generate_s: float) -> None:
        trajectory = episode.trajectory
        trajectory.append(
            Producer.POLICY,
            sample.token_ids,
            sample.text,
            logprobs=sample.logprobs,
            policy_version=sample.policy_version,
        )
        trajectory.stop_reason = sample.stop_reason
        trajectory.cost.generate_s += generate_s
        trajectory.cost.policy_tokens += len(sample.token_ids)
        episode.branch.extend(sample.token_ids)
        episode.turns += 1
        started = time.perf_counter()
        try:
            text = before_stop(sample.text, episode.task.environment.stop)
            feedback = await episode.environment.step(text, sample.stop_reason is StopReason.LENGTH)
            trajectory.evidence.update(feedback.evidence)
            trajectory.tool_results.extend(feedback.tool_results)
            self._continue(episode, feedback.append)
        except SandboxError as error:
            episode.fault, episode.open = f"sandbox: {error}", False
        # the boundary of one episode: a bug in an environment must not take its siblings along
        except Exception as error:  # noqa: BLE001
            episode.fault, episode.open = f"environment raised {type(error).__name__}: {error}", False
        if episode.fault is not None:
            trajectory.stop_reason = StopReason.FAULT
        trajectory.cost.environment_s += time.perf_counter() - started

    def _continue(self, episode: _Episode, append: str | None) -> None:
        """Puts the environment's words into the context, or ends the episode where nothing more fits."""
        environment = episode.task.environment
        if append is None or episode.turns >= environment.max_turns:
            episode.open = False
            return
        ids = self.policy.renderer.encode_untrusted(append)
        used = len(episode.prompt) + len(episode.branch) + len(ids)
        if used + environment.max_new_tokens > self.policy.max_context_tokens:
            episode.trajectory.stop_reason = StopReason.LENGTH
            episode.open = False
            return
        episode.trajectory.append(Producer.ENVIRONMENT, ids, append)
        episode.branch.extend(ids)

    async def _score(self, episodes: list[_Episode]) -> list[Reward]:
        started = time.perf_counter()
        sound = [e for e in episodes if e.fault is None]
        verdicts = iter(
            await self._verifiers.score_many(
                [(e.task.check or e.task.verifier, e.task, as_attempt(e.task, e.trajectory)) for e in sound]
            )
        )
        rewards: list[Reward] = [Invalid(e.fault) if e.fault is not None else next(verdicts) for e in episodes]
        for episode in episodes:
            episode.trajectory.cost.score_s = (time.perf_counter() - started) / max(len(episodes), 1)
        return rewards


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop string."""
    cuts = [at for s in stop if (at := text.find(s)) >= 0]
    return text[: min(cuts)] if cuts else text


def as_attempt(task: Task, trajectory: Trajectory) -> Attempt:
    """What the verifier sees of an episode."""
    return Attempt(
        answer=before_stop(trajectory.answer, task.environment.stop),
        text=trajectory.text,
        evidence=dict(trajectory.evidence),
        policy_turns=sum(t.producer is Producer.POLICY for t in trajectory.turns),
        truncated=trajectory.stop_reason is StopReason.LENGTH,
    )
