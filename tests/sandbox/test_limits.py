"""A program in a sandbox tries to exhaust the machine: a neighbour keeps working, the sandbox stays usable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from posttrain.sandbox import Sandbox, SandboxPool, SandboxSpec

BOMB = """
import os, time
n = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
        n += 1
    except OSError:
        print(n)
        break
"""
HOGS = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = b"x" * (100 << 20)
        time.sleep(5)
        os._exit(0)
time.sleep(5)
"""


@pytest.fixture
async def after(sb: Sandbox) -> AsyncIterator[Sandbox]:
    yield sb
    assert (await sb.exec("echo alive")).stdout == "alive\n"


async def test_a_fork_bomb_is_stopped_at_the_pids_limit(pool: SandboxPool, after: Sandbox) -> None:
    limit = await after.exec("grep processes /proc/self/limits")
    assert limit.stdout.split()[2:4] == ["32", "32"]  # read back before anything is started
    async with pool.sandbox() as neighbour:
        run = asyncio.create_task(after.exec(["python3", "-c", BOMB]))
        assert (await neighbour.exec("for i in 1 2 3; do /bin/true; done; echo fine")).stdout == "fine\n"
        result = await run
    assert 20 <= int(result.stdout) <= 31
    assert (await after.exec(":(){ :|:& };:; sleep 0.3", timeout_s=1)).usage.wall_s < 3


async def test_one_process_can_not_take_more_memory_than_its_limit(after: Sandbox) -> None:
    result = await after.exec(["python3", "-c", "x = bytearray(300 << 20)"])
    assert result.exit == 1 and "MemoryError" in result.stderr and not result.out_of_memory


async def test_many_processes_together_can_not_either(after: Sandbox) -> None:
    result = await after.exec(["python3", "-c", HOGS])
    assert result.out_of_memory and result.exit == 137 and not result.ok
    assert result.usage.wall_s < 3


@pytest.mark.parametrize("command", ["yes", "yes >&2", "cat /dev/zero"])
async def test_endless_output_is_cut_and_the_program_killed(after: Sandbox, command: str) -> None:
    result = await after.exec(command)
    assert result.truncated and not result.timed_out and not result.ok
    assert len(result.stdout) + len(result.stderr) == 64 * 1024


async def test_exactly_as_much_output_as_allowed_is_whole(after: Sandbox) -> None:
    result = await after.exec("head -c 65536 /dev/zero")
    assert result.ok and len(result.stdout) == 65536


HANGS = {
    "busy loop": "while :; do :; done",
    "sleep": "sleep 100",
    "ignores TERM": "trap '' TERM INT HUP QUIT; while :; do sleep 1; done",
    "stopped": "kill -STOP $$",
    "closed output": "exec >&- 2>&-; sleep 100",
    "reads a pipe": "mkfifo p; cat p",
}


@pytest.mark.parametrize("command", HANGS.values(), ids=HANGS.keys())
async def test_a_program_without_end_ends_at_its_limit(after: Sandbox, command: str) -> None:
    start = time.monotonic()
    result = await after.exec(command, timeout_s=0.3)
    assert result.timed_out and result.exit == 137 and not result.ok
    assert time.monotonic() - start < 1.3


async def test_the_limit_holds_while_the_trainer_is_busy(after: Sandbox) -> None:
    run = asyncio.create_task(after.exec(["sh", "-c", "sleep 0.2; echo out; sleep 100"], timeout_s=0.5))
    await asyncio.sleep(0.05)
    time.sleep(1.0)  # noqa: ASYNC251 - an update that holds the loop
    result = await run
    assert result.timed_out and result.stdout == "out\n" and result.usage.wall_s < 0.8


DAEMONS = {
    "background": "sleep 987 & echo started",
    "double fork": "(setsid sh -c 'trap \"\" TERM HUP; sleep 987' &) ; echo started",
    "nohup": "nohup sleep 987 >/dev/null 2>&1 & echo started",
}


@pytest.mark.parametrize("command", DAEMONS.values(), ids=DAEMONS.keys())
async def test_nothing_outlives_the_program_that_started_it(after: Sandbox, command: str) -> None:
    result = await after.exec(command)
    assert result.ok and result.stdout == "started\n" and result.usage.wall_s < 1
    ps = await asyncio.create_subprocess_exec("ps", "-eo", "args", stdout=asyncio.subprocess.PIPE)
    out, _ = await ps.communicate()
    assert b"sleep 987" not in out


async def test_cpu_seconds_are_limited(isolated: None) -> None:
    async with SandboxPool(SandboxSpec(cpu_s=1, timeout_s=20)) as pool, pool.sandbox() as sb:
        result = await sb.exec("while :; do :; done")
    assert result.exit == 137 and not result.timed_out and 0.3 < result.usage.cpu_s < 3


FILLS = {
    "one file": "head -c 9m /dev/zero > f || head -c 9000000 /dev/zero > f",
    "many files": "for i in 1 2 3 4; do head -c 7000000 /dev/zero > $i || exit 1; done",
    "deleted files": 'for i in 3 4 5 6; do eval "exec $i>f"; rm f; head -c 7000000 /dev/zero >&$i || exit 1; done',
    "names": "mkdir n; for i in $(seq 600); do : > n/$i || exit 1; done",
    "tmp": "cd /tmp; for i in 1 2 3 4; do head -c 7000000 /dev/zero > $i || exit 1; done",
    "shm": "cd /dev/shm; for i in 1 2 3; do head -c 7000000 /dev/zero > $i || exit 1; done",
}


@pytest.mark.parametrize("command", FILLS.values(), ids=FILLS.keys())
async def test_the_disk_can_not_be_filled(sb: Sandbox, command: str) -> None:
    result = await sb.exec(command)
    assert result.exit != 0, result
    await sb.reset()
    assert (await sb.exec("echo x > f; cat f")).stdout == "x\n"


async def test_open_files_are_limited(after: Sandbox) -> None:
    code = "f = []\ntry:\n  while True: f.append(open('/dev/null'))\nexcept OSError as e: print(len(f), e.errno)"
    count, errno = (await after.exec(["python3", "-c", code])).stdout.split()
    assert int(count) < 256 and errno == "24"


async def test_a_stdin_that_nobody_reads_is_no_trouble(after: Sandbox) -> None:
    data = b"x" * (20 << 20)
    assert (await after.exec("exec <&-; echo done", stdin=data)).stdout == "done\n"
    assert (await after.exec("wc -c", stdin=data)).stdout.strip() == str(len(data))
    assert (await after.exec("sleep 100", stdin=data, timeout_s=0.2)).timed_out


async def test_rm_of_everything_harms_nobody(after: Sandbox) -> None:
    await after.write("mine", b"1")
    result = await after.exec(
        "rm -rf /usr/bin /etc /dev /proc /work /tmp 2>/dev/null; ls /usr/bin | wc -l; ls -A /work"
    )
    assert int(result.stdout) > 10
