"""What a user of a sandbox relies on: results, files, reset, waiting, cancelling, closing."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.sandbox import Sandbox, SandboxError, SandboxPool, SandboxSpec, probe
from posttrain.sandbox.files import split_path


async def test_a_program_runs_and_its_files_stay(sb: Sandbox) -> None:
    await sb.write("pkg/solve.py", "import sys; print(int(sys.stdin.read()) * 2); open('/work/out', 'w').write('x')")
    result = await sb.exec(["python3", "pkg/solve.py"], stdin=b"21")
    assert result.ok and (result.exit, result.stdout, result.stderr) == (0, "42\n", "")
    assert await sb.read("out") == b"x" and await sb.read("/work/out") == b"x"
    assert (await sb.exec("cat out; echo y >> pkg/solve.py; rm out; ls pkg", cwd="/work")).stdout == "xsolve.py\n"
    await sb.exec("echo kept > /tmp/t")
    assert await sb.read("/tmp/t") == b"kept\n"


async def test_the_result_tells_what_the_program_did(sb: Sandbox) -> None:
    assert (await sb.exec("echo out; echo err >&2; exit 3")).exit == 3
    assert (await sb.exec(["no-such-program"])).exit == 127
    assert (await sb.exec("ls", cwd="no/such/folder")).exit == 127
    assert (await sb.exec("kill -SEGV $$")).exit == 139
    assert (await sb.exec(["printf", "\\377a"])).stdout == "\ufffda"
    result = await sb.exec(["python3", "-c", "x = b'x' * (60 << 20); sum(range(3_000_000))"])
    assert result.usage.max_rss_kib > 60 << 10 and 0.02 < result.usage.cpu_s <= result.usage.wall_s + 0.1


async def test_a_program_can_not_fake_a_fault_of_the_sandbox(sb: Sandbox) -> None:
    result = await sb.exec("echo 'bwrap: setting up failed' >&2; exit 1")
    assert (result.exit, result.stderr) == (1, "bwrap: setting up failed\n")


@pytest.mark.parametrize("text", ["echo a\0b", "echo \ud800", "#" * 200_000, "\x01" * 50_000])
async def test_a_command_that_no_kernel_takes_is_the_programs_fault(sb: Sandbox, text: str) -> None:
    result = await sb.exec(text)
    assert result.exit == 126 and "a command can not" in result.stderr
    assert (await sb.exec(["echo", "x" * 90_000])).truncated  # the longest that fits


async def test_variables_come_from_the_spec_and_the_call(isolated: None) -> None:
    async with SandboxPool(SandboxSpec(env={"A": "1", "B": "2"})) as pool, pool.sandbox() as sb:
        assert (await sb.exec("echo $A $B $HOME", env={"B": "3"})).stdout == "1 3 /work\n"


async def test_files_go_in_and_out(sb: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho ran\n")
    script.chmod(0o755)
    await sb.put(script, "bin/script")
    assert (await sb.exec(["./bin/script"])).stdout == "ran\n"
    await sb.exec("echo more >> bin/script; echo new > bin/other")  # what was put belongs to the program
    await sb.get("bin/other", tmp_path / "other")
    assert (tmp_path / "other").read_text() == "new\n"


TRACES = {
    "files": "touch /work/a /tmp/b /work/.c; ln -s / l; mkfifo p",
    "locked folders": "mkdir -p d/e; touch d/e/f; chmod 0 d/e; chmod 0 d",
    "deep folders": "mkdir -p $(printf 'd/%.0s' $(seq 400))",
    "locked root": "chmod 0 /work /tmp",
    "many files": "for i in $(seq 450); do : > $i; done",
    "nothing": "true",
}


@pytest.mark.parametrize("command", TRACES.values(), ids=TRACES.keys())
async def test_neither_reset_nor_the_next_user_finds_a_trace(pool: SandboxPool, command: str) -> None:
    for end in ("reset", "release"):
        sb = await pool.acquire()
        assert (await sb.exec(command)).ok
        if end == "reset":
            await sb.reset()
        else:
            await sb.release()
            sb = await pool.acquire()
        state = await sb.exec("ls -A /work /tmp; stat -c %a /work /tmp; df -i /work | tail -1")
        assert state.stdout.startswith("/tmp:\n\n/work:\n700\n700\n")
        assert state.stdout.split()[6] == "3"  # inodes in use: the root and the two folders
        await sb.release()


@pytest.mark.parametrize("end", ["reset", "release"])
async def test_reset_and_release_kill_what_still_runs(pool: SandboxPool, end: str) -> None:
    sb = await pool.acquire()
    run = asyncio.create_task(sb.exec("sleep 100", timeout_s=100))
    await asyncio.sleep(0.2)
    await asyncio.wait_for(getattr(sb, end)(), 5)
    assert (await run).exit == 137


ORDINARY = """
import multiprocessing, subprocess, socket, threading
with multiprocessing.Pool(2) as workers:
    print(workers.map(abs, [-1, 2]))
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hi")).start()
print(socket.create_connection(server.getsockname()).recv(9))
print(subprocess.check_output("seq 9 | sort -r | awk '$1 > 7' | sed s/9/nine/ | tr '\\n' ' '", shell=True))
"""


async def test_ordinary_programs_work(sb: Sandbox) -> None:
    result = await sb.exec(["python3", "-c", ORDINARY])
    assert result.stdout == "[1, 2]\nb'hi'\nb'nine 8 '\n", result.stderr


async def test_waiting_for_a_place_ends_with_a_release(isolated: None) -> None:
    async with SandboxPool(parallel=1) as pool:
        first = await pool.acquire()
        second = asyncio.create_task(pool.acquire())
        done, _ = await asyncio.wait({second}, timeout=0.2)
        assert not done
        await first.release()
        await first.release()
        assert (await (await second).exec("echo in")).stdout == "in\n"
        with pytest.raises(SandboxError, match="released"):
            await first.exec("true")
    with pytest.raises(SandboxError, match="closed"):
        await pool.acquire()


async def test_programs_in_one_sandbox_take_turns(sb: Sandbox) -> None:
    results = await asyncio.gather(*(sb.exec(f"echo {i} >> log; sleep 0.05; wc -l < log") for i in range(4)))
    assert [r.stdout.strip() for r in results] == ["1", "2", "3", "4"]


async def test_cancelling_kills_the_program(sb: Sandbox) -> None:
    run = asyncio.create_task(sb.exec("echo x > started; sleep 1; echo x > finished; sleep 100", timeout_s=60))
    await asyncio.sleep(0.3)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await asyncio.sleep(1.0)
    assert (await sb.exec("ls")).stdout == "started\n"


async def test_a_killed_holder_is_our_fault_and_the_pool_goes_on(pool: SandboxPool) -> None:
    sb = await pool.acquire()
    run = asyncio.create_task(sb.exec("sleep 100"))
    await asyncio.sleep(0.2)
    sb._channel._process.kill()
    with pytest.raises(SandboxError, match="holder"):
        await run
    with pytest.raises(SandboxError):
        await sb.exec("true")
    await sb.reset()
    assert (await sb.exec("echo back")).stdout == "back\n"
    await sb.release()


def children() -> list[str]:
    pids = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in pids]


async def test_a_hundred_cycles_leak_nothing(pool: SandboxPool) -> None:
    def state() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/self/task/{os.getpid()}"))  # noqa: PTH208

    async with pool.sandbox() as sb:
        await sb.exec("true")
    before = state()
    async with pool.sandbox() as sb:
        for i in range(60):
            await sb.exec("true")
            await sb.write("f", b"x")
            assert await sb.read("f") == b"x"
            if i % 20 == 0:
                await sb.exec("sleep 10", timeout_s=0.01)
    for i in range(40):
        async with pool.sandbox() as sb:
            await sb.exec("true" if i % 10 else "mkdir -p $(printf 'd/%.0s' $(seq 60))")
    assert state() == before
    assert len([args for args in children() if "holder" in args]) == 1  # the one that waits for the next acquire
    await pool.close()
    assert not [args for args in children() if "holder" in args]


async def test_a_large_caller_is_not_copied(sb: Sandbox) -> None:
    ballast = bytearray(os.urandom(1 << 20) * 500)
    times = []
    for _ in range(9):
        start = time.monotonic()
        await sb.exec(["true"])
        times.append(time.monotonic() - start)
    assert len(ballast) and sorted(times)[4] < 0.1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 500 << 10


BAD_SPECS: list[dict[str, Any]] = [
    {"memory_mib": -1},
    {"pids": 0},
    {"pids": True},
    {"timeout_s": 0},
    {"timeout_s": float("nan")},
    {"cpu_s": 1.5},
    {"output_bytes": -5},
    {"network": "open"},
    {"driver": "docker"},
    {"env": {"A=B": "c"}},
    {"env": {"A": "\0"}},
    {"file_mib": 0},
    {"files_count": -1},
]


@pytest.mark.parametrize("bad", BAD_SPECS, ids=str)
def test_a_bad_spec_is_one_line_that_names_the_field(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"sandbox {next(iter(bad))}") as caught:
        SandboxSpec(**bad)
    assert "\n" not in str(caught.value)


async def test_bad_calls_are_errors_of_the_caller(sb: Sandbox) -> None:
    for call in (
        sb.exec([]),
        sb.exec("true", timeout_s=-1),
        sb.exec("true", env={"": "x"}),
        sb.exec("true", env={"A": "x" * 99_999}),
    ):
        with pytest.raises(ValueError, match="sandbox"):
            await call
    for path in ("../x", "/etc/passwd", "/", "a/../../b", "a\0"):
        with pytest.raises(ValueError, match="sandbox path"):
            await sb.read(path)


@given(st.text())
def test_no_path_leads_out_of_the_two_folders(path: str) -> None:
    try:
        where, names = split_path(path)
    except ValueError:
        return
    assert where in (0, 1) and not {"..", "/", ""} & set(names) and not any("/" in n or "\0" in n for n in names)


def test_the_probe_says_what_holds() -> None:
    found = probe()
    assert found.tier in ("namespaces", "none")
    assert (found.bwrap_path is not None) == (found.tier == "namespaces")
    assert found.reasons if found.tier == "namespaces" else found.problems


async def test_the_driver_without_isolation_wants_to_be_asked_for() -> None:
    with pytest.raises(ValueError, match="allow_unsafe"):
        SandboxPool(SandboxSpec(driver="process"))
    pool = SandboxPool(SandboxSpec(driver="process", allow_unsafe=True, timeout_s=5, cpu_s=2))
    with pytest.warns(UserWarning, match="isolates nothing"):
        sb = await pool.acquire()
    await sb.write("a/f", b"hello")
    result = await sb.exec("cat a/f; pwd; ulimit -t")
    folder = result.stdout.splitlines()[0].removeprefix("hello")
    assert result.ok and result.stdout.endswith("\n2\n") and os.access(folder, os.W_OK)
    assert (await sb.exec(["nope"])).exit == 127
    assert (await sb.exec("(setsid sleep 986 &); sleep 100", timeout_s=0.3)).timed_out
    left = await asyncio.create_subprocess_exec("pgrep", "-f", "sleep 986", stdout=asyncio.subprocess.PIPE)
    assert (await left.communicate())[0] == b""
    await pool.close()
    assert not os.access(folder, os.F_OK)
