"""Runs verifiers in a process of their own, so that one that hangs, crashes or eats memory costs one verdict and not
the run.

Verifiers are sent by value (cloudpickle), so closures and functions of a script or notebook work. Verdicts come back
as JSON: nothing that a verifier returns is unpickled here. Bounds: `timeout_s` for each call, `LOAD_S` for loading a
verifier, `memory_mib` of address space, `CHUNK` calls sent ahead. It guards against accidents, not against malice:
code that the policy wrote runs in a sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import cloudpickle

from posttrain.records import Attempt, Invalid, Reward, Task
from posttrain.rewards.resolve import resolve_verifier
from posttrain.rewards.verdict import Verifier, decode, one_line

CHUNK = 256
LOAD_S = 60.0  # starting Python, importing what a verifier needs
MAX_REPLY_BYTES = 1 << 20


class _Died(Exception):
    """The worker ended, or does not answer within its limit; the text is the reason that the user sees."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    index: int
    verifier: bytes
    arguments: bytes


class VerifierProcess:
    """One worker, started at the first call and again after each accident; `await close()` at the end.

    timeout_s: wall-clock seconds of one call. memory_mib: address space of the worker.
    """

    def __init__(self, timeout_s: float = 5.0, memory_mib: int = 4096) -> None:
        if not 0 < timeout_s < math.inf:
            raise ValueError(f"verifier timeout_s is {timeout_s!r}: give seconds above 0")
        if memory_mib < 256:
            raise ValueError(f"verifier memory_mib is {memory_mib!r}: give a whole number of at least 256")
        self.timeout_s, self.memory_mib = timeout_s, memory_mib
        self._worker: _Worker | None = None
        self._lock = asyncio.Lock()

    async def score(self, verifier: Verifier | str, task: Task, attempt: Attempt) -> Reward:
        """See `score_many`."""
        return (await self.score_many([(verifier, task, attempt)]))[0]

    async def score_many(self, calls: Sequence[tuple[Verifier | str, Task, Attempt]]) -> list[Reward]:
        """One reward for each (verifier or its name, task, attempt), in order.

        A call that runs past the limit, crashes or raises is Invalid; the others still get their verdict.
        UnknownVerifier for a name that does not exist, ValueError for a function that can not be sent to another
        process. Cancelling kills the worker.
        """
        rewards: list[Reward | None] = [None] * len(calls)
        todo = _prepared(calls, rewards)
        given_up = threading.Event()
        async with self._lock:
            work = asyncio.ensure_future(asyncio.to_thread(self._score, todo, rewards, given_up))
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                given_up.set()
                if self._worker is not None:
                    self._worker.signal()
                await asyncio.wait({work}, timeout=LOAD_S)
                raise
        return [cast(Reward, r) for r in rewards]

    async def close(self) -> None:
        """Ends the worker. Idempotent; a later call starts a new one."""
        async with self._lock:
            self._stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()

    def _score(self, todo: list[_Call], rewards: list[Reward | None], given_up: threading.Event) -> None:
        """In a thread. Each round settles a chunk, or up to the call that broke the worker."""
        while todo and not given_up.is_set():
            chunk, answering = todo[:CHUNK], False
            try:
                if self._worker is None or not self._worker.alive:
                    self._worker = _Worker(self.memory_mib * 2**20)
                if given_up.is_set():
                    return
                failed = self._worker.begin(chunk)
                answering = True
                for call in chunk:
                    reason = failed.get(call.verifier)
                    rewards[call.index] = Invalid(reason) if reason else decode(self._worker.receive(self.timeout_s))
            except _Died as error:
                self._stop()
                # The worker answers in order: who has no answer yet is to blame, and the rest gets a new worker.
                if answering:
                    rewards[next(c.index for c in chunk if rewards[c.index] is None)] = Invalid(str(error))
                else:
                    for call in chunk:
                        rewards[call.index] = Invalid(f"verifier could not be loaded: {error}")
            todo = [c for c in todo if rewards[c.index] is None]


class _Worker:
    """The worker's process and the line to it. Blocking, with a bound on every wait."""

    def __init__(self, memory_bytes: int) -> None:
        self._sock, theirs = socket.socketpair()
        package_root = str(Path(__file__).parents[2])
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "posttrain.rewards.worker", str(theirs.fileno()), str(memory_bytes)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH")))),
                },
            )
        self._pidfd = os.pidfd_open(self._process.pid)
        self._sock.settimeout(LOAD_S)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._poll.register(self._pidfd, select.POLLIN)
        self._read = bytearray()
        self.alive = True
        # Functions of importable modules go by name: the worker must find the same modules.
        try:
            self._send([p or str(Path.cwd()) for p in sys.path])
            self.receive(LOAD_S)
        except _Died:
            self.kill()
            raise

    def begin(self, calls: list[_Call]) -> dict[bytes, str]:
        """Sends the calls. The verifiers that could not be loaded, with the reason; the others' verdicts follow in
        order."""
        verifiers = list(dict.fromkeys(c.verifier for c in calls))
        self._send((verifiers, [(verifiers.index(c.verifier), c.arguments) for c in calls]))
        reasons = self.receive(LOAD_S)["loaded"]
        return {v: reason for v, reason in zip(verifiers, reasons, strict=True) if reason}

    def receive(self, limit_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while True:
            if len(self._read) >= 8:
                length = struct.unpack(">Q", self._read[:8])[0]
                if length > MAX_REPLY_BYTES:
                    raise _Died("verifier wrote into the line of its verdicts")
                if len(self._read) >= 8 + length:
                    data = bytes(self._read[8 : 8 + length])
                    del self._read[: 8 + length]
                    return cast(dict[str, Any], json.loads(data))
            ready = dict(self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if self._sock.fileno() in ready:
                self._read += self._chunk()
            elif self._pidfd in ready:
                # Not the end of the line: a copy that the verifier forked may hold it open.
                raise _Died(self._cause())
            else:
                raise _Died(f"verifier ran past {limit_s:g} s")

    def signal(self) -> None:
        """Kills the worker and what it started (unless that has left its session); who waits for it sees it die."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def kill(self) -> None:
        """As `signal`, and lets go of it. Idempotent."""
        if self.alive:
            self.alive = False
            self.signal()
            self._process.wait()
            self._sock.close()
            os.close(self._pidfd)

    def _chunk(self) -> bytes:
        try:
            data = self._sock.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            raise _Died(self._cause())
        return data

    def _send(self, message: object) -> None:
        data = pickle.dumps(message)
        try:
            self._sock.sendall(struct.pack(">Q", len(data)) + data)
        except OSError as error:
            raise _Died(self._cause()) from error

    def _cause(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "verifier closed the line of its verdicts"
        if code < 0:
            return f"verifier process was ended by {signal.Signals(-code).name}"
        return f"verifier process ended with exit code {code}"


def _prepared(calls: Sequence[tuple[Verifier | str, Task, Attempt]], rewards: list[Reward | None]) -> list[_Call]:
    shipped: dict[int, bytes] = {}
    todo = []
    for i, (verifier, task, attempt) in enumerate(calls):
        function = resolve_verifier(verifier) if isinstance(verifier, str) else verifier
        if id(function) not in shipped:
            shipped[id(function)] = _shipped(function)
        try:
            # The function travels once, by itself.
            arguments = pickle.dumps((dataclasses.replace(task, check=None), attempt))
        except Exception as error:  # noqa: BLE001 - the boundary to a user's values, whose pickling may raise anything
            rewards[i] = Invalid(one_line(f"attempt can not be sent to the verifier: {type(error).__name__}: {error}"))
        else:
            todo.append(_Call(i, shipped[id(function)], arguments))
    return todo


def _shipped(verifier: Callable[..., Any]) -> bytes:
    """The verifier as bytes: by value where it stands in a user's own file, which the worker might not find or find
    changed."""
    module = sys.modules.get(getattr(verifier, "__module__", None) or "")
    file = getattr(module, "__file__", None) or ""
    own = module is not None and file and not module.__name__.startswith("posttrain.") and "site-packages" not in file
    own = own and module is not None and module.__name__ != "__main__" and not file.startswith(sys.base_prefix)
    failures = []
    for by_value in (True, False) if own else (False,):
        try:
            if by_value:
                cloudpickle.register_pickle_by_value(module)
            try:
                return cast(bytes, cloudpickle.dumps(verifier))
            finally:
                if by_value:
                    cloudpickle.unregister_pickle_by_value(module)
        except Exception as error:  # noqa: BLE001 - the boundary to a user's values, whose pickling may raise anything
            failures.append(f"{type(error).__name__}: {error}")
    name = getattr(verifier, "__qualname__", repr(verifier))
    raise ValueError(
        one_line(
            f"verifier {name} can not be sent to its process ({failures[-1]}): "
            "make it a plain function of its arguments"
        )
    )
