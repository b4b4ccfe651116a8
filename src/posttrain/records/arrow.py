"""Trajectories with their rewards as an Arrow table: one row per attempt, a row readable without anything else.

The layout is versioned: `SCHEMA_VERSION` stands in the schema's metadata under `posttrain.schema_version`; a table of
an older version is brought up by `UPGRADES`, one function a step; a newer one is refused.

Columns of version 2:
    task_id, domain, split   of the task, for queries
    group_id      int32      which group of this table; the rows of a group are adjacent, in the order of its attempts
    attempt       int32      the attempt's index in its group
    seed          uint64     seed of its sampler
    token_ids     [T] int32
    producers     [T] uint8, values of `Producer`
    policy_versions  [T] int32, -1 where the policy did not sample the token
    logprobs      [T] float32, natural logarithm when sampled; null where the policy did not sample the token
    turns         [producer, start, end, text]: spans [start, end) of the tokens, with their text as decoded once
    tool_results  [name, arguments (JSON), error, content, ok, seconds]
    evidence      JSON that the environment measured
    answer        text of the last policy turn (for reading; derived from turns)
    stop_reason   a value of `StopReason`
    reward_value  float64, null where the attempt is invalid; reward_parts its named components; failure why below full
                  marks; invalid_reason why there is no verdict
    cost          seconds by phase and tokens by kind
    task          JSON of the whole task (prompt, answer, environment, difficulty, provenance, verifier, render)

Version 1 had `reward` (float64, NaN where invalid) for reward_value, and no failure, invalid_reason or evidence.

Invariant: `from_table(to_table(groups)) == groups`, arrays equal byte for byte. pyarrow is loaded by the first call.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from posttrain.records.group import Group
from posttrain.records.message import ToolCall, ToolResult
from posttrain.records.reward import Invalid, Reward, Scored
from posttrain.records.task import Task
from posttrain.records.task_json import json_text, task_from_json, task_to_json
from posttrain.records.trajectory import Cost, Producer, StopReason, Trajectory, Turn

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 2
VERSION_KEY = b"posttrain.schema_version"

Row = dict[str, Any]


@cache
def schema() -> pa.Schema:
    """The Arrow schema of version `SCHEMA_VERSION`; the module's docstring says what each column means."""
    import pyarrow as pa

    text, needed = pa.string(), {"nullable": False}
    turn = pa.struct(
        [
            pa.field("producer", pa.uint8()),
            pa.field("start", pa.int32()),
            pa.field("end", pa.int32()),
            pa.field("text", text),
        ]
    )
    call = pa.struct(
        [
            pa.field("name", text),
            pa.field("arguments", text),
            pa.field("error", text),
            pa.field("content", text),
            pa.field("ok", pa.bool_()),
            pa.field("seconds", pa.float64()),
        ]
    )
    seconds = [pa.field(name, pa.float64()) for name in ("generate_s", "environment_s", "score_s")]
    counts = [pa.field(name, pa.int64()) for name in ("prompt_tokens", "policy_tokens")]
    fields = [
        *(pa.field(name, text, **needed) for name in ("task_id", "domain", "split")),
        pa.field("group_id", pa.int32(), **needed),
        pa.field("attempt", pa.int32(), **needed),
        pa.field("seed", pa.uint64(), **needed),
        pa.field("token_ids", pa.list_(pa.int32()), **needed),
        pa.field("logprobs", pa.list_(pa.float32()), **needed),
        pa.field("producers", pa.list_(pa.uint8()), **needed),
        pa.field("policy_versions", pa.list_(pa.int32()), **needed),
        pa.field("turns", pa.list_(turn), **needed),
        pa.field("tool_results", pa.list_(call), **needed),
        *(pa.field(name, text, **needed) for name in ("evidence", "answer", "stop_reason")),
        pa.field("reward_value", pa.float64()),
        pa.field("reward_parts", pa.map_(text, pa.float64())),
        pa.field("failure", text),
        pa.field("invalid_reason", text),
        pa.field("cost", pa.struct([*seconds, *counts]), **needed),
        pa.field("task", text, **needed),
    ]
    return pa.schema(fields, metadata={VERSION_KEY: str(SCHEMA_VERSION).encode()})


def to_table(groups: Iterable[Group]) -> pa.Table:
    """One row per attempt. ValueError, naming the task, for evidence, arguments or an answer that are not JSON."""
    import pyarrow as pa

    rows = [row for group_id, group in enumerate(groups) for row in _rows_of(group_id, group)]
    try:
        return pa.Table.from_pylist(rows, schema=schema())
    except UnicodeEncodeError as error:
        raise ValueError(
            f"a text of these attempts is not Unicode ({error}): decode output with errors='replace'"
        ) from error


def from_table(table: pa.Table) -> list[Group]:
    """The groups of a table of this or an older version; columns that the schema does not name are left aside.

    ValueError for a table of a newer version, without a version, or whose rows contradict themselves.
    """
    rows = _upgraded(table).select(schema().names).to_pylist()
    return [_group_of(list(members)) for _, members in groupby(rows, key=lambda row: row["group_id"])]


def _upgraded(table: pa.Table) -> pa.Table:
    version = _version_of(table)
    if version > SCHEMA_VERSION:
        raise ValueError(f"trajectories of schema {version}: this posttrain reads up to {SCHEMA_VERSION}; upgrade it")
    while version < SCHEMA_VERSION:
        table = UPGRADES[version](table)
        version += 1
    missing = [name for name in schema().names if name not in table.column_names]
    if missing:
        raise ValueError(f"trajectories without the columns {missing}: the file is damaged or not of posttrain")
    return table


def _version_of(table: pa.Table) -> int:
    text = (table.schema.metadata or {}).get(VERSION_KEY, b"").decode()
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"a table without {VERSION_KEY.decode()} in its metadata holds no trajectories of posttrain")
    return int(text)


def _from_1_to_2(table: pa.Table) -> pa.Table:
    """NaN as "invalid" becomes null with a reason; what was not recorded then is empty or null."""
    import pyarrow as pa

    rewards: list[float | None] = table.column("reward").to_pylist()
    invalid = [value is None or math.isnan(value) for value in rewards]
    columns = {
        "reward_value": pa.array(
            [None if bad else value for bad, value in zip(invalid, rewards, strict=True)], pa.float64()
        ),
        "failure": pa.nulls(len(rewards), pa.string()),
        "invalid_reason": pa.array(["reason not recorded (schema 1)" if bad else None for bad in invalid], pa.string()),
        "evidence": pa.array(["{}"] * len(rewards), pa.string()),
    }
    table = table.drop_columns(["reward"])
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


# UPGRADES[v] turns a table of version v into one of version v + 1; a version that was ever written keeps its entry.
UPGRADES: dict[int, Callable[[pa.Table], pa.Table]] = {1: _from_1_to_2}


def _rows_of(group_id: int, group: Group) -> Iterable[Row]:
    task = group.task
    shared = {
        "task_id": task.id,
        "domain": task.domain,
        "split": str(task.split),
        "group_id": group_id,
        "task": json_text(task_to_json(task), f"task {task.id}"),
    }
    for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
        yield shared | _trajectory_row(trajectory) | _reward_row(reward)


def _trajectory_row(trajectory: Trajectory) -> Row:
    cost = trajectory.cost
    return {
        "attempt": trajectory.attempt,
        "seed": trajectory.seed,
        "token_ids": trajectory.token_ids,
        "logprobs": [None if math.isnan(value) else value for value in trajectory.logprobs.tolist()],
        "producers": trajectory.producers,
        "policy_versions": trajectory.policy_versions,
        "turns": [
            {"producer": int(turn.producer), "start": turn.start, "end": turn.end, "text": turn.text}
            for turn in trajectory.turns
        ],
        "tool_results": [
            {
                "name": result.call.name,
                "arguments": json_text(dict(result.call.arguments), f"tool arguments of {trajectory.task_id}"),
                "error": result.call.error,
                "content": result.content,
                "ok": result.ok,
                "seconds": result.seconds,
            }
            for result in trajectory.tool_results
        ],
        "evidence": json_text(trajectory.evidence, f"evidence of {trajectory.task_id}"),
        "answer": trajectory.answer,
        "stop_reason": str(trajectory.stop_reason),
        "cost": {
            "generate_s": cost.generate_s,
            "environment_s": cost.environment_s,
            "score_s": cost.score_s,
            "prompt_tokens": cost.prompt_tokens,
            "policy_tokens": cost.policy_tokens,
        },
    }


def _reward_row(reward: Reward) -> Row:
    if isinstance(reward, Invalid):
        return {"reward_value": None, "reward_parts": None, "failure": None, "invalid_reason": reward.reason}
    parts = list(reward.parts.items())
    return {"reward_value": reward.value, "reward_parts": parts, "failure": reward.failure, "invalid_reason": None}


def _group_of(rows: list[Row]) -> Group:
    task = _task_of(rows[0])
    if any(row["task"] != rows[0]["task"] for row in rows):
        raise ValueError(f"a group of {task.id} holds rows of another task: the file is damaged")
    return Group(task, tuple(map(_trajectory_of, rows)), tuple(map(_reward_of, rows)))


def _task_of(row: Row) -> Task:
    task = task_from_json(json.loads(row["task"]))
    if task.id != row["task_id"]:
        raise ValueError(f"a row of {row['task_id']} holds the task {task.id}: the file is damaged")
    return task


def _trajectory_of(row: Row) -> Trajectory:
    """Appends turn by turn, so that a row meets the same checks as an episode that runs."""
    lengths = {len(row[name]) for name in ("token_ids", "logprobs", "producers", "policy_versions")}
    if lengths != {max((turn["end"] for turn in row["turns"]), default=0)}:
        raise ValueError(f"the columns of an attempt at {row['task_id']} differ in length: the file is damaged")
    trajectory = Trajectory(
        task_id=row["task_id"],
        attempt=row["attempt"],
        seed=row["seed"],
        stop_reason=StopReason(row["stop_reason"]),
        tool_results=[_tool_result_of(result) for result in row["tool_results"]],
        evidence=json.loads(row["evidence"]),
        cost=Cost(**row["cost"]),
    )
    for value in row["turns"]:
        turn = Turn(Producer(value["producer"]), value["start"], value["end"], value["text"])
        span = slice(turn.start, turn.end)
        versions = set(row["policy_versions"][span])
        if turn.start != len(trajectory) or len(versions) > 1 or set(row["producers"][span]) - {turn.producer}:
            raise ValueError(f"the turns of an attempt at {row['task_id']} do not fit its tokens: the file is damaged")
        if turn.producer is Producer.POLICY:
            logprobs = [math.nan if value is None else value for value in row["logprobs"][span]]
            # A turn without a token has no version to remember.
            version = versions.pop() if versions else 0
            trajectory.append(
                turn.producer, row["token_ids"][span], turn.text, logprobs=logprobs, policy_version=version
            )
        else:
            trajectory.append(turn.producer, row["token_ids"][span], turn.text)
    return trajectory


def _tool_result_of(value: Row) -> ToolResult:
    call = ToolCall(value["name"], json.loads(value["arguments"]), value["error"])
    return ToolResult(call, value["content"], value["ok"], value["seconds"])


def _reward_of(row: Row) -> Reward:
    if (row["reward_value"] is None) == (row["invalid_reason"] is None):
        raise ValueError(f"an attempt at {row['task_id']} is neither scored nor invalid: the file is damaged")
    if row["reward_value"] is None:
        return Invalid(row["invalid_reason"])
    return Scored(row["reward_value"], dict(row["reward_parts"] or ()), row["failure"])
