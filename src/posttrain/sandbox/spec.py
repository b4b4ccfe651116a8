"""What a sandbox allows, and what a program in it did. Pure data.

Bounds: every limit is positive and finite; `SandboxSpec` raises `ValueError` naming the field otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Driver = Literal["bwrap", "process"]


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Limits and surroundings of every program that runs in a sandbox.

    cpu_s: CPU seconds of one process. timeout_s: wall-clock seconds of one `exec`. memory_mib: address space of one
        process, and (sampled) resident memory of all of them together. pids: processes and threads at a time, the
        sandbox's own two included. output_bytes: stdout and stderr of one `exec` together. file_mib: size of one
        file. open_files: of one process. files_mib, files_count: size and number of all files in /work and /tmp (they
        live in memory).
    env: variables of every program, on top of PATH, HOME, LANG and TMPDIR. network: "none" (loopback of its own only).
    driver: "bwrap" isolates; "process" does not, needs `allow_unsafe` and is for development only.
    """

    cpu_s: int = 10
    memory_mib: int = 512
    pids: int = 64
    timeout_s: float = 10.0
    output_bytes: int = 256 * 1024
    file_mib: int = 64
    open_files: int = 256
    files_mib: int = 128
    files_count: int = 16_384
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    network: str = "none"
    driver: Driver = "bwrap"
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        # pids: the init of the sandbox and the program; memory: less than this does not even load a shell.
        least = {"pids": 3, "memory_mib": 16, "open_files": 16}
        for name in (
            "cpu_s",
            "memory_mib",
            "pids",
            "output_bytes",
            "file_mib",
            "open_files",
            "files_mib",
            "files_count",
        ):
            value, floor = getattr(self, name), least.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int) or not floor <= value <= 2**40:
                raise ValueError(f"sandbox {name} is {value!r}: give a whole number of at least {floor}")
        check_timeout("timeout_s", self.timeout_s)
        if self.network != "none":
            raise ValueError(f'sandbox network is {self.network!r}: only "none" is supported')
        if self.driver not in ("bwrap", "process"):
            raise ValueError(f'sandbox driver is {self.driver!r}: give "bwrap" or "process"')
        check_env(self.env)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one `exec` used. max_rss_kib: of its largest process; cpu_s: of every process that was waited for."""

    wall_s: float
    cpu_s: float
    max_rss_kib: int


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What the program did. exit: its status, 128 + N where signal N ended it, 127 where it does not exist.

    truncated: it wrote more than `output_bytes` and was killed. timed_out: it ran past `timeout_s` and was killed.
    out_of_memory: its processes together passed `memory_mib` and were killed (one process that passes it alone sees a
    failed allocation). stdout, stderr: UTF-8, undecodable bytes replaced.
    """

    exit: int
    stdout: str
    stderr: str
    truncated: bool
    timed_out: bool
    usage: Usage
    out_of_memory: bool = False

    @property
    def ok(self) -> bool:
        return self.exit == 0 and not (self.truncated or self.timed_out or self.out_of_memory)


def check_timeout(name: str, value: float) -> float:
    """Wall-clock seconds as they were given; ValueError naming the field."""
    if not math.isfinite(value) or not 0 < value <= 86_400:
        raise ValueError(f"sandbox {name} is {value!r}: give seconds, above 0 and at most 86400")
    return float(value)


def check_env(env: Mapping[str, str]) -> None:
    """ValueError for what can not be an environment."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise ValueError(f"sandbox env {name!r}={value!r}: text without NUL, names without '='")
