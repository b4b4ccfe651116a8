"""Every built-in domain rewards the right answer and nothing else, played through its real environment and sandbox."""

from __future__ import annotations

import json
import string

import pytest
from tests import tiny

from posttrain.inference.renderer import Renderer
from posttrain.records import Invalid, Scored, Split, StopReason, Task
from posttrain.rollout import Rollout, ScriptedPolicy
from posttrain.tasks import TRAINING, Domain, get_domain, list_domains

ALPHABET = string.printable


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """One token for each ASCII character: whatever a domain writes can be said."""
    folder = tmp_path_factory.mktemp("characters")
    tiny.tokenizer(ALPHABET).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": len(ALPHABET)}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return Renderer.load(folder)


def right_turns(domain: Domain, task: Task) -> tuple[str, ...]:
    turns = domain.demonstrate(task)
    return turns if turns is not None else (f" {task.answer}",)  # retention domains show no demonstrations


async def play(renderer: Renderer, scripts: list[tuple[Task, tuple[str, ...]]]) -> list[Scored]:
    async with Rollout(ScriptedPolicy(renderer, scripts), group_size=1) as rollout:
        groups = await rollout.collect([task for task, _ in scripts])
    rewards = []
    for group in groups:
        reward, trajectory = group.rewards[0], group.trajectories[0]
        assert isinstance(reward, Scored), f"{group.task.id}: {reward}"
        assert trajectory.stop_reason is StopReason.STOP
        rewards.append(reward)
    return rewards


@pytest.mark.parametrize("name", list_domains())
async def test_a_right_answer_is_worth_one_and_a_wrong_one_nothing(renderer: Renderer, name: str) -> None:
    domain = get_domain(name)
    tasks = domain.draw(3, Split.DEV, 0)
    if name in TRAINING:  # the others measure retention: all of their items are held out
        tasks += domain.draw(3, Split.TRAIN, 0)
    for task, reward in zip(tasks, await play(renderer, [(t, right_turns(domain, t)) for t in tasks]), strict=True):
        assert (reward.value, reward.failure) == (1.0, None), task.id
    for task, reward in zip(tasks, await play(renderer, [(t, (" zzz",)) for t in tasks]), strict=True):
        assert reward.value == 0.0, task.id
        assert reward.failure is not None
    silent = await play(renderer, [(t, ("",)) for t in tasks[:1]])
    assert silent[0].value == 0.0


async def test_a_function_that_is_mended_after_its_log_is_worth_a_little_less(renderer: Renderer) -> None:
    domain = get_domain("write_run_debug")
    (task,) = domain.draw(1, Split.TRAIN, 1)
    right = right_turns(domain, task)[0]
    scripts = [(task, ("\n    return zzz", right))]
    async with Rollout(ScriptedPolicy(renderer, scripts), group_size=2) as rollout:
        (group,) = await rollout.collect([task])
    for reward, trajectory in zip(group.rewards, group.trajectories, strict=True):
        assert isinstance(reward, Scored)
        assert 0.5 < reward.value < 1.0
        assert reward.failure is None
        assert "NameError" in trajectory.text, "the log goes into the context"
        assert trajectory.evidence["attempts_used"] == 2


async def test_a_broken_test_program_is_a_fault_and_not_a_wrong_answer(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = get_domain("write_run_debug")
    (task,) = domain.draw(1, Split.TRAIN, 1)
    monkeypatch.setattr("posttrain.tasks.write_run_debug.harness_source", lambda *_: "this is no program")
    async with Rollout(ScriptedPolicy(renderer, [(task, right_turns(domain, task))]), group_size=1) as rollout:
        (group,) = await rollout.collect([task])
    (reward,) = group.rewards
    assert isinstance(reward, Invalid)
    assert "SyntaxError" in reward.reason
    assert "\n" not in reward.reason


@pytest.mark.parametrize(
    "body", ["    import os, signal; os.kill(os.getppid(), signal.SIGKILL)", "    while True: pass"]
)
async def test_a_function_that_ends_or_stalls_its_tests_is_worth_nothing(renderer: Renderer, body: str) -> None:
    (task,) = get_domain("write_run_debug").draw(1, Split.TRAIN, 1)
    (reward,) = await play(renderer, [(task, ("\n" + body,))])
    assert reward.value == 0.0


async def test_a_tool_call_without_the_right_answer_earns_only_the_step(renderer: Renderer) -> None:
    domain = get_domain("tool_call")
    (task,) = domain.draw(1, Split.TRAIN, 1)
    call = right_turns(domain, task)[0]
    guessed, called = await play(renderer, [(task, (f" {task.answer}",))]), await play(renderer, [(task, (call, " 0"))])
    assert guessed[0].value == 0.0, "an answer that was guessed is not correct"
    assert 0.0 < called[0].value < 0.5
