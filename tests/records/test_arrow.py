"""Saved trajectories: what comes back is what went in, and older files stay readable."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.records import (
    Cost,
    EnvironmentSpec,
    Failure,
    Group,
    Invalid,
    Message,
    Producer,
    Provenance,
    Role,
    Scored,
    Split,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    Trajectory,
)
from posttrain.records.arrow import SCHEMA_VERSION, VERSION_KEY, from_table, schema, to_table
from posttrain.records.task_json import task_from_json, task_to_json

text = st.text(max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
seconds = st.floats(0, 1e6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(text, json_values, max_size=3)
tasks = st.builds(
    Task,
    domain=st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    split=st.sampled_from(Split),
    prompt=st.lists(st.builds(Message, st.sampled_from(Role), text), max_size=3).map(tuple),
    verifier=text,
    answer=json_values,
    render=st.sampled_from(("chat", "text")),
    environment=st.builds(
        EnvironmentSpec,
        text,
        st.integers(1, 9),
        st.integers(1, 99),
        st.lists(text, max_size=2).map(tuple),
        json_objects,
    ),
    difficulty=st.floats(0, 1),
    provenance=st.builds(Provenance, text, text, st.none() | st.integers(-(2**70), 2**70), text),
)
results = st.builds(ToolResult, st.builds(ToolCall, text, json_objects, st.none() | text), text, st.booleans(), seconds)
rewards = st.builds(Scored, finite, st.dictionaries(text, finite, max_size=3), st.none() | text) | st.builds(
    Invalid, text
)


@st.composite
def trajectories(draw: st.DrawFn, task_id: str) -> Trajectory:
    trajectory = Trajectory(
        task_id,
        attempt=draw(st.integers(0, 99)),
        seed=draw(st.integers(0, 2**64 - 1)),
        stop_reason=draw(st.sampled_from(StopReason)),
        tool_results=draw(st.lists(results, max_size=2)),
        evidence=draw(json_objects),
        cost=Cost(
            draw(seconds), draw(seconds), draw(seconds), draw(st.integers(0, 10**9)), draw(st.integers(0, 10**9))
        ),
    )
    for producer in draw(st.lists(st.sampled_from(Producer), max_size=4)):
        ids = draw(st.lists(st.integers(0, 2**31 - 1), max_size=4))
        if producer is Producer.POLICY:
            logprobs = draw(st.lists(st.floats(-100, 0, width=32), min_size=len(ids), max_size=len(ids)))
            version = draw(st.integers(0, 1000))
            trajectory.append(producer, ids, draw(text), logprobs=logprobs, policy_version=version)
        else:
            trajectory.append(producer, ids, draw(text))
    return trajectory


@st.composite
def groups(draw: st.DrawFn) -> Group:
    task = draw(tasks)
    members = draw(st.lists(st.tuples(trajectories(task.id), rewards), min_size=1, max_size=3))
    return Group(task, tuple(t for t, _ in members), tuple(r for _, r in members))


@settings(max_examples=40, deadline=None)
@given(st.lists(groups(), max_size=3))
def test_what_comes_back_is_what_was_saved(saved: list[Group]) -> None:
    table = to_table(saved)
    back = from_table(table)
    assert back == saved
    for old, new in zip(saved, back, strict=True):
        assert new.task.id == old.task.id
        for a, b in zip(old.trajectories, new.trajectories, strict=True):
            for name in ("token_ids", "logprobs", "producers", "policy_versions", "policy_mask"):
                before, after = getattr(a, name), getattr(b, name)
                assert (before.dtype, before.tobytes()) == (after.dtype, after.tobytes()), name
    assert to_table(back).equals(table)


@settings(max_examples=40, deadline=None)
@given(tasks)
def test_a_task_survives_json(task: Task) -> None:
    back = task_from_json(json.loads(json.dumps(task_to_json(task))))
    assert back == task
    assert back.id == task.id


def test_a_damaged_task_says_which_field() -> None:
    value = task_to_json(Task("add", Split.TRAIN, (), "number"))
    with pytest.raises(ValueError, match="verifierr"):
        task_from_json({**{k: v for k, v in value.items() if k != "verifier"}, "verifierr": "number"})
    with pytest.raises(ValueError, match="seeds"):
        task_from_json({**value, "provenance": {"source": "x", "seeds": 1}})
    with pytest.raises(ValueError, match="kept"):
        task_from_json({**value, "split": "kept"})


def example_group() -> Group:
    task = Task("add", Split.TRAIN, (Message(Role.USER, "1 + 1 ="),), "number", answer="2")
    members = []
    for attempt, version in enumerate((3, 4)):
        trajectory = Trajectory(task.id, attempt=attempt, seed=attempt + 7)
        trajectory.append(Producer.PROMPT, [5, 6], "1 + 1 =")
        trajectory.append(Producer.POLICY, [7], " 2", logprobs=[-0.1], policy_version=version)
        members.append(trajectory)
    return Group(task, tuple(members), (Scored(0.25, {"outcome": 0.0}, Failure.WRONG), Invalid("sandbox died")))


def test_the_same_task_twice_stays_two_groups() -> None:
    group = example_group()
    assert from_table(to_table([group, group])) == [group, group]


def test_a_row_says_null_where_there_is_nothing() -> None:
    scored, invalid = to_table([example_group()]).to_pylist()
    assert scored["logprobs"][:2] == [None, None]
    assert math.isclose(scored["logprobs"][2], -0.1, rel_tol=1e-6)
    assert (scored["reward_value"], scored["failure"], scored["invalid_reason"]) == (0.25, "wrong answer", None)
    assert (invalid["reward_value"], invalid["invalid_reason"]) == (None, "sandbox died")
    assert scored["answer"] == " 2"
    assert json.loads(scored["task"])["answer"] == "2"


def version_1(group: Group) -> pa.Table:
    """`group` as the first version of posttrain wrote it."""
    table = to_table([group])
    values = [math.nan if v is None else v for v in table.column("reward_value").to_pylist()]
    table = table.drop_columns(["reward_value", "failure", "invalid_reason", "evidence"])
    table = table.append_column("reward", pa.array(values, pa.float64()))
    return table.replace_schema_metadata({VERSION_KEY: b"1"})


def test_a_file_of_the_first_version_is_still_read() -> None:
    group = example_group()
    (back,) = from_table(version_1(group))
    assert back.task == group.task
    assert back.trajectories == group.trajectories
    assert back.rewards == (Scored(0.25, {"outcome": 0.0}), Invalid("reason not recorded (schema 1)"))


def test_a_file_of_a_newer_version_is_refused_with_the_mend() -> None:
    newer = str(SCHEMA_VERSION + 1).encode()
    table = to_table([example_group()]).replace_schema_metadata({VERSION_KEY: newer})
    with pytest.raises(ValueError, match=rf"schema {SCHEMA_VERSION + 1}: .* upgrade"):
        from_table(table)


def test_a_foreign_table_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no trajectories"):
        from_table(pa.table({"a": [1]}))
    with pytest.raises(ValueError, match="token_ids"):
        from_table(to_table([example_group()]).drop_columns(["token_ids"]))


def test_a_column_that_somebody_added_is_left_aside() -> None:
    group = example_group()
    table = to_table([group])
    assert from_table(table.append_column("note", pa.array(["a", "b"]))) == [group]


def changed(column: str, value: Any) -> pa.Table:
    rows = to_table([example_group()]).to_pylist()
    rows[0][column] = value
    return pa.Table.from_pylist(rows, schema=schema())


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("task_id", "add/train/0123456789abcdef"),
        ("producers", [0, 1, 1]),
        ("token_ids", [5, 6, 7, 8]),
        ("token_ids", [5, 6]),
        ("turns", [{"producer": 0, "start": 1, "end": 2, "text": ""}]),
        ("logprobs", [None, None, None]),
        ("reward_value", None),
        ("invalid_reason", "sandbox died"),
        ("task", json.dumps(task_to_json(Task("add", Split.DEV, (), "number")))),
    ],
)
def test_rows_that_contradict_themselves_are_refused(column: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"damaged|not finite"):
        from_table(changed(column, value))


def test_what_can_not_be_saved_says_whose_it_is() -> None:
    group = example_group()
    group.trajectories[0].evidence["pass_rate"] = math.nan
    with pytest.raises(ValueError, match="evidence of add/train/"):
        to_table([group])
    group.trajectories[0].evidence["pass_rate"] = {1, 2}
    with pytest.raises(ValueError, match="evidence of add/train/"):
        to_table([group])
    broken = Trajectory(group.task.id)
    broken.append(Producer.ENVIRONMENT, [1], "\ud800")
    with pytest.raises(ValueError, match="not Unicode"):
        to_table([Group(group.task, (broken,), (Scored(0),))])
