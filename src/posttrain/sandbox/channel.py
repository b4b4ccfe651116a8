"""Our end of the line to a holder: starts it, sends programs to it, collects their output.

Bounds: starting waits at most `START_S`; an exec waits for its limit plus `GRACE_S`, then the holder is killed (and
with it all that runs under it) and `SandboxError` is raised. Output beyond the limit is never kept in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.sandbox.errors import SandboxError

START_S = 15.0
GRACE_S = 15.0  # the holder's own bounds for killing and reaping, with room for a busy machine
MESSAGE_BYTES = 512 * 1024
_CHUNK_BYTES = 64 * 1024


class Channel:
    """One holder process. Create with `await Channel.start(setup)`."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self._process, self._sock = process, sock
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[dict[str, Any]] | None = None
        self._serial = 0
        self.fds: tuple[int, int] = (-1, -1)
        self.broken: str | None = None

    @classmethod
    async def start(cls, setup: dict[str, Any]) -> Channel:
        """Raises SandboxError with the holder's reason where it can not set the sandbox up."""
        try:
            process, ours = _start_holder()
        except OSError as error:
            raise SandboxError(f"could not start the sandbox holder: {error}") from error
        channel = cls(process, ours)
        try:
            ours.setblocking(False)
            ours.send(json.dumps(setup).encode())
            async with asyncio.timeout(START_S):
                await channel._readable()
            data, fds, _, _ = socket.recv_fds(ours, MESSAGE_BYTES, 2)
            answer = json.loads(data) if data else {"error": "the sandbox holder died at the start"}
            if "error" in answer:
                raise SandboxError(answer["error"])
            channel.fds = (fds[0], fds[1])
        except TimeoutError as error:
            await channel.close()
            raise SandboxError(f"the sandbox was not ready after {START_S} s") from error
        except BaseException:  # also a cancellation: the holder must not outlive its owner
            await channel.close()
            raise
        channel._loop.add_reader(ours, channel._on_message)
        return channel

    async def run(
        self, request: dict[str, Any], stdin: bytes, output_bytes: int
    ) -> tuple[dict[str, Any], bytes, bytes, bool]:
        """(the holder's answer, stdout, stderr, whether the output limit was passed). One at a time."""
        if self.broken:
            raise SandboxError(self.broken)
        assert self._waiter is None
        self._serial += 1
        waiter = self._waiter = self._loop.create_future()
        with contextlib.ExitStack() as cleanup:
            try:
                streams = _Streams(self._loop, stdin, output_bytes, self.kill)
            except OSError as error:
                self._waiter = None
                raise SandboxError(f"could not open the pipes of a program: {error}") from error
            cleanup.callback(streams.close)
            try:
                message = json.dumps({**request, "op": "exec", "n": self._serial}).encode()
                socket.send_fds(self._sock, [message], streams.theirs)
            except OSError as error:
                self._waiter = None
                raise SandboxError(f"could not send a program to the sandbox holder: {error}") from error
            finally:
                streams.close_theirs()
            try:
                answer = await self._answer(waiter, request["timeout_s"])
            finally:
                self._waiter = None
            await streams.drained()
            return answer, bytes(streams.stdout), bytes(streams.stderr), streams.over

    async def _answer(self, waiter: asyncio.Future[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                answer = await asyncio.shield(waiter)
        except asyncio.CancelledError:
            # Whoever waited has given up: the program dies before they go on, so that nothing of it outlives the task.
            self.kill()
            done, _ = await asyncio.wait({waiter}, timeout=GRACE_S)
            if not done:
                await self.close()
            elif not waiter.cancelled():
                waiter.exception()
            raise
        except TimeoutError as error:
            await self.close()
            self.broken = f"the sandbox holder did not answer {GRACE_S} s after the limit of {timeout_s} s"
            raise SandboxError(self.broken) from error
        if "error" in answer:
            self.broken = f"the sandbox holder failed: {answer['error']}"
            raise SandboxError(self.broken)
        return answer

    def kill(self) -> None:
        """Kills the program that runs now, if any."""
        with contextlib.suppress(OSError):
            self._sock.send(json.dumps({"op": "kill", "n": self._serial}).encode())

    async def close(self) -> None:
        """Kills the holder and everything under it. Idempotent."""
        self.broken = self.broken or "this sandbox is closed"
        self._loop.remove_reader(self._sock)
        self._sock.close()  # a holder that lives tidies up and ends
        for _ in range(1000):  # about a second
            if self._process.poll() is not None:
                break
            await asyncio.sleep(0.001)
        self._close_now()

    def _close_now(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(5)
        for fd in self.fds:
            if fd >= 0:
                os.close(fd)
        self.fds = (-1, -1)

    def _on_message(self) -> None:
        try:
            data = self._sock.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            data, reason = b"", str(error)
        else:
            reason = "it died"
        if not data:
            self._loop.remove_reader(self._sock)
            self.broken = self.broken or f"the sandbox holder is gone: {reason}"
        answer = json.loads(data) if data else {"error": reason, "n": self._serial}
        if self._waiter is not None and not self._waiter.done() and answer.get("n", self._serial) == self._serial:
            self._waiter.set_result(answer)

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._sock, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(self._sock)


def _start_holder() -> tuple[subprocess.Popen[bytes], socket.socket]:
    script = str(Path(__file__).with_name("holder.py"))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, contextlib.ExitStack() as undo:
        undo.callback(ours.close)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env={"LANG": "C.UTF-8"},
            cwd="/",
        )
        undo.pop_all()
        return process, ours


class _Streams:
    """The three pipes of a program: feeds stdin, keeps at most `limit` bytes of output, calls `stop` beyond."""

    def __init__(self, loop: asyncio.AbstractEventLoop, stdin: bytes, limit: int, stop: Callable[[], None]) -> None:
        self._loop, self._limit, self._stop = loop, limit, stop
        self.stdout, self.stderr, self.over = bytearray(), bytearray(), False
        self._left = memoryview(stdin)
        self._finished = loop.create_future()
        self._in = -1
        out_r, out_w = os.pipe2(os.O_CLOEXEC)
        err_r, err_w = os.pipe2(os.O_CLOEXEC)
        if stdin:
            in_r, self._in = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._in, False)
            loop.add_writer(self._in, self._feed)
        else:
            in_r = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.theirs = [in_r, out_w, err_w]
        self._reading = {out_r: self.stdout, err_r: self.stderr}
        for fd in self._reading:
            os.set_blocking(fd, False)
            loop.add_reader(fd, self._read, fd)

    def _feed(self) -> None:
        try:
            self._left = self._left[os.write(self._in, self._left[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # the program has closed its stdin: its right
            self._left = self._left[:0]
        if not self._left:
            self._close_stdin()

    def _read(self, fd: int) -> None:
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(fd)
            os.close(fd)
            del self._reading[fd]
            if not self._reading and not self._finished.done():
                self._finished.set_result(None)
            return
        room = self._limit - len(self.stdout) - len(self.stderr)
        self._reading[fd] += data[:room]
        if len(data) > room and not self.over:
            self.over = True
            self._stop()

    async def drained(self) -> None:
        """Every writer is dead by now, so the end of both pipes is near."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await self._finished

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)

    def _close_stdin(self) -> None:
        if self._in >= 0:
            self._loop.remove_writer(self._in)
            os.close(self._in)
            self._in = -1

    def close(self) -> None:
        self._close_stdin()
        for fd in list(self._reading):
            self._loop.remove_reader(fd)
            os.close(fd)
        self._reading.clear()
