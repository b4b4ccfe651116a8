"""What happened: metrics in a file, what was used, and progress for people. Imports `records` only, and no torch."""

from posttrain.observability.metrics import MetricsLog, read
from posttrain.observability.progress import (
    JsonReporter,
    PlainReporter,
    Reporter,
    RichReporter,
    SilentReporter,
    reporter_for,
)
from posttrain.observability.resources import (
    Phases,
    Stopwatch,
    available_memory_bytes,
    disk_free_bytes,
    keep_one_arena,
    memory_limit_bytes,
    peak_rss_bytes,
    peak_rss_of_children_bytes,
    release_free_memory,
)

__all__ = [
    "JsonReporter",
    "MetricsLog",
    "Phases",
    "PlainReporter",
    "Reporter",
    "RichReporter",
    "SilentReporter",
    "Stopwatch",
    "available_memory_bytes",
    "disk_free_bytes",
    "keep_one_arena",
    "memory_limit_bytes",
    "peak_rss_bytes",
    "peak_rss_of_children_bytes",
    "read",
    "release_free_memory",
    "reporter_for",
]
