"""Files that are there whole or not at all: a kill, a full disk or a power cut never leaves half of one.

A file is written beside its place under a temporary name, flushed to the disk, renamed over its place, and the folder
is flushed. What a killed writer leaves behind is a temporary name, which `sweep` removes.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"

# What a disk says that can not take more: full, over quota, failing, file too large, read-only.
_DISK_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS))


class StorageError(OSError):
    """The disk could not take a file. One line: which, what it needed, what is free, and what is still whole."""

    def __str__(self) -> str:
        return str(self.args[1])


def write_atomic(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Puts `content` at `path`, durably; folders on the way are created.

    content: the bytes, or a function that writes them to the temporary path it is given. Raises StorageError where
    the disk can not take it (the temporary file is gone, and what stood at `path` still does); what the function
    raises passes through, with the same promise.
    """
    temporary = temporary_beside(path)
    needed = len(content) if isinstance(content, bytes) else None
    with removed_on_error(temporary), explained(path, temporary, needed):
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            content(temporary)
        flush(temporary)
        temporary.replace(path)
    with explained(path, path, needed, "the new file stands, but may not outlive a power cut"):
        flush(path.parent)


def require_free(path: Path, needed_bytes: int, what: str) -> None:
    """Raises StorageError where the disk that holds `path` (or will) has less than `needed_bytes` free for `what`."""
    free = free_bytes(path)
    if free < needed_bytes:
        raise StorageError(
            errno.ENOSPC,
            f"{what} needs {in_words(needed_bytes)} and the disk of {path} has {in_words(free)} free: "
            "make room or choose a folder on another disk",
        )


def free_bytes(path: Path) -> int:
    """Bytes that this user may still write on the disk that holds `path`, or would hold it."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def temporary_beside(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"


def sweep(folder: Path) -> None:
    """Removes what killed writers left in `folder`. Only for whoever is its one writer."""
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        remove(leftover)


def remove(path: Path) -> None:
    """Removes a file or a folder; one that is gone already is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Waits until a file, or the names in a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems can not flush a folder; they order renames themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


@contextmanager
def removed_on_error(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:  # also a Ctrl-C: a half-written file must not stay
        remove(temporary)
        raise


@contextmanager
def explained(path: Path, temporary: Path, needed_bytes: int | None, intact: str | None = None) -> Iterator[None]:
    """Turns what a full or failing disk raises inside into a StorageError about `path`.

    needed_bytes: None where it is not known: then what `temporary` holds by now is the least it needs. intact: what
    is still whole, in words; by default the file that stands at `path`.
    """
    try:
        yield
    except (
        Exception
    ) as error:  # Any writer's error may carry a disk's number; every other one is raised again as it is.
        number = _error_number(error)
        if number not in _DISK_ERRORS:
            raise
        needed = f"more than {in_words(_size(temporary))}" if needed_bytes is None else in_words(needed_bytes)
        free = in_words(free_bytes(path))
        if intact is None:
            intact = "the previous file is intact" if path.exists() else "nothing was left behind"
        raise StorageError(
            number,
            f"can not write {path}: {os.strerror(number)} (needs {needed}, {free} free); {intact}",
        ) from error


def _error_number(error: Exception) -> int:
    """The errno behind an exception, 0 where there is none. Writers in Rust (safetensors) give it in the text only."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def in_words(count_bytes: float) -> str:
    """A number of bytes for a person: `512 bytes`, `1.5 MiB`."""
    if count_bytes < 1024:
        return f"{count_bytes:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        count_bytes /= 1024
        if count_bytes < 1024:
            return f"{count_bytes:.1f} {unit}"
    return f"{count_bytes / 1024:.1f} TiB"
