"""How a person, or a program, follows a run.

| reporter | for | prints |
|---|---|---|
| RichReporter | a terminal | a live line with a bar and the time left; messages above it |
| PlainReporter | a log file, a pipe, CI | a line on a new stage and at its end, in between one in `EVERY_S` at most |
| JsonReporter | a program | one JSON object per event, progress at most once in `EVERY_S` |
| SilentReporter | tests, library use | nothing |

Invariant: reporting never ends a run: a terminal that is gone (closed, broken pipe) makes a reporter silent. Text is
shown as it is, never read as markup, and without control characters (what a model wrote may be in it).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Protocol, Self, TextIO

from posttrain.observability.time_left import TimeLeft, in_words

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_S = 5.0  # a log of an hour stays under a thousand lines


class Reporter(Protocol):
    """Where a run says what it is doing. All texts are one line. `close` ends a live display; later calls are
    ignored."""

    def stage(self, name: str, detail: str = "") -> None:
        """A new stage begins; its progress starts at nothing."""

    def advance(self, done: float, total: float, note: str = "") -> None:
        """`done` of `total` units of the stage are finished. note: a few words on the newest one."""

    def message(self, text: str) -> None:
        """Something a person wants to read."""

    def warn(self, text: str) -> None:
        """Something a person should look at."""

    def close(self) -> None:
        """Ends the display; may be called twice."""


class _Base:
    """Keeps the stage, its progress and the estimate; says nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._stage_start = clock()
        self._left = TimeLeft(self._start)
        self._stage = ""
        self._closed = False

    def stage(self, name: str, detail: str = "") -> None:
        self._stage = name
        self._stage_start = self._clock()
        self._left = TimeLeft(self._stage_start)

    def advance(self, done: float, total: float, note: str = "") -> None:
        self._left.advance(done, self._clock())

    def message(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SilentReporter(_Base):
    """Says nothing."""


class _Lines(_Base):
    """Writes lines to a stream until the stream is gone."""

    def __init__(self, stream: IO[str], clock: Callable[[], float] = time.monotonic, every_s: float = EVERY_S) -> None:
        super().__init__(clock)
        self._stream = stream
        self._every_s = every_s
        self._last_progress = self._start

    def stage(self, name: str, detail: str = "") -> None:
        super().stage(name, detail)
        self._last_progress = self._stage_start

    def _due(self, done: float, total: float) -> bool:
        """Whether progress may be shown now: not too often, and always at the end of a stage."""
        now = self._clock()
        if done < total and now - self._last_progress < self._every_s:
            return False
        self._last_progress = now
        return True

    def _write(self, line: str) -> None:
        if self._closed:
            return
        try:
            print(line, file=self._stream, flush=True)
        except (OSError, ValueError):  # the terminal or the pipe is gone: a run goes on without an audience
            self._closed = True


class PlainReporter(_Lines):
    """One plain line per event, with the time since the start."""

    def stage(self, name: str, detail: str = "") -> None:
        super().stage(name, detail)
        self._say(f"{name}: {detail}" if detail else name)

    def advance(self, done: float, total: float, note: str = "") -> None:
        super().advance(done, total, note)
        if self._due(done, total):
            left = self._left.seconds(total, self._clock())
            ahead = f", {in_words(left)} left" if left is not None and done < total else ""
            self._say(f"{self._stage} {done:g}/{total:g}{ahead}{'  ' if note else ''}{note}")

    def message(self, text: str) -> None:
        self._say(text)

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}")

    def _say(self, text: str) -> None:
        self._write(f"[{in_words(self._clock() - self._start)}] {printable(text)}")


class JsonReporter(_Lines):
    """One JSON object per line: `event` (stage, progress, message, warning), `elapsed_s`, and the event's own
    fields."""

    def stage(self, name: str, detail: str = "") -> None:
        super().stage(name, detail)
        self._event("stage", stage=name, detail=detail)

    def advance(self, done: float, total: float, note: str = "") -> None:
        super().advance(done, total, note)
        if self._due(done, total):
            left = self._left.seconds(total, self._clock())
            left_s = None if left is None else round(left, 1)
            self._event("progress", stage=self._stage, done=done, total=total, left_s=left_s, note=note)

    def message(self, text: str) -> None:
        self._event("message", text=text)

    def warn(self, text: str) -> None:
        self._event("warning", text=text)

    def _event(self, event: str, **fields: Any) -> None:
        self._write(json.dumps({"event": event, "elapsed_s": round(self._clock() - self._start, 1), **fields}))


class RichReporter(_Base):
    """A live line on a terminal: stage, bar, count, time left, note."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(clock)
        # markup=False: a note that holds "[red]" is shown, not obeyed. Two refreshes a second leave the cores alone.
        self._progress: Progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[time]}", style="cyan", markup=False),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=Console(file=stream or sys.stderr, highlight=False),
            refresh_per_second=2,
        )
        self._task: TaskID | None = None

    def stage(self, name: str, detail: str = "") -> None:
        self._finish()
        super().stage(name, detail)
        self._show(f"{name}: {detail}" if detail else name, "bold")

    def advance(self, done: float, total: float, note: str = "") -> None:
        super().advance(done, total, note)
        if self._closed:
            return
        now = self._clock()
        left = self._left.seconds(total, now)
        spent = in_words(now - self._stage_start)
        shown = f"{spent}, {in_words(left)} left" if left is not None and done < total else spent
        fields: dict[str, Any] = {"count": f"{done:g}/{total:g}", "time": shown, "note": printable(note)}
        try:
            if self._task is None:
                self._task = self._progress.add_task(printable(self._stage), total=total, **fields)
                self._progress.start()
            self._progress.update(self._task, completed=done, total=total, **fields)
        except (OSError, ValueError):  # the terminal is gone
            self._closed = True

    def message(self, text: str) -> None:
        self._show(text, None)

    def warn(self, text: str) -> None:
        self._show(f"warning: {text}", "yellow")

    def close(self) -> None:
        self._finish()
        super().close()

    def _finish(self) -> None:
        """Leaves the finished bar standing and ends the live display."""
        try:
            if self._task is not None:
                self._progress.stop()
                self._progress.remove_task(self._task)
        except (OSError, ValueError):  # the terminal is gone
            self._closed = True
        self._task = None

    def _show(self, text: str, style: str | None) -> None:
        if self._closed:
            return
        try:
            self._progress.console.print(printable(text), style=style, markup=False, soft_wrap=True)
        except (OSError, ValueError):  # the terminal is gone
            self._closed = True


def reporter_for(stream: TextIO | None = None, *, json_lines: bool = False, silent: bool = False) -> Reporter:
    """The reporter that fits: live on a terminal, plain lines elsewhere. stream: stderr unless told."""
    stream = stream or sys.stderr
    if silent:
        return SilentReporter()
    if json_lines:
        return JsonReporter(stream)
    return RichReporter(stream) if stream.isatty() else PlainReporter(stream)


def printable(text: str) -> str:
    """`text` as one line that can not steer a terminal: line breaks and control characters are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
