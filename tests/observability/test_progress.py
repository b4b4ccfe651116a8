"""Progress: readable in a terminal, a log and a program, and never the end of a run."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.observability import JsonReporter, PlainReporter, Reporter, RichReporter, SilentReporter, reporter_for
from posttrain.observability.time_left import TimeLeft, in_words

SRC = Path(__file__).resolve().parents[2] / "src"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# the estimate


def test_a_slow_first_step_does_not_spoil_the_estimate() -> None:
    left = TimeLeft(0)
    assert left.seconds(10, 0) is None
    now = 60.0  # compiles
    left.advance(1, now)
    for done in range(2, 8):
        now += 2
        left.advance(done, now)
    assert left.seconds(10, now) == pytest.approx(6)
    assert left.seconds(10, now + 1) == pytest.approx(5)
    assert left.seconds(10, now + 500) == pytest.approx(4), "a step that hangs is not counted as many"


def test_steps_of_several_units_weigh_as_many() -> None:
    left = TimeLeft(0)
    left.advance(1, 10)
    left.advance(9, 26)
    assert left.seconds(19, 26) == pytest.approx(20)


def test_a_count_that_starts_again_forgets() -> None:
    left = TimeLeft(0)
    left.advance(5, 50)
    left.advance(0, 51)
    assert left.seconds(5, 51) is None
    left.advance(1, 52)
    assert left.seconds(5, 52) == pytest.approx(4)


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 100)), max_size=40), st.floats(0, 100))
def test_time_left_is_never_negative(events: list[tuple[float, float]], later: float) -> None:
    left, now, done = TimeLeft(0), 0.0, 0.0
    for units, seconds in events:
        now, done = now + seconds, done + units
        left.advance(done, now)
        estimate = left.seconds(20, now + later)
        assert estimate is None or estimate >= 0


def test_times_are_written_for_people() -> None:
    assert [in_words(s) for s in (0.4, 59.4, 59.6, 185, 3719)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 05 s",
        "1 h 01 min",
    ]


# plain lines


def test_a_log_gets_a_line_every_few_seconds_and_on_every_stage() -> None:
    clock, out = Clock(), io.StringIO()
    reporter = PlainReporter(out, clock)
    reporter.stage("train", "7 domains")
    for step in range(1, 29):
        clock.now += 1
        reporter.advance(step, 28, "reward 0.40")
    reporter.stage("gate")
    reporter.message("promoted")
    reporter.warn("one attempt was invalid")
    lines = out.getvalue().splitlines()
    assert lines[0] == "[0 s] train: 7 domains"
    assert lines[1] == "[5 s] train 5/28, 23 s left  reward 0.40"
    assert [line.split(",")[0] for line in lines[1:6]] == [f"[{s} s] train {s}/28" for s in (5, 10, 15, 20, 25)]
    assert lines[6:] == [
        "[28 s] train 28/28  reward 0.40",
        "[28 s] gate",
        "[28 s] promoted",
        "[28 s] warning: one attempt was invalid",
    ]


def test_what_a_model_wrote_can_not_steer_the_terminal() -> None:
    out = io.StringIO()
    PlainReporter(out).message("a\x1b[2Jb\nc\u202ed ü")
    assert out.getvalue() == "[0 s] a\\x1b[2Jb\\nc\\u202ed ü\n"


def test_a_pipe_that_broke_does_not_end_the_run() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with io.TextIOWrapper(io.FileIO(write_end, "w"), write_through=True) as stream:
        reporter = PlainReporter(stream)
        reporter.message("one")
        reporter.message("two")
    closed = io.StringIO()
    closed.close()
    for reporter_of_closed in (PlainReporter(closed), JsonReporter(closed), RichReporter(closed)):
        drive(reporter_of_closed)


def drive(reporter: Reporter) -> None:
    reporter.stage("train", "7 domains [red]")
    for step in range(4):
        reporter.advance(step, 3, "said [bold]hi[/bold]\x1b[2J")
    reporter.message("look: [link]")
    reporter.warn("careful")
    reporter.stage("gate")
    reporter.advance(1, 1)
    reporter.close()
    reporter.close()
    reporter.message("after the end")


# JSON


def test_a_program_reads_one_object_per_line() -> None:
    clock, out = Clock(), io.StringIO()
    reporter = JsonReporter(out, clock)
    reporter.stage("train", "x")
    clock.now += 6
    reporter.advance(3, 6, "n\n")
    reporter.message("hello")
    reporter.warn("oh")
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"event": "stage", "elapsed_s": 0.0, "stage": "train", "detail": "x"},
        {"event": "progress", "elapsed_s": 6.0, "stage": "train", "done": 3, "total": 6, "left_s": 6.0, "note": "n\n"},
        {"event": "message", "elapsed_s": 6.0, "text": "hello"},
        {"event": "warning", "elapsed_s": 6.0, "text": "oh"},
    ]


# a terminal


def test_a_terminal_shows_text_as_it_is_and_the_bar_to_its_end() -> None:
    code = (
        "import runpy, sys\n"
        "from posttrain.observability import RichReporter, reporter_for\n"
        f"drive = runpy.run_path({str(Path(__file__))!r})['drive']\n"
        "reporter = reporter_for()\n"
        "assert isinstance(reporter, RichReporter)\n"
        "drive(reporter)\n"
    )
    controller, terminal = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(SRC), "TERM": "xterm-256color", "COLUMNS": "120", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stderr=terminal) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(controller, 65536)
            except OSError:  # Linux says so when the last writer has closed the terminal
                break
            if not part:
                break
            shown += part
        assert process.wait() == 0
    os.close(controller)
    text = shown.decode()
    assert "train: 7 domains [red]" in text
    assert "said [bold]hi[/bold]\\x1b[2J" in text
    assert "\x1b[2J" not in text
    assert "3/3" in text
    assert "look: [link]" in text
    assert "warning: careful" in text
    assert "after the end" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor stays hidden"


def test_the_reporter_fits_where_it_writes() -> None:
    out = io.StringIO()
    assert isinstance(reporter_for(out), PlainReporter)
    assert isinstance(reporter_for(out, json_lines=True), JsonReporter)
    assert isinstance(reporter_for(out, silent=True), SilentReporter)
    drive(reporter_for(out, silent=True))
    assert out.getvalue() == ""


def test_rich_is_loaded_only_for_a_terminal() -> None:
    code = (
        "import io, sys; from posttrain.observability import reporter_for; reporter_for(io.StringIO()).stage('a')\n"
        "print([m for m in ('rich', 'torch', 'numpy') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"
