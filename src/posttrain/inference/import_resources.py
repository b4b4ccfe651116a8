"""What an import may use: free disk, free memory, and a lock that lets one process at a time do the work.

Bounds: a lock is waited for at most `wait_s`; the error names who holds it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from posttrain.inference.import_errors import ModelSourceError
from posttrain.observability import available_memory_bytes

_POLL_S = 0.1  # a person does not notice it, and it costs nothing
_MARGIN_BYTES = 32 << 20  # tokenizer, manifests and the file system's own needs


def require_disk(folder: Path, nbytes: int, what: str) -> None:
    """Raises ModelSourceError where the file system of `folder` (exists) has less than `nbytes` and a margin left."""
    needed, free = nbytes + _MARGIN_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise ModelSourceError(
            f"{what} needs {_size(needed)} on disk, {folder} has {_size(free)} free: free some, or "
            "set POSTTRAIN_CACHE to another disk"
        )


def require_memory(nbytes: int, what: str) -> None:
    """Raises ModelSourceError where less than `nbytes` of memory is available to this process."""
    free = available_memory_bytes()
    if nbytes > free:
        raise ModelSourceError(
            f"{what} needs {_size(nbytes)} of memory, {_size(free)} is available: close "
            "programs or take a smaller model"
        )


@contextmanager
def exclusive(lock: Path, what: str, wait_s: float, progress: Callable[[str, float], None]) -> Iterator[None]:
    """Holds `lock` (a file that is never removed: removing it would let two processes in).

    The kernel frees it at death.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + wait_s
        told = False
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
                if not told:
                    progress(f"waiting for process {holder}, which imports {what}", 0.0)
                    told = True
                if time.monotonic() >= deadline:
                    raise ModelSourceError(
                        f"process {holder} has been importing {what} for more than {wait_s:g} s: wait "
                        "for it or end it, then try again"
                    ) from None
                time.sleep(_POLL_S)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / 2**20:.0f} MiB"
