"""A program in a sandbox tries to get out. Probes talk to this machine's loopback or to their own namespaces only."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.sandbox import Sandbox, SandboxFileError, SandboxPool


def processes(columns: str) -> list[str]:
    return subprocess.run(["ps", "-eo", columns], capture_output=True, text=True, check=True).stdout.splitlines()


# Each must end with an error and print nothing.
READS = {
    "shadow": "cat /etc/shadow",
    "home of root": "ls /root",
    "home folders": "ls /home",
    "the host's tmp": f"ls {Path(__file__).parent}",
    "root of init": "ls /proc/1/root/home",
    "parent of the root": "ls /../../../root",
    "working folder of init": "ls /proc/1/cwd/home",
    "kernel memory": "head -c 1 /proc/kcore",
    "kernel log": "dmesg",
    "a disk": "head -c 1 /dev/vda || head -c 1 /dev/sda",
    "sysfs": "ls /sys/kernel",
    "var": "ls /var/lib",
}
WRITES = {
    "usr": "touch /usr/bin/evil",
    "root folder": "touch /evil",
    "etc": "echo evil >> /etc/passwd",
    "dev": "touch /dev/evil",
    "sysctl": "echo evil > /proc/sys/kernel/core_pattern",
    "sysrq": "echo h > /proc/sysrq-trigger",
    "remount": "mount -o remount,rw /usr",
    "bind mount": "mount --bind /usr /work",
    "new namespaces": "unshare -Ur true",
    "device node": "mknod /work/disk b 254 0",
    "setuid": "cp /bin/sh /work/sh && chmod u+s /work/sh && chown root /work/sh",
    "host name": "hostname evil",
    "clock": "date -s 2001-01-01",
}


@pytest.mark.parametrize("command", READS.values(), ids=READS.keys())
async def test_host_files_can_not_be_read(sb: Sandbox, command: str) -> None:
    result = await sb.exec(command)
    assert result.exit not in (0, 127), result
    assert result.stdout == ""


@pytest.mark.parametrize("command", WRITES.values(), ids=WRITES.keys())
async def test_nothing_but_its_own_folders_can_be_changed(sb: Sandbox, command: str) -> None:
    result = await sb.exec(command)
    assert result.exit not in (0, 127), result


async def test_a_file_beside_the_project_is_out_of_sight(sb: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o644)
    assert (await sb.exec(["cat", str(secret)])).exit == 1
    assert "secret" not in (await sb.exec("find / -xdev -name 'secret' 2>/dev/null; ls /tmp")).stdout


async def test_it_has_no_environment_of_ours(sb: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    result = await sb.exec("env; cat /proc/1/environ /proc/1/cmdline /proc/self/environ | tr '\\0' '\\n'")
    assert "hunter2" not in result.stdout and "HOME=/work" in result.stdout
    assert str(Path(__file__).parents[2]) not in result.stdout


async def test_it_sees_and_signals_its_own_processes_only(sb: Sandbox) -> None:
    victim = await asyncio.create_subprocess_exec("sleep", "100")
    try:
        result = await sb.exec(f"kill -9 {victim.pid} {os.getpid()}; kill -9 -1; ls /proc | grep -c '^[0-9]'")
        assert result.exit == 137 or "No such process" in result.stderr
        count = await sb.exec("ls /proc | grep -c '^[0-9]'")
        assert int(count.stdout) <= 4
        assert victim.returncode is None
    finally:
        victim.kill()
        await victim.wait()


async def test_a_service_on_loopback_can_not_be_reached(sb: Sandbox) -> None:
    reached: list[bool] = []
    server = await asyncio.start_server(lambda r, w: reached.append(True), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    result = await sb.exec(["python3", "-c", code])
    udp = await sb.exec(["python3", "-c", "import socket; print([n for _, n in socket.if_nameindex()])"])
    server.close()
    assert "ConnectionRefusedError" in result.stderr and not reached
    assert udp.stdout.strip() == "['lo']"


async def test_abstract_unix_sockets_of_the_host_can_not_be_reached(sb: Sandbox) -> None:
    name = f"\0posttrain-{os.getpid()}"
    server = await asyncio.start_unix_server(lambda r, w: None, name)
    code = "import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + " + repr(name[1:]) + ")"
    result = await sb.exec(["python3", "-c", code])
    server.close()
    assert "ConnectionRefusedError" in result.stderr


DENIED = {
    "key ring": "syscall(250, 0, -3, 1)" if os.uname().machine == "x86_64" else "syscall(219, 0, -3, 1)",
    "io_uring": "syscall(425, 8, 0)",
    "user namespace by unshare": "unshare(0x10000000)",
    "ptrace": "ptrace(0, 0, 0, 0)",
    "packet socket": "socket(17, 3, 0)",
    "vsock": "socket(40, 1, 0)",
}


@pytest.mark.parametrize("call", DENIED.values(), ids=DENIED.keys())
async def test_kernel_interfaces_beyond_an_ordinary_program_are_closed(sb: Sandbox, call: str) -> None:
    code = f"import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.{call}, ctypes.get_errno())"
    assert (await sb.exec(["python3", "-c", code])).stdout == "-1 1\n"


async def test_it_holds_no_privilege(sb: Sandbox) -> None:
    status = (await sb.exec(["cat", "/proc/self/status"])).stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {fields[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert (await sb.exec("id -u; hostname")).stdout == "1000\nsandbox\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give root away")
async def test_it_is_not_root_outside_either(sb: Sandbox) -> None:
    run = asyncio.create_task(sb.exec(["sleep", "3.14159"]))
    await asyncio.sleep(0.3)
    owners = {line.split()[0] for line in processes("uid,args") if "sleep 3.14159" in line}
    run.cancel()
    await asyncio.wait({run})
    assert owners and "0" not in owners


@pytest.mark.parametrize("target", ["/etc/passwd", "/proc/self/environ", "/work/real", "loop"])
async def test_a_planted_link_is_not_followed_from_outside(sb: Sandbox, tmp_path: Path, target: str) -> None:
    await sb.exec(f"echo inside > /work/real; ln -s {target} /work/loop; ln -s / /work/root; mkdir d; ln -s ../.. d/up")
    for path in ("loop", "root/etc/passwd", "/work/root/tmp/x", "d/up/etc/passwd"):
        with pytest.raises(SandboxFileError, match=r"link|folder|directory"):
            await sb.read(path)
    with pytest.raises(SandboxFileError):
        await sb.get("loop", tmp_path / "stolen")
    with pytest.raises(SandboxFileError):
        await sb.write("root/tmp/evil", b"")
    assert not os.listdir(tmp_path) and "evil" not in os.listdir("/tmp")  # noqa: PTH208
    await sb.write("loop", b"mine")  # replaces the link itself
    assert await sb.read("loop") == b"mine" and await sb.read("real") == b"inside\n"


async def test_a_planted_pipe_or_device_does_not_make_us_wait(sb: Sandbox) -> None:
    await sb.exec("mkfifo /work/pipe; mkdir /work/folder")
    for path in ("pipe", "folder", "/work", "missing"):
        with pytest.raises(SandboxFileError):
            await asyncio.wait_for(sb.read(path), 2)


async def test_two_sandboxes_do_not_see_each_other(pool: SandboxPool) -> None:
    async with pool.sandbox() as a, pool.sandbox() as b:
        await a.write("x", b"a")
        assert (await b.exec("ls -A /work /tmp")).stdout == "/tmp:\n\n/work:\n"
        run = asyncio.create_task(a.exec("sleep 2"))
        await asyncio.sleep(0.1)
        assert "sleep" not in (await b.exec("cat /proc/*/cmdline")).stdout
        run.cancel()
        await asyncio.wait({run})


def test_the_holder_needs_no_more_than_the_standard_library() -> None:
    holder = Path(__file__).parents[2] / "src/posttrain/sandbox/holder.py"
    run = subprocess.run([sys.executable, "-I", "-S", str(holder)], capture_output=True, text=True)
    assert "IndexError" in run.stderr  # it came as far as its missing argument
