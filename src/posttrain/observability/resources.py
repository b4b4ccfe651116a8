"""What this process used, and what it may use: memory, time, disk.

Memory limits are those of the control group where there is one (a container, a batch job): the machine's own figure
would promise memory that the kernel kills for. Bounds: nothing is polled; each function reads a few files of /proc
when called. Without /proc (macOS) peaks come from getrusage and limits from the machine.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_KIB = 1024
_M_ARENA_MAX = -8  # of mallopt(3)
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else _KIB  # unit of ru_maxrss


def peak_rss_bytes() -> int:
    """Highest resident memory that this process has had."""
    # ru_maxrss is inherited through fork and exec: a small program started by a large one would report the large one.
    return _status_bytes(PROC / "self", "VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES


def peak_rss_of_children_bytes() -> int:
    """Sum of the highest resident memory of each descendant that is alive.

    Those that ended are left out: what the kernel keeps of them (RUSAGE_CHILDREN) counts a child that was started by a
    process of gigabytes with these gigabytes, though it used none of them.
    """
    return sum(_status_bytes(PROC / str(pid), "VmHWM") for pid in _descendants(os.getpid()))


def memory_limit_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that this process may use in all: the machine's, or less where a control group (v1 or v2) says so."""
    limits = [limit for limit, _ in _group_memory(proc, cgroups)]
    return min([_machine_bytes(proc, "MemTotal"), *limits])


def available_memory_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that can be had now without swapping or being killed: cached files count as available."""
    rooms = [max(0, limit - used) for limit, used in _group_memory(proc, cgroups)]
    return min([_machine_bytes(proc, "MemAvailable"), *rooms])


def disk_free_bytes(path: Path) -> int:
    """Bytes this user may still write on the disk that holds `path`, or would hold it."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def keep_one_arena() -> None:
    """Lets all threads allocate from one heap (glibc): each other heap would keep its own peak for ever."""
    with suppress(AttributeError, OSError):  # another C library: it has no such setting
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Gives what is free in the heap back to the system (glibc). Takes milliseconds: for once a step, not more
    often."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


class Stopwatch:
    """Seconds since it was made: of the clock, and of the processors (this process and the children it waited for)."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), _cpu_s()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._wall

    @property
    def cpu_s(self) -> float:
        return _cpu_s() - self._cpu


class Phases:
    """Seconds by phase: `with phases("generate"): ...`. A phase entered again adds up.

    Each entry counts its own whole time: phases inside one another, or at the same time, count it in each.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - start)

    def add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    @property
    def seconds(self) -> dict[str, float]:
        """A copy, in the order in which the phases first ended."""
        return dict(self._seconds)

    def take(self) -> dict[str, float]:
        """The seconds so far; counting starts again at zero (for the row of one step)."""
        taken, self._seconds = self._seconds, {}
        return taken


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _status_bytes(process: Path, name: str) -> int:
    """A figure of /proc/PID/status in bytes; 0 where there is none (no /proc, or the process has ended)."""
    return _figures(process / "status").get(name, 0) * _KIB


def _machine_bytes(proc: Path, name: str) -> int:
    found = _figures(proc / "meminfo").get(name)
    return found * _KIB if found is not None else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _figures(path: Path) -> dict[str, int]:
    """`Name:   123 kB` lines of a file of /proc; {} where it can not be read."""
    found = {}
    for line in _text(path).splitlines():
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0])
    return found


def _descendants(pid: int) -> Iterator[int]:
    """Living children of `pid`, their children, and so on."""
    children: dict[int, list[int]] = {}
    for entry in PROC.glob("[0-9]*/stat"):
        # `pid (name) state ppid ...`, and the name may hold spaces and brackets.
        _, _, rest = _text(entry).rpartition(")")
        if rest:
            children.setdefault(int(rest.split()[1]), []).append(int(entry.parent.name))
    waiting = [pid]
    while waiting:
        found = children.pop(waiting.pop(), [])
        yield from found
        waiting.extend(found)


def _group_memory(proc: Path, cgroups: Path) -> Iterator[tuple[int, int]]:
    """(limit, used without what can be dropped) in bytes of every control group that holds this process."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, root = ("memory.max", "memory.current", "inactive_file"), cgroups
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            root = cgroups / "memory"
        else:
            continue
        inside = path.strip("/")
        # A limit may stand at any group above; in a container the path may be the host's, and only the root is seen.
        for folder in (root / inside, *(root / inside).parents):
            if not folder.is_relative_to(root):
                break
            limit = _text(folder / names[0]).strip()
            if limit.isdecimal():  # "max" in v2 is none
                used = int(_text(folder / names[1]).strip() or 0)
                yield int(limit), max(0, used - _statistic(folder / "memory.stat", names[2]))


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # not there, not ours to read, or its process has just ended
        return ""
