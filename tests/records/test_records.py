"""The shared records: what they refuse, and what stays the same over processes."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.records import (
    NO_VERSION,
    Batch,
    Checkpoint,
    Group,
    HeldOutLeak,
    Invalid,
    Producer,
    Scored,
    Split,
    Task,
    Trajectory,
    split_by_content,
    user,
)

SRC = Path(__file__).resolve().parents[2] / "src"


def task(split: Split = Split.TRAIN) -> Task:
    return Task("add", split, (user("1 + 1 ="),), "number", answer={"b": [1, 2.5], "a": "ü"})


def episode(task_id: str) -> Trajectory:
    trajectory = Trajectory(task_id)
    trajectory.append(Producer.PROMPT, [1, 2, 3], "1 + 1 =")
    trajectory.append(Producer.POLICY, [4, 5], " 3", logprobs=[-0.1, -0.2], policy_version=7)
    trajectory.append(Producer.ENVIRONMENT, [6], " no")
    trajectory.append(Producer.POLICY, [8], " 2", logprobs=[-0.3], policy_version=8)
    return trajectory


def run_python(code: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(SRC), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout


# trajectories


def test_every_token_says_who_wrote_it_and_under_which_weights() -> None:
    trajectory = episode("t")
    assert trajectory.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 8]
    assert trajectory.producers.tolist() == [0, 0, 0, 1, 1, 2, 1]
    assert trajectory.policy_versions.tolist() == [NO_VERSION] * 3 + [7, 7, NO_VERSION, 8]
    assert trajectory.policy_mask.tolist() == [False, False, False, True, True, False, True]
    assert np.isnan(trajectory.logprobs).tolist() == (~trajectory.policy_mask).tolist()
    assert trajectory.logprobs[3] == np.float32(-0.1)
    assert [(turn.start, turn.end) for turn in trajectory.turns] == [(0, 3), (3, 5), (5, 6), (6, 7)]
    assert (trajectory.prompt_tokens, trajectory.answer, trajectory.text) == (3, " 2", " 3 no 2")
    assert [a.dtype for a in (trajectory.token_ids, trajectory.logprobs, trajectory.producers)] == [
        np.int32,
        np.float32,
        np.uint8,
    ]


@pytest.mark.parametrize("name", ["token_ids", "logprobs", "producers", "policy_versions", "policy_mask"])
def test_an_array_that_was_handed_out_can_not_change_the_record(name: str) -> None:
    trajectory = episode("t")
    array = getattr(trajectory, name)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    before = array.copy()
    trajectory.append(Producer.ENVIRONMENT, [9], "x")
    np.testing.assert_array_equal(array, before)
    assert len(getattr(trajectory, name)) == len(before) + 1


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=6))
def test_appending_changes_nothing_that_stood_there(turns: list[list[int]]) -> None:
    trajectory = Trajectory("t")
    for ids in turns:
        before = trajectory.token_ids.tolist()
        trajectory.append(Producer.ENVIRONMENT, ids, "")
        assert trajectory.token_ids.tolist() == before + ids
        assert trajectory.turns[-1].end == len(trajectory)


@pytest.mark.parametrize(
    "append",
    [
        lambda t: t.append(Producer.POLICY, [1, 2], "x", logprobs=[-1.0], policy_version=1),
        lambda t: t.append(Producer.POLICY, [1], "x", logprobs=[-1.0]),
        lambda t: t.append(Producer.POLICY, [1], "x", policy_version=1),
        lambda t: t.append(Producer.POLICY, [1], "x", logprobs=[math.nan], policy_version=1),
        lambda t: t.append(Producer.POLICY, [1], "x", logprobs=[-1e300], policy_version=1),  # infinite in float32
        lambda t: t.append(Producer.ENVIRONMENT, [1], "x", logprobs=[-1.0]),
        lambda t: t.append(Producer.PROMPT, [1], "x", policy_version=3),
        lambda t: t.append(Producer.PROMPT, [2**31], "x"),
    ],
)
def test_a_turn_that_breaks_the_record_is_refused_whole(append: Callable[[Trajectory], None]) -> None:
    trajectory = episode("t")
    with pytest.raises(ValueError, match=r"log-prob|32 bits"):
        append(trajectory)
    assert trajectory == episode("t")


def test_half_a_token_is_no_token() -> None:
    trajectory = episode("t")
    with pytest.raises(TypeError):
        trajectory.append(Producer.ENVIRONMENT, [1, 1.5], "x")  # type: ignore[list-item]
    assert trajectory == episode("t")


def test_trajectories_compare_bit_for_bit() -> None:
    one, other = episode("t"), pickle.loads(pickle.dumps(episode("t")))
    assert one == other
    other.append(Producer.POLICY, [1], "", logprobs=[-0.5], policy_version=8)
    one.append(Producer.POLICY, [1], "", logprobs=[-0.5000001], policy_version=8)
    assert one != other


def test_a_seed_that_no_file_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        Trajectory("t", seed=-1)


# rewards and groups


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None, 10**400, np.float64("nan")])
def test_a_reward_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="Invalid"):
        Scored(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="style"):
        Scored(0.0, {"style": value})  # type: ignore[dict-item]


def test_a_numpy_reward_becomes_a_plain_number() -> None:
    reward = Scored(np.float32(0.5), {"outcome": np.int64(1)})  # type: ignore[arg-type, dict-item]
    assert json.dumps([reward.value, reward.parts]) == '[0.5, {"outcome": 1.0}]'


def test_an_invalid_attempt_takes_no_part_in_its_group() -> None:
    t = task()
    group = Group(t, tuple(episode(t.id) for _ in range(3)), (Scored(1), Invalid("sandbox died"), Scored(0)))
    assert group.mean == 0.5
    assert group.mixed
    assert [value for _, value in group.scored] == [1, 0]
    assert group.invalid == [Invalid("sandbox died")]
    nothing = replace(group, rewards=(Invalid("a"),) * 3)
    assert nothing.mean is None
    assert not nothing.mixed
    assert not replace(group, rewards=(Scored(1), Invalid("a"), Scored(1))).mixed


def test_a_group_holds_one_reward_for_each_attempt_at_its_task() -> None:
    t = task()
    with pytest.raises(ValueError, match="1 trajectories with 2 rewards"):
        Group(t, (episode(t.id),), (Scored(0), Scored(1)))
    with pytest.raises(ValueError, match="0 trajectories"):
        Group(t, (), ())
    with pytest.raises(ValueError, match="attempts at"):
        Group(t, (episode("other/train/00"),), (Scored(0),))


@pytest.mark.parametrize("split", [Split.DEV, Split.SEALED])
def test_a_held_out_task_can_not_reach_a_training_batch(split: Split) -> None:
    held_out, train = task(split), task()
    members = [Group(t, (episode(t.id),), (Scored(1),)) for t in (train, held_out)]
    with pytest.raises(HeldOutLeak, match=held_out.id):
        Batch(tuple(members))
    batch = Batch(members[:1])  # type: ignore[arg-type]
    members[0] = members[1]
    assert [group.task.split for group in batch] == [Split.TRAIN]
    with pytest.raises(FrozenInstanceError):
        batch.groups = tuple(members)  # type: ignore[misc]


# tasks


def test_the_split_is_part_of_a_tasks_identity() -> None:
    sides = [task(split) for split in Split]
    assert len({t.id for t in sides}) == 3
    assert len({t.content_hash for t in sides}) == 1
    assert task().id == "add/train/" + task().content_hash[:16]


def test_a_split_given_as_text_still_keeps_held_out_tasks_out() -> None:
    assert replace(task(), split="dev").split.held_out  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="validation"):
        replace(task(), split="validation")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [{"domain": ""}, {"domain": "a/b"}, {"difficulty": 1.5}, {"difficulty": math.nan}])
def test_a_task_that_breaks_the_order_of_tasks_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"domain|difficulty"):
        replace(task(), **bad)  # type: ignore[arg-type]


def test_ids_are_the_same_in_every_process() -> None:
    code = (
        "from posttrain.records import *\n"
        "t = Task('add', Split.TRAIN, (user('1 + 1 ='),), 'number', answer={'a': 'ü', 'b': [1, 2.5]})\n"
        "print(t.id, t.content_hash, split_by_content('What is 1 + 1?'))"
    )
    expected = f"{task().id} {task().content_hash} {split_by_content('What is 1 + 1?')}\n"
    assert {run_python(code, PYTHONHASHSEED=seed) for seed in ("0", "1", "4242")} == {expected}
    # Written down: an id that changes orphans every record that names it.
    assert task().id == "add/train/3457131bfa1e693c"


def test_splits_have_the_shares_that_were_asked_for() -> None:
    sides = [split_by_content(str(i), dev_share=0.25, sealed_share=0.1) for i in range(8000)]
    assert abs(sides.count(Split.DEV) / 8000 - 0.25) < 0.02
    assert abs(sides.count(Split.SEALED) / 8000 - 0.1) < 0.02
    with pytest.raises(ValueError, match="leave room"):
        split_by_content("x", dev_share=0.6, sealed_share=0.4)


# checkpoints and the start-up cost


def test_a_checkpoint_of_another_format_is_refused_with_the_mend() -> None:
    checkpoint = Checkpoint("run", 12, 12, "abc", {"adapter.safetensors": "00"})
    assert Checkpoint.from_json(json.loads(json.dumps(checkpoint.to_json()))) == checkpoint
    with pytest.raises(ValueError, match="upgrade"):
        Checkpoint.from_json({**checkpoint.to_json(), "format_version": 2})
    with pytest.raises(ValueError, match="steps"):
        Checkpoint.from_json({**checkpoint.to_json(), "steps": 2})


def test_importing_the_records_loads_nothing_heavy() -> None:
    code = (
        "import sys, posttrain.records, posttrain.records.arrow\n"
        "print([m for m in ('numpy', 'pyarrow', 'torch', 'pydantic') if m in sys.modules])"
    )
    assert run_python(code) == "[]\n"
