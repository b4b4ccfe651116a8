"""How long the rest will take: a pure estimate that one slow or fast unit does not throw off.

The time of a unit is the median (weighted by units) over the last `WINDOW` advances, so a first step that compiles,
or a pause, does not count for the rest.
"""

from __future__ import annotations

from collections import deque

WINDOW = 24  # advances: long enough for a median to be calm, short enough to follow answers that grow longer


class TimeLeft:
    """Feed it `advance(done, now)`; ask `seconds(total, now)`. Times are seconds of any monotonic clock."""

    def __init__(self, now: float, done: float = 0.0) -> None:
        self._time, self._done = now, done
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # (seconds per unit, units)

    def advance(self, done: float, now: float) -> None:
        """`done` units are finished by `now`. Fewer than before means a new count: what was learned is forgotten."""
        units = done - self._done
        if units < 0:
            self._seen.clear()
        elif units == 0:
            return
        else:
            self._seen.append(((now - self._time) / units, units))
        self._time, self._done = now, done

    def seconds(self, total: float, now: float) -> float | None:
        """Seconds until `total` units are done; None before the first unit is. 0 or more."""
        if not self._seen:
            return None
        unit_s = _median(list(self._seen))
        # What has passed since the last advance counts towards the unit that is under way, and no further.
        under_way = min(max(0.0, now - self._time), unit_s)
        return max(0.0, (total - self._done) * unit_s - under_way)


def _median(weighted: list[tuple[float, float]]) -> float:
    weighted.sort()
    half = sum(weight for _, weight in weighted) / 2
    below = 0.0
    for value, weight in weighted:
        below += weight
        if below >= half:
            return value
    return weighted[-1][0]


def in_words(seconds: float) -> str:
    """`8 s`, `3 min 05 s`, `1 h 02 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
