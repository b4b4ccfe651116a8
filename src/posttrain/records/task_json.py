"""A task as JSON and back: the form in which a row of trajectories carries its task, and in which a file holds tasks.

Invariant: `task_from_json(task_to_json(task))` equals `task` and has its id, for a task whose answer and settings are
JSON values (a tuple in them comes back as a list; the id is the same).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from posttrain.records.message import Message
from posttrain.records.task import EnvironmentSpec, Provenance, Split, Task

_NAMES = frozenset(
    ("domain", "split", "prompt", "verifier", "answer", "render", "environment", "difficulty", "provenance")
)


def task_to_json(task: Task) -> dict[str, Any]:
    """JSON values (dict, list, str, number, bool, None) of every field of `task`."""
    environment, provenance = task.environment, task.provenance
    return {
        "domain": task.domain,
        "split": str(task.split),
        "prompt": [message.to_json() for message in task.prompt],
        "verifier": task.verifier,
        "answer": task.answer,
        "render": task.render,
        "environment": {
            "kind": environment.kind,
            "max_turns": environment.max_turns,
            "max_new_tokens": environment.max_new_tokens,
            "stop": list(environment.stop),
            "settings": dict(environment.settings),
        },
        "difficulty": task.difficulty,
        "provenance": {
            "source": provenance.source,
            "version": provenance.version,
            "seed": provenance.seed,
            "licence": provenance.licence,
        },
    }


def task_from_json(value: Mapping[str, Any]) -> Task:
    """The task that `task_to_json` wrote. ValueError, naming the field, where one is missing, unknown or wrong."""
    if set(value) != _NAMES:
        raise ValueError(f"a task has the fields {sorted(_NAMES)}, not {sorted(value)}")
    try:
        environment = dict(value["environment"])
        return Task(
            domain=value["domain"],
            split=Split(value["split"]),
            prompt=tuple(Message.from_json(message) for message in value["prompt"]),
            verifier=value["verifier"],
            answer=value["answer"],
            render=value["render"],
            environment=EnvironmentSpec(**{**environment, "stop": tuple(environment["stop"])}),
            difficulty=value["difficulty"],
            provenance=Provenance(**value["provenance"]),
        )
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a task of {value['domain']!r}: {type(error).__name__}: {error}") from error


def json_text(value: object, what: str) -> str:
    """`value` as compact JSON that every reader accepts (no NaN). ValueError, naming `what`, where it is not JSON."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} can not be saved as JSON: {error}") from error
