"""The metrics file: rows survive kills, and no step is there twice."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from posttrain.observability import MetricsLog, read

SRC = Path(__file__).resolve().parents[2] / "src"
ENV = {**os.environ, "PYTHONPATH": str(SRC)}


def log_with(path: Path, *steps: int) -> MetricsLog:
    log = MetricsLog(path)
    for step in steps:
        log.append({"phase": "rl", "step": step, "loss": step / 2})
    return log


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    with log_with(path, 1, 2) as log:
        log.append({"phase": "eval", "domains": {"add": 0.5}, "names": ["a", "ü\r\n"]})
    rows = read(path)
    assert [row.get("step") for row in rows] == [1, 2, None]
    assert rows[2] == {"phase": "eval", "domains": {"add": 0.5}, "names": ["a", "ü\r\n"]}
    with log_with(path, 3):
        assert len(read(path)) == 4


def test_numbers_that_are_not_finite_are_null_and_arrays_scalars_plain(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log.append(
            {"a": math.nan, "b": {"c": [math.inf, 1.0]}, "d": np.float32(0.5), "e": np.int64(3), "f": np.float32("nan")}
        )
        with pytest.raises(TypeError, match=r"metric b\.c is a set"):
            log.append({"b": {"c": {1}}})
        with pytest.raises(TypeError, match="metric weights is a ndarray"):
            log.append({"weights": np.zeros(2)})
    line = (tmp_path / "m").read_text()
    assert json.loads(line) == {"a": None, "b": {"c": [None, 1.0]}, "d": 0.5, "e": 3, "f": None}
    assert line.count("\n") == 1


@pytest.mark.parametrize("torn", [b'{"phase": "rl", "step"', b'{"step": 3}', b"\0\0\0\0\n", b'{"st\n'])
def test_a_line_that_a_kill_tore_is_dropped(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "m"
    log_with(path, 1, 2).close()
    with path.open("ab") as file:
        file.write(torn)
    assert [row["step"] for row in read(path)] == [1, 2]
    log_with(path, 3).close()
    assert [row["step"] for row in read(path)] == [1, 2, 3]


def test_an_empty_log_is_fine(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        assert read(tmp_path / "m") == []
        assert log.truncate_after("rl", 0) == 0


def test_damage_in_the_middle_is_not_guessed_at(tmp_path: Path) -> None:
    path = tmp_path / "m"
    log_with(path, 1, 2, 3).close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{]\n" + lines[2])
    with pytest.raises(ValueError, match="line 2 is damaged"):
        read(path)


def test_a_resumed_run_has_no_step_twice(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with log_with(path, 1, 2, 3, 4) as log:
        log.append({"phase": "sft", "step": 9})
        log.append({"phase": "rl", "note": "no step"})
        assert log.truncate_after("rl", 2) == 2
        assert log.truncate_after("rl", 2) == 0
        log.append({"phase": "rl", "step": 3})
    rows = read(path)
    assert [row.get("step") for row in rows] == [1, 2, 9, None, 3]
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_kill_9_loses_no_row_that_was_written(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from posttrain.observability import MetricsLog
        log, step = MetricsLog(Path(sys.argv[1])), 0
        while True:
            log.append({"phase": "rl", "step": step, "text": "x" * 5000})
            print(step, flush=True)
            step += 1
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "m")], env=ENV, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        for _ in range(10):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
    saved = int(rest[-1]) if rest else 9
    steps = [row["step"] for row in read(tmp_path / "m")]
    assert steps == list(range(len(steps)))
    assert len(steps) > saved


def test_a_full_disk_names_the_file_and_leaves_whole_rows(tmp_path: Path) -> None:
    code = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from posttrain.observability import MetricsLog
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        log = MetricsLog(Path(sys.argv[1]))
        log.append({"step": 1})
        try:
            log.append({"step": 2, "text": "x" * 2000})
        except OSError as error:
            print(error)
        log.append({"step": 3})
    """)
    command = [sys.executable, "-c", code, str(tmp_path / "m")]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True)
    assert str(tmp_path / "m") in done.stdout
    assert "can not write metrics" in done.stdout
    assert [row["step"] for row in read(tmp_path / "m")] == [1, 3]
