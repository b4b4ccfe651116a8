"""Sandboxes: places where an untrusted program can read, write, reach, exhaust or signal nothing outside.

    async with SandboxPool(SandboxSpec(timeout_s=5)) as pool, pool.sandbox() as sb:
        await sb.write("solve.py", b"print(6 * 7)")
        result = await sb.exec(["python3", "solve.py"])

Holds now: files in /work and /tmp stay from one `exec` to the next, processes do not: each `exec` runs in namespaces
of its own, and whatever it left running is dead when it returns. One program at a time in a sandbox (others wait
their turn); sandboxes are independent. Bounds: `parallel` sandboxes at a time, further `acquire`s wait for a `release`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from posttrain.sandbox import layout, probe
from posttrain.sandbox.channel import Channel
from posttrain.sandbox.errors import SandboxError
from posttrain.sandbox.files import empty_folder, read_file, split_path, write_file
from posttrain.sandbox.spec import ExecResult, SandboxSpec, Usage, check_env, check_timeout

MAX_ARGV_BYTES = 100_000  # as JSON: what one message to the holder takes; a longer program belongs in a file
MAX_ENV_BYTES = 32_000  # likewise
ACQUIRE_S = 600.0  # longest wait for a free sandbox


class Sandbox:
    """One place. Get it from a pool; see `SandboxPool`."""

    def __init__(self, pool: SandboxPool, setup: dict[str, Any], channel: Channel) -> None:
        self._pool, self._setup, self._channel = pool, setup, channel
        self._lock = asyncio.Lock()
        self._released = False

    @property
    def spec(self) -> SandboxSpec:
        return self._pool.spec

    async def exec(
        self,
        argv: Sequence[str] | str,
        timeout_s: float | None = None,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> ExecResult:
        """Runs a program and waits for it; text is run by /bin/sh.

        timeout_s: wall-clock seconds, the spec's by default. env: on top of the spec's. cwd: /work by default.
        SandboxError where the sandbox failed; all that the program did, even to die of a limit, is in the result.
        Cancelling kills the program.
        """
        self._check()
        command = ["/bin/sh", "-c", argv] if isinstance(argv, str) else [str(a) for a in argv]
        if not command or not command[0]:
            raise ValueError(f"sandbox argv is {argv!r}: give a program and its arguments")
        if why := _unusable(command):
            # Text of the policy may stand in a command, so this is a result as from a shell that can not run it.
            return ExecResult(126, "", f"{why}\n", truncated=False, timed_out=False, usage=Usage(0.0, 0.0, 0))
        check_env(env or {})
        spec = self.spec
        variables = {**layout.environment(spec), **(env or {})}
        if len(json.dumps(variables)) > MAX_ENV_BYTES:
            raise ValueError(f"sandbox env is longer than {MAX_ENV_BYTES} bytes: write it to a file")
        request = {
            "argv": command,
            "env": variables,
            "cwd": _folder(cwd),
            "limits": layout.limits(spec),
            "timeout_s": check_timeout("timeout_s", spec.timeout_s if timeout_s is None else timeout_s),
            "memory_bytes": spec.memory_mib * 2**20,
        }
        async with self._lock:
            answer, out, err, over = await self._channel.run(request, stdin, spec.output_bytes)
        return _result(answer, out, err, over)

    async def write(self, path: str, data: bytes | str, mode: int = 0o644) -> None:
        """Makes or replaces a file (folders too); a relative path is below /work. SandboxFileError where it can not
        be."""
        self._check()
        where, names = split_path(path)
        content = data.encode() if isinstance(data, str) else data
        write_file(self._channel.fds[where], names, content, mode, self._setup.get("drop_to"))

    async def read(self, path: str) -> bytes:
        """SandboxFileError where there is no such regular file, a symbolic link stands in the way, or it is too
        large."""
        self._check()
        where, names = split_path(path)
        return read_file(self._channel.fds[where], names, self.spec.files_mib * 2**20)

    async def put(self, source: Path | str, path: str) -> None:
        """Copies a file of the host into the sandbox, keeping whether it is executable."""
        data = await asyncio.to_thread(Path(source).read_bytes)
        await self.write(path, data, 0o755 if os.access(source, os.X_OK) else 0o644)

    async def get(self, path: str, target: Path | str) -> None:
        """Copies a file of the sandbox to the host."""
        await asyncio.to_thread(Path(target).write_bytes, await self.read(path))

    async def reset(self) -> None:
        """Kills what runs and empties /work and /tmp; mends a sandbox whose holder died."""
        self._check()
        self._channel.kill()
        async with self._lock:
            if not self._emptied():
                await self._channel.close()
                self._channel = await Channel.start(self._setup)

    async def release(self) -> None:
        """Gives the place back: kills what still runs, and its files are gone. Idempotent."""
        if self._released:
            return
        self._released = True
        keep = False
        try:
            self._channel.kill()
            async with self._lock:
                keep = self._pool._open and self._emptied()
                if not keep:
                    await self._channel.close()
        finally:
            self._pool._take_back(self, self._channel if keep else None)

    def _emptied(self) -> bool:
        return self._channel.broken is None and all(empty_folder(fd) for fd in self._channel.fds)

    def _check(self) -> None:
        if self._released:
            raise SandboxError("this sandbox was released: acquire a new one")


class SandboxPool:
    """Up to `parallel` sandboxes of one spec. SandboxUnavailable from `acquire` where this machine can not isolate
    them."""

    def __init__(self, spec: SandboxSpec | None = None, parallel: int = 2) -> None:
        if not 1 <= parallel <= 4096:
            raise ValueError(f"sandbox pool parallel is {parallel!r}: give a whole number from 1 to 4096")
        self.spec = spec or SandboxSpec()
        if self.spec.driver == "process" and not self.spec.allow_unsafe:
            raise ValueError('sandbox driver "process" does not isolate: set allow_unsafe, for development only')
        self._free = asyncio.Semaphore(parallel)
        self._alive: set[Sandbox] = set()
        self._idle: list[tuple[dict[str, Any], Channel]] = []  # empty, ready for the next `acquire`
        self._open = True

    async def acquire(self) -> Sandbox:
        """An empty sandbox; waits for one of `parallel` to be free, at most `ACQUIRE_S`."""
        self._check_open()
        try:
            async with asyncio.timeout(ACQUIRE_S):
                await self._free.acquire()
        except TimeoutError as error:
            raise SandboxError(
                f"no sandbox was free within {ACQUIRE_S} s: raise parallel, or release them sooner"
            ) from error
        try:
            self._check_open()
            sandbox = Sandbox(self, *await self._place())
        except BaseException:  # also a cancellation: the place must become free again
            self._free.release()
            raise
        self._alive.add(sandbox)
        if not self._open:  # closed meanwhile
            await sandbox.release()
        self._check_open()
        return sandbox

    @contextlib.asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """`async with pool.sandbox() as sb`: acquired, and released however the block ends."""
        sandbox = await self.acquire()
        try:
            yield sandbox
        finally:
            await sandbox.release()

    async def close(self) -> None:
        """Releases every sandbox. Idempotent."""
        self._open = False
        for sandbox in list(self._alive):
            await sandbox.release()
        while self._idle:
            await self._idle.pop()[1].close()

    async def __aenter__(self) -> SandboxPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if not self._open:
            raise SandboxError("this sandbox pool is closed")

    async def _place(self) -> tuple[dict[str, Any], Channel]:
        while self._idle:
            setup, channel = self._idle.pop()
            if channel.broken is None:
                return setup, channel
            await channel.close()
        setup = self._setup()
        return setup, await Channel.start(setup)

    def _setup(self) -> dict[str, Any]:
        if self.spec.driver == "process":
            warnings.warn('sandbox driver "process" isolates nothing: run no code that you do not trust', stacklevel=3)
            return {"driver": "process"}
        return layout.bwrap_setup(self.spec, probe.working_bwrap())

    def _take_back(self, sandbox: Sandbox, channel: Channel | None) -> None:
        if channel is not None:
            self._idle.append((sandbox._setup, channel))
        self._alive.discard(sandbox)
        self._free.release()


def _folder(cwd: str | None) -> str:
    if "\0" in (cwd or ""):
        raise ValueError(f"sandbox cwd is {cwd!r}: give a path without NUL")
    return str(PurePosixPath("/work", cwd or ""))


def _unusable(command: list[str]) -> str | None:
    """Why the kernel would not take these arguments."""
    if any("\0" in a for a in command):
        return "a command can not hold NUL"
    try:
        os.fsencode("".join(command))
    except UnicodeEncodeError:
        return "a command can not hold half of a surrogate pair"
    if len(json.dumps(command)) > MAX_ARGV_BYTES:
        return f"a command can not be longer than {MAX_ARGV_BYTES} bytes: write it to a file and run that"
    return None


def _result(answer: dict[str, Any], out: bytes, err: bytes, over: bool) -> ExecResult:
    why, status = answer["why"], answer["exit"]
    stderr = err.decode("utf-8", "replace")
    if why == "gone":
        raise SandboxError("the sandbox was closed while a program ran")
    if status is None and why is None:
        # bubblewrap gave up. A missing program or folder is the caller's or the policy's doing; anything else is ours.
        if not stderr.startswith(("bwrap: execvp ", "bwrap: Can't chdir to ")):
            raise SandboxError(f"bubblewrap could not start the program: {stderr.strip()[:500] or 'no reason given'}")
        status, stderr = 127, stderr.removeprefix("bwrap: ")
    usage = Usage(round(answer["wall_s"], 6), round(answer["cpu_s"], 6), answer["rss_kib"])
    return ExecResult(
        exit=137 if status is None or why else status,
        stdout=out.decode("utf-8", "replace"),
        stderr=stderr,
        truncated=over,
        timed_out=why == "time",
        usage=usage,
        out_of_memory=why == "memory",
    )
