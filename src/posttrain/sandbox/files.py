"""Reads and writes files of a sandbox from outside, without ever following a link that the program inside has planted.

Every step of a path is opened relative to the step before it with O_NOFOLLOW, so neither a link nor a race leads out.
A path is absolute under /work or /tmp, or relative to /work. Bounds: a file larger than the given limit is refused
before it is read.
"""

# pathlib knows no descriptors of folders.
# ruff: noqa: PTH123
from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import PurePosixPath

from posttrain.sandbox.errors import SandboxFileError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def split_path(path: str) -> tuple[int, tuple[str, ...]]:
    """(0 for /work or 1 for /tmp, the names below it). ValueError for a path elsewhere, with `..`, or with NUL."""
    parts = PurePosixPath("/work", path).parts[1:]
    if ".." in parts or "\0" in path:
        raise ValueError(f"sandbox path {path!r}: give a path below /work or /tmp, without '..'")
    if not parts or parts[0] not in ("work", "tmp"):
        raise ValueError(f"sandbox path {path!r}: only files below /work and /tmp can be reached")
    return ("work", "tmp").index(parts[0]), parts[1:]


def read_file(folder_fd: int, names: tuple[str, ...], max_bytes: int) -> bytes:
    """Content of a regular file. SandboxFileError where it is anything else, missing, or larger than `max_bytes`."""
    with _named(names), _parent(folder_fd, names, create=False, owner=None) as parent:
        # O_NONBLOCK: a named pipe planted here must not make us wait for its writer.
        fd = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise SandboxFileError(errno.EFBIG, f"{'/'.join(names)} is larger than {max_bytes} bytes")
    return data


def write_file(folder_fd: int, names: tuple[str, ...], data: bytes, mode: int, owner: int | None) -> None:
    """Replaces a file (the old one is unlinked, never written through); makes missing folders, owned by `owner`."""
    with _named(names), _parent(folder_fd, names, create=True, owner=owner) as parent:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(names[-1], dir_fd=parent)
        fd = os.open(
            names[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent
        )
        with open(fd, "wb", buffering=0) as file:
            if owner is not None:
                os.fchown(fd, owner, owner)
            os.fchmod(fd, mode)
            left = memoryview(data)
            while left:
                left = left[file.write(left) :]


def empty_folder(folder_fd: int, most: int = 1000, deepest: int = 32) -> bool:
    """Removes everything in a folder, and what marks the folder itself. No program may run meanwhile.

    False where that does not work or would take long: more than `most` entries, or a tree deeper than `deepest`.
    """
    try:
        _remove_all(folder_fd, [most], deepest)
        os.fchmod(folder_fd, 0o700)
        for name in os.listxattr(folder_fd):
            os.removexattr(folder_fd, name)
    except (OSError, OverflowError):
        return False
    return True


def _remove_all(folder_fd: int, left: list[int], deeper: int) -> None:
    with os.scandir(folder_fd) as entries:
        found = [(e.name, e.is_dir(follow_symlinks=False)) for e, _ in zip(entries, range(left[0] + 1), strict=False)]
    left[0] -= len(found)
    if left[0] < 0 or deeper == 0:
        raise OverflowError
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder_fd)
            continue
        os.chmod(name, 0o700, dir_fd=folder_fd)  # its owner may have locked itself out
        below = os.open(name, _FOLDER, dir_fd=folder_fd)
        try:
            _remove_all(below, left, deeper - 1)
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=folder_fd)


@contextlib.contextmanager
def _parent(folder_fd: int, names: tuple[str, ...], *, create: bool, owner: int | None) -> Iterator[int]:
    if not names:
        raise OSError(errno.EISDIR, "is a folder")
    current = os.dup(folder_fd)
    try:
        for name in names[:-1]:
            try:
                below = os.open(name, _FOLDER, dir_fd=current)
            except FileNotFoundError:
                if not create:
                    raise
                os.mkdir(name, 0o755, dir_fd=current)
                below = os.open(name, _FOLDER, dir_fd=current)
                if owner is not None:
                    os.fchown(below, owner, owner)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


@contextlib.contextmanager
def _named(names: tuple[str, ...]) -> Iterator[None]:
    try:
        yield
    except SandboxFileError:
        raise
    except OSError as error:
        why = "is, or lies behind, a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise SandboxFileError(error.errno, f"{'/'.join(names) or '.'}: {why}") from error
