"""What was used, and what may be used: inside and outside containers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from posttrain.observability import (
    Phases,
    Stopwatch,
    available_memory_bytes,
    disk_free_bytes,
    memory_limit_bytes,
)

MIB = 1 << 20
SRC = Path(__file__).resolve().parents[2] / "src"
HOLD = "import sys; x = bytearray(120 << 20); print('held', flush=True); sys.stdin.read()"


def test_the_peak_stays_after_memory_is_given_back() -> None:
    code = (
        "from posttrain.observability import peak_rss_bytes\n"
        "before = peak_rss_bytes(); x = bytearray(100 << 20); del x\n"
        "print(before, peak_rss_bytes())"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    before, after = map(int, out.split())
    assert 5 * MIB < before < 100 * MIB, "a small program reports what the program that started it used"
    assert after - before > 90 * MIB


def test_children_and_theirs_are_counted_while_they_live() -> None:
    # A fresh process: this one may have had larger children.
    code = f"""
import subprocess, sys
from posttrain.observability import peak_rss_of_children_bytes
nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', " + repr({HOLD!r}) + "])"
print(peak_rss_of_children_bytes() >> 20)
for code in ({HOLD!r}, nested.replace("120", "240")):
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        print(peak_rss_of_children_bytes() >> 20)
        child.communicate()
    print(peak_rss_of_children_bytes() >> 20)
"""
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    before, alive, ended, nested_alive, nested_ended = map(int, out.split())
    assert before == ended == nested_ended == 0
    assert 120 < alive < 200
    assert 240 < nested_alive < 360  # the child and its child


def test_a_small_child_of_a_large_process_counts_as_small() -> None:
    code = """
import subprocess, sys
from posttrain.observability import peak_rss_of_children_bytes
held = bytearray(400 << 20)
held[::4096] = b"x" * len(held[::4096])
with subprocess.Popen(["sleep", "60"]) as child:
    print(peak_rss_of_children_bytes() >> 20)
    child.kill()
"""
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert int(out) < 50


class Machine:
    """A folder laid out as /proc and /sys/fs/cgroup are."""

    def __init__(self, root: Path, membership: str) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\n", root)
        self.write("proc/self/cgroup", membership, root)

    @staticmethod
    def write(name: str, text: str, root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    def group(self, path: str, **files: str) -> None:
        for name, text in files.items():
            self.write(f"{path}/memory.{name}", text, self.cgroups)

    @property
    def memory(self) -> tuple[int, int]:
        return memory_limit_bytes(self.proc, self.cgroups), available_memory_bytes(self.proc, self.cgroups)


def test_without_a_group_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert Machine(tmp_path, "0::/user.slice\n").memory == (16 * MIB, 8 * MIB)


def test_the_tightest_group_above_the_process_is_the_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/jobs/7/step\n")
    machine.group("jobs/7/step", max="max\n", current=f"{3 * MIB}\n")
    machine.group("jobs/7", max=f"{4 * MIB}\n", current=f"{3 * MIB}\n", stat=f"anon 5\ninactive_file {MIB}\n")
    machine.group("jobs", max=f"{10 * MIB}\n", current=f"{5 * MIB}\n")
    assert machine.memory == (4 * MIB, 2 * MIB)  # cached files can be dropped


def test_a_group_of_version_1_and_a_path_that_only_the_host_has(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "12:cpu,cpuacct:/x\n5:memory:/docker/abc\n0::/\n")
    machine.group(
        "memory", limit_in_bytes=f"{6 * MIB}\n", usage_in_bytes=f"{5 * MIB}\n", stat="total_inactive_file 0\n"
    )
    assert machine.memory == (6 * MIB, 1 * MIB)


def test_version_1_without_a_limit_is_the_machine(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "5:memory:/\n")
    machine.group("memory", limit_in_bytes="9223372036854771712\n", usage_in_bytes="1\n")
    assert machine.memory == (16 * MIB, 8 * MIB)


def test_a_group_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/\n")
    machine.group(".", max=f"{MIB}\n", current=f"{2 * MIB}\n")
    assert machine.memory == (MIB, 0)


def test_this_machine_answers() -> None:
    assert 0 < available_memory_bytes() <= memory_limit_bytes()
    assert disk_free_bytes(Path("/") / "not" / "there") > 0


def test_times_add_up_by_phase() -> None:
    phases = Phases()
    for _ in range(2):
        with phases("generate"):
            time.sleep(0.02)
    with pytest.raises(RuntimeError), phases("score"):
        raise RuntimeError
    phases.add("update", 1.5)
    assert list(phases.seconds) == ["generate", "score", "update"]
    assert phases.seconds["generate"] >= 0.04
    assert phases.take()["update"] == 1.5
    assert phases.seconds == {}


def test_waiting_costs_clock_time_and_work_costs_processor_time() -> None:
    watch = Stopwatch()
    time.sleep(0.1)
    slept = (watch.wall_s, watch.cpu_s)
    assert slept[0] >= 0.1
    assert slept[1] < 0.1
    work = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", work], check=True)
    assert watch.cpu_s - slept[1] >= 0.19, "the work of children is not counted"
