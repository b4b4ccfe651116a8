"""Trajectories on disk: written once, whole, and readable by anybody's tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from posttrain.records import Cost, Group, Invalid, Producer, Scored, Split, Task, Trajectory, user
from posttrain.storage import TrajectoryStore


def group(answer: str = " 2", seconds: float = 1.0) -> Group:
    task = Task("add", Split.TRAIN, (user("1 + 1 ="),), "number", answer="2")
    members = []
    for attempt in range(3):
        trajectory = Trajectory(task.id, attempt=attempt, cost=Cost(generate_s=seconds))
        trajectory.append(Producer.PROMPT, [5, 6], "1 + 1 =")
        trajectory.append(Producer.POLICY, [7], answer, logprobs=[-0.125 * attempt], policy_version=attempt)
        members.append(trajectory)
    return Group(task, tuple(members), (Scored(0), Scored(1, {"outcome": 1}), Invalid("sandbox died")))


def test_a_step_comes_back_as_it_was_written(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "trajectories")
    assert store.read("rl", 0) is None
    assert store.steps("rl") == []
    path = store.write("rl", 12, [group(), group(" 3")])
    assert path.name == "rl-000012.parquet"
    assert TrajectoryStore(tmp_path / "trajectories").read("rl", 12) == [group(), group(" 3")]
    assert store.read("rl", 1) is None
    store.write("eval_before", 0, [])
    assert store.read("eval_before", 0) == []


def test_phases_and_steps_are_kept_apart_and_in_order(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    for step in (11, 2, 1_000_000):
        store.write("rl", step, [group()])
    store.write("rl_more", 3, [group(" 4")])
    assert store.steps("rl") == [2, 11, 1_000_000]
    assert store.steps("rl_more") == [3]
    assert [(step, len(groups)) for step, groups in store.iterate("rl")] == [(2, 1), (11, 1), (1_000_000, 1)]


def test_a_step_is_written_once(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    path = store.write("rl", 0, [group()])
    before = (path.stat().st_ino, path.read_bytes())
    store.write("rl", 0, [group()])
    store.write("rl", 0, [group(seconds=9.0)])  # a machine is never as fast twice
    assert (path.stat().st_ino, path.read_bytes()) == before
    other = replace(group(), rewards=(Scored(0), Scored(0.5), Invalid("sandbox died")))
    for changed in ([group(), group()], [], [other]):
        with pytest.raises(ValueError, match=r"other trajectories of rl step 0"):
            store.write("rl", 0, changed)
    assert (path.stat().st_ino, path.read_bytes()) == before


def test_the_folder_is_a_dataset_for_other_tools(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    for step in range(3):
        store.write("rl", step, [group()] * (step + 1))
    table = ds.dataset(tmp_path, format="parquet").to_table(
        columns=["step", "domain", "reward_value"], filter=(pc.field("phase") == "rl") & (pc.field("step") > 0)
    )
    counts = table.group_by("step").aggregate([("reward_value", "mean"), ("reward_value", "count")]).to_pydict()
    assert dict(zip(counts["step"], counts["reward_value_count"], strict=True)) == {1: 4, 2: 6}
    assert counts["reward_value_mean"] == [0.5, 0.5]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path)
    path = store.write("rl", 0, [group()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"rl-000000\.parquet is damaged"):
        store.read("rl", 0)


@pytest.mark.parametrize(("phase", "step"), [("RL", 0), ("", 0), ("../rl", 0), ("rl-1", 0), ("rl", -1)])
def test_a_phase_is_a_plain_word(tmp_path: Path, phase: str, step: int) -> None:
    with pytest.raises(ValueError, match="phase"):
        TrajectoryStore(tmp_path).write(phase, step, [])
