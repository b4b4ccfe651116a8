"""The built-in domains: every item is sound, right solutions pass, wrong ones do not."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.records import Attempt, Scored, Split, Task
from posttrain.rewards import BUILTIN
from posttrain.tasks import RETENTION, TRAINING, DomainError, get_domain, list_domains
from posttrain.tasks import shell as shell_environment
from posttrain.tasks.families import arithmetic, comparison, knowledge, lists, python_functions, shell_lines, tool_call
from posttrain.tools import execute, parse_call, tools_for

NAMES = list_domains()
DOMAINS = {name: get_domain(name) for name in NAMES}
SINGLE = [name for name in NAMES if DOMAINS[name].environment.kind == "single_turn"]


def judged(task: Task, answer: str, **evidence: Any) -> float:
    reward = BUILTIN[task.verifier](task, Attempt(answer, evidence=evidence))
    assert isinstance(reward, Scored), reward
    return reward.value


def question_of(task: Task) -> str:
    """What is asked, without the shots: the last line, or the last two where the last is only a cue."""
    lines = task.prompt[0].content.split("\n")
    cue = lines[-1] in ("Last word:", "Count:", "Call:", "$") or lines[-1].startswith("def ")
    return "\n".join(lines[-2:] if cue else lines[-1:])


def test_eight_domains_train_and_at_least_three_only_measure() -> None:
    assert len(TRAINING) == 8 and len(RETENTION) >= 3 and tuple(NAMES) == (*TRAINING, *RETENTION)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(DomainError, match="no domain 'aritmetic'; did you mean 'arithmetic'"):
        get_domain("aritmetic")


@pytest.mark.parametrize("name", NAMES)
def test_enough_distinct_held_out_tasks_for_an_evaluation(name: str) -> None:
    tasks = DOMAINS[name].draw(30, "dev", 0)
    assert len({t.content_hash for t in tasks}) == 30 and all(t.split is Split.DEV for t in tasks)


@pytest.mark.parametrize("name", list(TRAINING))
def test_training_never_sees_what_is_held_out(name: str) -> None:
    questions = [{t.prompt[0].content for t in DOMAINS[name].draw(60 if s is Split.TRAIN else 30, s, 1)} for s in Split]
    assert not questions[0] & questions[1] and not questions[0] & questions[2] and not questions[1] & questions[2]


@pytest.mark.parametrize("name", list(RETENTION))
def test_what_only_measures_has_next_to_nothing_to_train_on(name: str) -> None:
    assert float(DOMAINS[name].card().splits["train"]["share"] or 0) < 0.01


@pytest.mark.parametrize("name", NAMES)
def test_every_card_says_what_is_right_how_to_cheat_and_what_was_measured(name: str) -> None:
    card = DOMAINS[name].card()
    assert card.description and card.right and card.cheats and card.verifier in BUILTIN
    assert card.base and all(
        0 <= b.greedy <= 1 and 0 <= b.pass_at_1 <= b.pass_at_k <= 1 and b.n >= 30 for b in card.base
    )


GENERATORS = {
    "arithmetic": arithmetic.pairs(10, 99, ("{a} + {b} = {answer}",), ((31, 12),), lambda a, b: a + b, "+"),
    "comparison": comparison.comparisons(2, ((1, 9),), (("{numbers}: {answer}", " "),), ((1, 2),)),
    "lists": lists.lists(2, 6, ("{words}: {answer}",), " ", lists.SHOTS, len),
    "knowledge": knowledge.facts(knowledge.CAPITALS, knowledge.CAPITAL_SHOTS, ("{key}: {answer}",)),
    "shell": shell_lines.generate,
    "python": python_functions.generate,
    "tool": tool_call.generate,
}


@pytest.mark.parametrize("family", GENERATORS)
@given(seed=st.integers(0, 2**64))
def test_generators_make_a_sound_item_from_any_seed(family: str, seed: int) -> None:
    item = GENERATORS[family](random.Random(seed))
    assert item == GENERATORS[family](random.Random(seed))
    assert item.question and item.prompt and item.prompt == item.prompt.rstrip() and 0 <= item.difficulty <= 1
    assert item.demonstration and all(turn.strip() for turn in item.demonstration)


@pytest.mark.parametrize("name", NAMES)
def test_no_shot_is_the_item_itself(name: str) -> None:
    for task in DOMAINS[name].draw(38 if name in RETENTION else 60, "dev", 2):
        text = task.prompt[0].content
        asked = question_of(task)
        assert text.count(asked) == 1, text


@pytest.mark.parametrize("name", SINGLE)
def test_the_demonstrated_answer_passes_and_the_usual_wrong_ones_do_not(name: str) -> None:
    for task in DOMAINS[name].draw(30, "dev", 3):
        turns = DOMAINS[name].demonstrate(task)
        assert turns is not None and len(turns) == 1 and not any(s in turns[0] for s in task.environment.stop)
        assert judged(task, turns[0]) == 1
        for wrong in ("", " I do not know.", " -1", " zzz", f" {task.answer}7"):
            assert judged(task, wrong) == 0, wrong


def test_tool_calls_run_and_their_result_is_the_answer() -> None:
    domain = DOMAINS["tool_call"]
    for task in domain.draw(40, "train", 0):
        call, answer = domain.demonstrate(task) or ("", "")
        tools = tools_for(task.environment.settings)
        result = execute(parse_call(call, tools), tools)
        assert result.ok and result.content == str(task.answer)
        follow_up = task.environment.settings["result_format"].format(result=result.content)
        assert follow_up.endswith("Answer:") and follow_up in task.prompt[0].content.replace("43", result.content)
        assert judged(task, answer, tool=result.call.name, tool_ok=True) == pytest.approx(1)
        assert judged(task, answer) == 0


@pytest.fixture(scope="module")
def shell_tasks() -> list[Task]:
    """At least one task of every kind."""
    return DOMAINS["shell"].draw(120, "train", 0)


def run(command: str, task: Task, folder: Path) -> str:
    folder.mkdir()
    for name, text in task.environment.settings["files"].items():
        (folder / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **shell_environment.ENVIRONMENT},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout


def test_reference_commands_print_what_is_expected_in_a_real_shell(shell_tasks: list[Task], tmp_path: Path) -> None:
    for i, task in enumerate(shell_tasks):
        (turn,) = DOMAINS["shell"].demonstrate(task) or ("",)
        stdout = run(shell_environment.command_of(turn), task, tmp_path / str(i))
        assert judged(task, turn, exit=0, stdout=stdout) == 1, (turn, stdout, task.answer)
        assert judged(task, turn, exit=0, stdout=stdout + "x") == 0 and judged(task, turn, exit=1, stdout=stdout) == 0


def test_every_kind_of_shell_task_is_drawn(shell_tasks: list[Task]) -> None:
    commands = {(DOMAINS["shell"].demonstrate(t) or ("",))[0] for t in shell_tasks}
    starts = {kind.command.split("{")[0].strip() for kind in shell_lines.KINDS}
    assert all(any(c.strip().startswith(s) for c in commands) for s in starts), starts


def test_doing_nothing_or_printing_the_file_as_it_is_does_not_pass_a_shell_task(shell_tasks: list[Task]) -> None:
    passed = 0
    for task in shell_tasks:
        assert judged(task, "true", exit=0, stdout="") == 0
        passed += judged(task, "cat *", exit=0, stdout="".join(task.environment.settings["files"].values())) == 1
    assert passed <= 2  # the file may happen to be sorted


@pytest.mark.parametrize(
    ("text", "command"), [(" wc -l < a\n", "wc -l < a"), ("$ ls\nrm", "ls"), ("", ""), ("  \n", "")]
)
def test_a_command_is_the_first_line_without_the_prompt_sign(text: str, command: str) -> None:
    assert shell_environment.command_of(text) == command


@settings(max_examples=20)
@given(st.integers(0, 2**32))
def test_shell_files_stay_inside_their_folder(seed: int) -> None:
    files = shell_lines.generate(random.Random(seed)).settings["files"]
    assert files and all("/" not in name and not name.startswith((".", "-")) for name in files)


def test_tasks_of_pure_families_are_made_fast_enough_to_be_no_bottleneck() -> None:
    import time

    start = time.process_time()
    DOMAINS["arithmetic"].draw(500, "train", 0)
    assert time.process_time() - start < 1  # measured: 0.07 s
