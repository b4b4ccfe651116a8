"""What the policy acts in for one episode: it writes a turn, the environment answers or ends the episode.

| kind | what happens after a turn of the policy |
|---|---|
| `single_turn` | nothing: the episode is over |
| `tool` | the call is parsed and executed, its result goes into the context; the policy's next turn is the answer |
| `shell` | the command runs in a sandbox; its output is the evidence |
| `write_run_debug` | the tests run in a sandbox; a failing attempt gets the error log and another try, up to
`max_attempts` |

Invariant: what the policy did is evidence for the verifier; a fault of the machinery raises `SandboxError`, which the
rollout turns into `Invalid`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from posttrain.records import Task, ToolResult
from posttrain.sandbox import SandboxError, SandboxPool
from posttrain.tasks import shell, write_run_debug
from posttrain.tools import execute, parse_call, tools_for


@dataclass(frozen=True, slots=True)
class Feedback:
    """The environment's answer to a turn. append: text that goes into the context before the policy's next turn; None
    ends the episode. evidence is merged into the trajectory's."""

    append: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    tool_results: tuple[ToolResult, ...] = ()


class Environment(Protocol):
    async def step(self, text: str, truncated: bool) -> Feedback:
        """text: what the policy wrote in this turn, without the stop string."""
        ...


class UnknownEnvironment(ValueError):
    """A task names an environment that does not exist."""


class SingleTurn:
    """The first turn is the answer."""

    async def step(self, text: str, truncated: bool) -> Feedback:
        return Feedback()


class ToolUse:
    """One tool call, its result, then the answer."""

    def __init__(self, task: Task):
        self.task = task
        self.turns = 0

    async def step(self, text: str, truncated: bool) -> Feedback:
        self.turns += 1
        settings = self.task.environment.settings
        if self.turns >= self.task.environment.max_turns:
            return Feedback()
        tools = tools_for(settings)
        result = execute(parse_call(text, tools), tools)
        append = settings["result_format"].format(result=result.content)
        evidence = {"tool": result.call.name, "tool_ok": result.ok, "tool_result": result.content}
        return Feedback(append, evidence, (result,))


class Shell:
    """One command line, run for real."""

    def __init__(self, task: Task, sandboxes: SandboxPool):
        self.task, self.sandboxes = task, sandboxes

    async def step(self, text: str, truncated: bool) -> Feedback:
        async with self.sandboxes.sandbox() as sandbox:
            for path, content in self.task.environment.settings["files"].items():
                await sandbox.write(path, content.encode())
            result = await sandbox.exec(shell.command_of(text), env=shell.ENVIRONMENT)
        evidence = {
            "exit": result.exit,
            "stdout": result.stdout,
            "stderr": result.stderr[-500:],
            "timed_out": result.timed_out,
            "truncated_output": result.truncated,
        }
        return Feedback(None, evidence)


class WriteRunDebug:
    """Write a function, run its tests, read the log, try again."""

    def __init__(self, task: Task, sandboxes: SandboxPool):
        self.task, self.sandboxes = task, sandboxes
        self.attempts = 0

    async def step(self, text: str, truncated: bool) -> Feedback:
        self.attempts += 1
        nonce = secrets.token_hex(16)
        harness = write_run_debug.harness_source(self.task, text, nonce)
        async with self.sandboxes.sandbox() as sandbox:
            result = await sandbox.exec(
                ["python3", "-s", "-S", "-c", harness], stdin=nonce.encode() + b"\n", env=write_run_debug.ENVIRONMENT
            )
        if 0 < result.exit < 128 and nonce not in result.stdout and not (result.timed_out or result.out_of_memory):
            # not ended by a signal and yet no report: the program that tests is broken, whatever the policy wrote
            raise SandboxError(f"the tests could not run: {' '.join(result.stderr.split())[-200:]}")
        pass_rate, log = write_run_debug.parse_report(result.stdout, nonce)
        if result.timed_out:
            log = "TimeoutError: the function did not finish"
        evidence = {"pass_rate": pass_rate, "attempts_used": self.attempts, "log": log}
        settings = self.task.environment.settings
        if pass_rate >= 1.0 or self.attempts >= settings["max_attempts"]:
            return Feedback(None, evidence)
        return Feedback(settings["feedback_format"].format(log=log), evidence)


def make_environment(task: Task, sandboxes: Callable[[], SandboxPool]) -> Environment:
    """The environment of one episode. sandboxes is called only where the task runs code."""
    kind = task.environment.kind
    if kind == "single_turn":
        return SingleTurn()
    if kind == "tool":
        return ToolUse(task)
    if kind == "shell":
        return Shell(task, sandboxes())
    if kind == "write_run_debug":
        return WriteRunDebug(task, sandboxes())
    raise UnknownEnvironment(
        f"task {task.id} wants environment {kind!r}: there are single_turn, tool, shell, write_run_debug"
    )
