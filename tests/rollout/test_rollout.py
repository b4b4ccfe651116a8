"""Every attempt ends exactly once, faults are never zeros, and what was sampled is never tokenised again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from posttrain.evaluation.measure import measure
from posttrain.inference.engine import ContextOverflow
from posttrain.inference.sampling import Sample, SampleRequest
from posttrain.loop.policy import Policy
from posttrain.records import (
    Attempt,
    EnvironmentSpec,
    Group,
    Invalid,
    Producer,
    Scored,
    Split,
    StopReason,
    Task,
    user,
)
from posttrain.rollout import (
    Feedback,
    Rollout,
    ScriptedPolicy,
    UnknownEnvironment,
    attempt_seed,
    before_stop,
)
from posttrain.sandbox import SandboxError, SandboxPool
from posttrain.tasks import Domain


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny.load_policy()


def task_of(prompt: str = "rev abcd=", **changes: Any) -> Task:
    return Task("reverse", Split.TRAIN, (user(prompt),), "exact", "dcba", **changes)


def tool_task(**changes: Any) -> Task:
    settings = {"tools": ["multiply"], "result_format": "{result}#"}
    spec: dict[str, Any] = {"kind": "tool", "max_turns": 2, "max_new_tokens": 40, "settings": settings} | changes
    return Task("product", Split.TRAIN, (user("mul 12 3:"),), "tool_answer", 36, environment=EnvironmentSpec(**spec))


def check_books(groups: list[Group], tasks: list[Task], size: int) -> None:
    """Each task has its group, each attempt one trajectory with one reward, and other seeds than its siblings."""
    assert [g.task for g in groups] == tasks
    for group in groups:
        assert len(group.trajectories) == len(group.rewards) == size
        assert len({t.seed for t in group.trajectories}) == size
        for t, reward in zip(group.trajectories, group.rewards, strict=True):
            assert (t.stop_reason is StopReason.FAULT) <= isinstance(reward, Invalid)
            assert t.cost.policy_tokens == int(t.policy_mask.sum())


async def test_groups_come_in_order_with_one_reward_for_each_attempt(policy: Policy) -> None:
    tasks = [t for d in tiny.domains().values() for t in d.draw(3, Split.TRAIN, 0)]
    async with Rollout(policy, group_size=4) as rollout:
        groups = await rollout.collect(tasks)
    check_books(groups, tasks, 4)
    assert all(isinstance(r, Scored) for g in groups for r in g.rewards)
    assert any(g.mixed for g in groups)


async def test_the_seed_of_an_attempt_depends_on_its_task_and_number_only(policy: Policy) -> None:
    tasks = [t for d in tiny.domains().values() for t in d.draw(2, Split.TRAIN, 0)]
    async with Rollout(policy, group_size=4, seed=3) as rollout:
        first = await rollout.collect(tasks, seed=5)
        alone = await rollout.collect(tasks[:1], group_size=2, seed=5)
        backwards = await rollout.collect(tasks[::-1], seed=5)
        twice = await rollout.collect([tasks[0], tasks[0]], seed=5)
        own = await rollout.collect(tasks[:1])
        next_own = await rollout.collect(tasks[:1])

    def said(group: Group) -> list[list[int]]:
        return [t.token_ids.tolist() for t in group.trajectories]

    assert len({t.seed for g in first for t in g.trajectories}) == 4 * len(tasks)
    assert said(first[0])[:2] == said(alone[0])
    assert list(map(said, first)) == list(map(said, backwards[::-1]))
    seeds = [t.seed for g in twice for t in g.trajectories]
    assert len(set(seeds)) == 8, "a task asked for twice is tried anew"
    assert seeds[:4] == [t.seed for t in first[0].trajectories]
    assert {t.seed for t in own[0].trajectories}.isdisjoint(t.seed for t in next_own[0].trajectories)
    assert attempt_seed(0, "a", 1) != attempt_seed(0, "a", 11)


class Faulty:
    """An environment whose behaviour depends on what the attempt said first."""

    def __init__(self, behaviour: Callable[[], Feedback]):
        self.behaviour = behaviour

    async def step(self, text: str, truncated: bool) -> Feedback:
        return self.behaviour()


def raising(error: BaseException) -> Callable[[], Feedback]:
    def behave() -> Feedback:
        raise error

    return behave


BEHAVIOURS: dict[str, Callable[[], Feedback]] = {
    "fine": Feedback,
    "sandbox": raising(SandboxError("the holder died")),
    "bug": raising(KeyError("settings")),
    "not text": lambda: Feedback(append=3),  # type: ignore[arg-type]
    "not a feedback": lambda: None,  # type: ignore[dict-item,return-value]
}


@given(st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=1, max_size=8))
@settings(max_examples=15)
def test_a_fault_is_invalid_and_leaves_its_siblings_their_rewards(kinds: list[str]) -> None:
    policy = tiny.load_policy()
    task = task_of(environment=EnvironmentSpec(max_turns=2, max_new_tokens=4))
    waiting = iter(kinds)
    scripts = ScriptedPolicy(policy.renderer, [(task, ("dcba",))])

    async def run() -> list[Group]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("posttrain.rollout.rollout.make_environment", lambda *_: Faulty(BEHAVIOURS[next(waiting)]))
            async with Rollout(scripts, group_size=len(kinds)) as rollout:
                return await rollout.collect([task])

    groups = asyncio.run(run())
    check_books(groups, [task], len(kinds))
    for kind, reward, t in zip(kinds, groups[0].rewards, groups[0].trajectories, strict=True):
        if kind == "fine":
            assert reward == Scored(1.0, {"outcome": 1.0})
        else:
            assert isinstance(reward, Invalid)
            assert t.stop_reason is StopReason.FAULT
            assert ("holder died" in reward.reason) == (kind == "sandbox")
            assert "\n" not in reward.reason


async def test_a_sandbox_that_dies_makes_the_attempt_invalid(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(environment=EnvironmentSpec(kind="shell", settings={"files": {}}))

    async def dead(self: SandboxPool) -> Any:
        raise SandboxError("no namespaces here")

    monkeypatch.setattr(SandboxPool, "acquire", dead)
    async with Rollout(ScriptedPolicy(policy.renderer, [(task, ("ls",))]), group_size=2) as rollout:
        (group,) = await rollout.collect([task])
    assert all(isinstance(r, Invalid) and "no namespaces" in r.reason for r in group.rewards)


def hangs(task: Task, attempt: Attempt) -> bool:
    if attempt.answer == "dcba":
        time.sleep(60)
    return True


def not_a_number(task: Task, attempt: Attempt) -> float:
    return math.nan if attempt.answer == "dcba" else 1.0


@pytest.mark.parametrize("verifier", [hangs, not_a_number])
async def test_a_verifier_that_gives_no_verdict_is_invalid(policy: Policy, verifier: Any) -> None:
    """The user's own function, handed through the domain; the attempt beside it keeps its reward."""
    rows = [{"prompt": "rev abcd="}, {"prompt": "rev aaaa="}]
    tasks = Domain("own", tasks=rows, verifier=verifier, answer=None, dev_share=0, sealed_share=0).tasks()
    scripts = [(tasks[0], ("dcba",)), (tasks[1], ("aaaa",))]
    async with Rollout(ScriptedPolicy(policy.renderer, scripts), group_size=1, verifier_timeout_s=1.0) as rollout:
        started = time.monotonic()
        bad, good = await rollout.collect(tasks)
    assert time.monotonic() - started < 20
    assert isinstance(bad.rewards[0], Invalid)
    assert good.rewards == (Scored(1.0),)


async def test_tokens_of_a_tool_episode_are_appended_and_never_tokenised_again(policy: Policy) -> None:
    seen: list[SampleRequest] = []
    task = tool_task()
    scripts = ScriptedPolicy(policy.renderer, [(task, ("<multiply><a>12</a><b>3</b>", "36"))])
    sample = scripts.sample

    def watched(requests: list[SampleRequest]) -> list[list[Sample]]:
        seen.extend(requests)
        return sample(requests)

    scripts.sample = watched  # type: ignore[method-assign]
    async with Rollout(scripts, group_size=2) as rollout:
        (group,) = await rollout.collect([task])
    assert [r.value for r in group.rewards if isinstance(r, Scored)] == [1.0, 1.0]
    first, second = seen
    assert first.branches == ((), ())
    for branch, t in zip(second.branches, group.trajectories, strict=True):
        ids = tuple(t.token_ids.tolist())
        assert second.prefix == ids[: t.prompt_tokens]
        assert ids[t.prompt_tokens :][: len(branch)] == branch, "the second turn continues exactly what is recorded"
        assert [turn.producer for turn in t.turns] == [
            Producer.PROMPT,
            Producer.POLICY,
            Producer.ENVIRONMENT,
            Producer.POLICY,
        ]
        assert t.turns[2].text == "36#"
        assert t.policy_mask.tolist() == [p == Producer.POLICY for p in t.producers]


async def test_the_real_policy_plays_the_tool_episode_with_append_only_tokens(policy: Policy) -> None:
    tasks = tiny.domains()["product"].draw(8, Split.TRAIN, 0)
    async with Rollout(policy, group_size=4) as rollout:
        groups = await rollout.collect(tasks)
    two_turns = [t for g in groups for t in g.trajectories if len(t.turns) == 4]
    assert len(two_turns) > 16
    for t in two_turns:
        spans = [(turn.start, turn.end) for turn in t.turns]
        assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
        assert spans[-1][1] == len(t)
        written = t.turns[1]
        assert policy.renderer.decode(t.token_ids[written.start : written.end].tolist()) == written.text
        assert not any(t.policy_mask[t.turns[2].start : t.turns[2].end])


async def test_a_later_turn_that_does_not_fit_ends_the_episode_as_truncated(policy: Policy) -> None:
    task = tool_task(max_new_tokens=30)
    scripts = [(task, ("<multiply><a>12</a><b>3</b>", "36"))]
    async with Rollout(ScriptedPolicy(policy.renderer, scripts, max_context_tokens=60), group_size=2) as rollout:
        (group,) = await rollout.collect([task])
    for t, reward in zip(group.trajectories, group.rewards, strict=True):
        assert t.stop_reason is StopReason.LENGTH
        assert [turn.producer for turn in t.turns] == [Producer.PROMPT, Producer.POLICY]
        assert isinstance(reward, Scored)
        assert reward.failure == "truncated"


async def test_a_prompt_that_is_too_long_is_refused_before_any_work(policy: Policy) -> None:
    tasks = [task_of(), task_of("a" * 250)]
    policy.engine.forget()
    async with Rollout(policy, group_size=2) as rollout:
        with pytest.raises(ContextOverflow, match="250 tokens"):
            await rollout.collect(tasks)
    assert not policy.engine._prefixes


async def test_an_unknown_environment_is_refused_by_name(policy: Policy) -> None:
    async with Rollout(policy) as rollout:
        with pytest.raises(UnknownEnvironment, match="browser"):
            await rollout.collect([task_of(environment=EnvironmentSpec(kind="browser"))])


async def test_group_sizes_below_one_are_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="group_size"):
        Rollout(policy, group_size=0)
    async with Rollout(policy) as rollout:
        with pytest.raises(ValueError, match="group_size"):
            await rollout.collect([task_of()], group_size=0)


async def test_an_evaluation_measures_held_out_tasks_only_and_greedily(policy: Policy) -> None:
    domain = tiny.domains()["reverse"]
    tasks = domain.draw(70, Split.DEV, 0)  # more than one slice
    steps: list[tuple[int, int]] = []
    async with Rollout(policy) as rollout:
        result, groups = await measure(
            rollout, tasks, policy_version=3, progress=lambda done, total: steps.append((done, total))
        )
        again, _ = await measure(rollout, tasks[::-1])
        with pytest.raises(ValueError, match="training task"):
            await measure(rollout, [*tasks, *domain.draw(1, Split.TRAIN, 0)])
    assert steps[-1] == (70, 70)
    assert len(steps) == 2
    assert result.policy_version == 3
    passed = {item.task_id: item.passed for item in result.items}
    assert passed == {item.task_id: item.passed for item in again.items}
    for item, group in zip(result.items, groups, strict=True):
        assert item.passed == (group.trajectories[0].answer.strip() == group.task.answer)


async def test_a_fault_during_an_evaluation_is_counted_and_takes_no_part(policy: Policy) -> None:
    tasks = [*tiny.domains()["reverse"].draw(5, Split.DEV, 0)]
    broken = Task("reverse", Split.DEV, (user("rev abcd="),), "number", "not a number")
    async with Rollout(policy) as rollout:
        with_fault, _ = await measure(rollout, [*tasks, broken])
        without, _ = await measure(rollout, tasks)
    assert with_fault.invalid == 1
    assert with_fault.by_domain["reverse"].accuracy == without.by_domain["reverse"].accuracy


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("abc\ndef", ("\n",), "abc"),
        ("abc", ("\n",), "abc"),
        ("a;b\nc", ("\n", ";"), "a"),
        ("\n", ("\n",), ""),
        ("abc", (), "abc"),
    ],
)
def test_the_answer_ends_before_the_first_stop_string(text: str, stop: tuple[str, ...], expected: str) -> None:
    assert before_stop(text, stop) == expected
