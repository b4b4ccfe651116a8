"""The small process that owns one sandbox. A script of its own (`python -I -S holder.py FD`), standard library only.

What for: the trainer holds gigabytes and threads and must not fork; this process is small, so it may. It gives up
root, makes the file system of one sandbox in a private mount namespace (a size- and inode-limited tmpfs: gone with
the process, whatever kills it), and runs one program at a time in fresh namespaces through bubblewrap. It keeps the
time and memory limits itself, so that a busy trainer can not delay them.

Talks JSON over the SOCK_SEQPACKET socket FD. First message in: the setup. Out: `{"ready": true}` with the descriptors
of /work and /tmp, or `{"error": ...}`. Then `{"op": "exec", "n": ...}` with stdin, stdout and stderr, and `{"op":
"kill", "n": ...}`; each exec is answered once, after every process of it is dead. Ends when the socket closes or its
parent dies.

The seccomp filter reaches bubblewrap through a pipe that is filled only after the limits are set: where this process
dies before that, bubblewrap reads an empty filter and refuses to start the program.
"""

# pathlib would double the time that this process takes to start.
# ruff: noqa: PTH101, PTH102, PTH123, PTH208
from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
PR_SET_CHILD_SUBREAPER = 36
STAGE = "/sys"  # exists on every Linux, and nothing here needs what it hides
MESSAGE_BYTES = 512 * 1024
PIPE_BYTES = 60_000  # a pipe takes 64 KiB before a write waits
ORPHAN_CHECK_S = 0.5
MEMORY_CHECK_S = 0.02
DYING_S = 5.0  # how long dead namespaces may take to be torn down
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: Any) -> None:
    if getattr(_libc, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    _call(
        "mount", source.encode(), target.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data and data.encode()
    )


class Bwrap:
    """Namespaces: see the module's docstring."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        binary = _read_all(setup["bwrap"])
        libraries = {name: _read_all(path) for name, path in setup["libraries"].items()}
        uid = setup["drop_to"]
        if uid:
            _call("unshare", CLONE_NEWNS)
        else:
            uid, gid = os.getuid(), os.getgid()
            _call("unshare", CLONE_NEWNS | CLONE_NEWUSER)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        prefix = setup["python_prefix"]
        hold = os.open(prefix, os.O_PATH) if prefix else -1
        _mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "size=16m,mode=755")
        for folder in ("bwrap", "etc", "files", "python"):
            os.mkdir(f"{STAGE}/{folder}", 0o755)
        if prefix:
            _mount(f"/proc/self/fd/{hold}", f"{STAGE}/python", None, MS_BIND | MS_REC)
            os.close(hold)
        for name, data in {"bwrap": binary, **libraries}.items():
            _write_file(f"{STAGE}/bwrap/{name}", data, 0o755)
        if setup["alternatives"]:
            os.mkdir(f"{STAGE}/etc/alternatives", 0o755)
        for name, text in setup["etc"].items():
            _write_file(f"{STAGE}/etc/{name}", text.encode(), 0o644)
        size = f"size={setup['files_mib']}m,nr_inodes={setup['files_count'] + 3},mode=755"
        _mount("tmpfs", f"{STAGE}/files", "tmpfs", MS_NOSUID | MS_NODEV, size)
        self.fds = []
        for name in ("work", "tmp"):
            os.mkdir(f"{STAGE}/files/{name}", 0o700)
            os.chown(f"{STAGE}/files/{name}", uid, uid if setup["drop_to"] else -1)
            self.fds.append(os.open(f"{STAGE}/files/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if setup["drop_to"]:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)

    def run(self, request: dict[str, Any], stdio: list[int], sock: socket.socket) -> dict[str, Any]:
        start = time.monotonic()
        args_r, args_w = os.pipe()
        status_r, status_w = os.pipe()
        filter_r, filter_w = os.pipe()
        try:
            args = [
                *self.setup["args"],
                "--chdir",
                request["cwd"],
                "--json-status-fd",
                str(status_w),
                "--seccomp",
                str(filter_r),
            ]
            for name, value in request["env"].items():
                args += ["--setenv", name, value]
            os.write(args_w, _packed(args))
            os.close(args_w)
            # Arguments come through a pipe, so that the program can not read our paths in /proc/1/cmdline.
            child = subprocess.Popen(
                [f"{STAGE}/bwrap/bwrap", "--args", str(args_r), "--", *request["argv"]],
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=stdio[2],
                pass_fds=(args_r, status_w, filter_r),
                cwd="/",
                env={"LD_LIBRARY_PATH": f"{STAGE}/bwrap"},
            )
        finally:
            for fd in (args_r, status_w, filter_r, *stdio):
                os.close(fd)
        child.returncode = 0  # it is waited for in _watch; Popen must not
        init, init_fd = self._release(status_r, filter_w, request["limits"])
        victim = init_fd if init else os.pidfd_open(child.pid)
        rss = (lambda: _resident_bytes(f"/proc/{init}/root/proc")) if init else (lambda: 0)
        outcome = _watch(child.pid, lambda: _kill(victim), rss, request, sock, start)
        _kill(victim)
        if init:
            _wait_for(victim)
            _reap(
                init, outcome
            )  # an orphan of bubblewrap is ours (subreaper), with the usage of all that it waited for
        os.close(victim)
        ends = [json.loads(line) for line in _read_rest(status_r).splitlines() if b"exit-code" in line]
        outcome.update(started=bool(init), exit=ends[0]["exit-code"] if ends else None)
        return outcome

    def _release(self, status_r: int, filter_w: int, limits: dict[str, int]) -> tuple[int, int]:
        """Waits for the init of the sandbox, limits it and lets it go. (pid, pidfd); (0, -1) where bubblewrap gave up
        before."""
        pid, pidfd = 0, -1
        try:
            poll = select.poll()
            poll.register(status_r, select.POLLIN)
            text = b""
            while b"\n" not in text:
                chunk = os.read(status_r, 4096) if poll.poll(DYING_S * 1000) else b""
                if not chunk:
                    return 0, -1
                text += chunk
            pid = int(json.loads(text.split(b"\n")[0])["child-pid"])
            pidfd = os.pidfd_open(pid)
            for name, value in limits.items():
                resource.prlimit(pid, getattr(resource, name), (value, value))
            with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as file:
                file.write("1000")  # where the machine runs out of memory, the sandbox goes first
            os.write(filter_w, base64.b64decode(self.setup["seccomp"]))
            return pid, pidfd
        except OSError:  # it died under our hands; bubblewrap has said why on stderr
            if pidfd >= 0:
                os.close(pidfd)
            return 0, -1
        finally:
            os.close(filter_w)

    def close(self) -> None:
        pass  # mounts go with the process


class Process:
    """No isolation: limits, a folder, and the death of every descendant. For development."""

    def __init__(self, setup: dict[str, Any]) -> None:
        import tempfile  # slow to import, and the driver that isolates does not need it

        self.root = tempfile.mkdtemp(prefix="posttrain-unsafe-")
        self.fds = []
        for name in ("work", "tmp"):
            os.mkdir(f"{self.root}/{name}", 0o700)
            self.fds.append(os.open(f"{self.root}/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def run(self, request: dict[str, Any], stdio: list[int], sock: socket.socket) -> dict[str, Any]:
        start = time.monotonic()
        # RLIMIT_NPROC would count every process of this user here, not those of the program.
        limits = [
            (getattr(resource, name), value) for name, value in request["limits"].items() if name != "RLIMIT_NPROC"
        ]

        def before() -> None:
            for limit, value in limits:
                resource.setrlimit(limit, (value, value))

        folder = self.root + request["cwd"] if request["cwd"].startswith(("/work", "/tmp")) else request["cwd"]
        env = {k: v.replace("/work", self.root + "/work") if k == "HOME" else v for k, v in request["env"].items()}
        try:
            child = subprocess.Popen(
                request["argv"],
                stdin=stdio[0],
                stdout=stdio[1],
                stderr=stdio[2],
                cwd=folder,
                start_new_session=True,
                env={**env, "TMPDIR": f"{self.root}/tmp"},
                preexec_fn=before,
            )
        except OSError as error:
            os.write(stdio[2], f"{error}\n".encode())
            return {"exit": 127, "started": True, "cpu_s": 0.0, "rss_kib": 0, "wall_s": 0.0, "why": None}
        finally:
            for fd in stdio:
                os.close(fd)
        child.returncode = 0
        outcome = _watch(child.pid, _kill_descendants, lambda: 0, request, sock, start)
        _kill_descendants()
        status = outcome.pop("status")
        outcome.update(
            started=True, exit=os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        )
        return outcome

    def close(self) -> None:
        import shutil

        shutil.rmtree(self.root, ignore_errors=True)


def _watch(
    pid: int,
    stop: Callable[[], None],
    rss: Callable[[], int],
    request: dict[str, Any],
    sock: socket.socket,
    start: float,
) -> dict[str, Any]:
    """Waits for process `pid`, calling `stop` where a limit passes, the caller says so, or the caller is gone."""
    why: str | None = None
    deadline = start + request["timeout_s"]
    parent = os.getppid()
    pidfd = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(sock, select.POLLIN)
    try:
        while True:
            wait_s = min(MEMORY_CHECK_S if why is None else DYING_S, max(0.0, deadline - time.monotonic()))
            ready = dict(poll.poll(wait_s * 1000 + 1))
            if pidfd in ready:
                break
            if why is not None and time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)  # bubblewrap itself does not end: the namespace goes with it
                deadline += DYING_S
                continue
            if sock.fileno() in ready:
                message = _receive(sock)
                gone = message is None
                cause = "gone" if gone else "killed" if message and message.get("n") == request["n"] else None
                if gone:
                    poll.unregister(sock)
            elif os.getppid() != parent:
                cause = "gone"
            elif time.monotonic() >= deadline:
                cause = "time"
            else:
                cause = "memory" if rss() > request["memory_bytes"] else None
            if cause and why is None:
                why, deadline = cause, time.monotonic() + DYING_S
                stop()
    finally:
        os.close(pidfd)
    outcome: dict[str, Any] = {"why": why, "cpu_s": 0.0, "rss_kib": 0, "wall_s": time.monotonic() - start}
    outcome["status"] = _reap(pid, outcome)
    return outcome


def _reap(pid: int, outcome: dict[str, Any]) -> int:
    try:
        _, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:
        return 0  # its own parent has waited for it, and carries its usage
    outcome["cpu_s"] += usage.ru_utime + usage.ru_stime
    outcome["rss_kib"] = max(outcome["rss_kib"], usage.ru_maxrss)
    return status


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _wait_for(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if not poll.poll(DYING_S * 1000):
        raise SystemExit(f"a killed sandbox is still alive after {DYING_S} s")


def _kill_descendants() -> None:
    """Kills and reaps what is left of a program; orphans of it are children of ours (subreaper)."""
    me = os.getpid()
    for _ in range(1000):
        todo, found = [me], []
        while todo:
            with contextlib.suppress(OSError), open(f"/proc/{todo[-1]}/task/{todo.pop()}/children") as file:
                children = [int(c) for c in file.read().split()]
                todo += children
                found += children
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if all(_is_zombie(pid) for pid in found):
            return
        time.sleep(0.001)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _resident_bytes(proc: str) -> int:
    """Resident memory of all processes that a /proc shows (shared pages count for each)."""
    pages = 0
    try:
        for name in os.listdir(proc):
            if name.isdigit() and name != "1":
                with contextlib.suppress(OSError, IndexError), open(f"{proc}/{name}/statm") as file:
                    pages += int(file.read().split()[1])
    except OSError:
        pass  # it has just ended
    return pages * resource.getpagesize()


def _packed(args: list[str]) -> bytes:
    blob = "".join(a + "\0" for a in args).encode("utf-8", "surrogateescape")
    if len(blob) > PIPE_BYTES:
        raise ValueError("the environment is larger than 60 kB: write it to a file")
    return blob


def _read_all(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _read_rest(fd: int) -> bytes:
    """Reads what a pipe whose writers are dead still holds, and closes it."""
    with open(fd, "rb") as file:
        return file.read()


def _write_file(path: str, data: bytes, mode: int) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def _receive(sock: socket.socket) -> dict[str, Any] | None:
    """One message without descriptors, None where the other side is gone."""
    try:
        data = sock.recv(MESSAGE_BYTES)
    except OSError:
        return None
    return json.loads(data) if data else None


def _serve(sock: socket.socket, driver: Bwrap | Process) -> None:
    parent = os.getppid()
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while os.getppid() == parent:
        if not poll.poll(ORPHAN_CHECK_S * 1000):
            continue
        data, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 3)
        if not data:
            return
        request = json.loads(data)
        if request["op"] != "exec":
            continue  # a kill for an exec that has ended
        try:
            answer = driver.run(request, fds, sock)
        except (OSError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sock.send(json.dumps({**answer, "n": request["n"]}).encode())


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    os.umask(0o022)
    setup = _receive(sock)
    if setup is None:
        return
    driver: Bwrap | Process | None = None
    try:
        _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        driver = Bwrap(setup) if setup["driver"] == "bwrap" else Process(setup)
        socket.send_fds(sock, [b'{"ready": true}'], driver.fds)
        for fd in driver.fds:
            os.close(fd)
        _serve(sock, driver)
    except BrokenPipeError:
        pass  # the pool is gone
    except Exception as error:  # noqa: BLE001 - the boundary of the process: our caller turns it into a SandboxError
        with contextlib.suppress(OSError):
            sock.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
    finally:
        if driver is not None:
            driver.close()


if __name__ == "__main__":
    main()
