"""The folder of one run: whose recipe it is, which stages are done, and where everything lies. One process at a time.

    recipe.toml, recipe.json   what the user wrote, and the resolved values that must not change when a run goes on
    lock                       locked while a process works here; holds its process id
    stages/NAME.json           what a finished stage found out (durable: a stage that is marked is never run again)
    metrics.jsonl  trajectories/  checkpoints/  exports/  report.html  summary.json

Invariants: a folder belongs to one recipe for ever; the lock is the kernel's, so a killed process holds nothing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from posttrain.storage.atomic import TEMPORARY_SUFFIX, flush, sweep, write_atomic

STAGES = ("model", "eval_before", "diagnosis", "sft", "rl", "eval_after", "gate", "export")

_FORMAT_VERSION = 1
_SHOWN_DIFFERENCES = 3
_OWN_BEFORE_RECIPE = frozenset(("lock", "recipe.toml"))

# A POSIX lock does not stop its own process from opening the folder twice, and closing the second would release it.
_open_here: set[tuple[int, int]] = set()


class RunFolderError(ValueError):
    """This folder can not be used for this run; the message says what to do."""


class RunFolder:
    """A run's folder, made by `open` (to work in it) or `view` (to look only). Leaving it as a context unlocks it."""

    def __init__(self, path: Path, lock: int | None = None) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, fingerprint: Mapping[str, Any], recipe_toml: str) -> RunFolder:
        """Creates the folder or goes on in it, and locks it until `close`.

        fingerprint: the resolved recipe (JSON, nested) without what may change between starts. recipe_toml: the
        recipe as the user wrote it, kept for people. RunFolderError where the folder is another recipe's, another
        process works in it, or it holds something else.
        """
        path.mkdir(parents=True, exist_ok=True)
        lock = _acquire(path / "lock")
        run = cls(path, lock)
        try:
            run._claim(json.loads(json.dumps(fingerprint, allow_nan=False)), recipe_toml)
            for folder in (path, path / "stages", run.checkpoints, run.trajectories, run.exports):
                folder.mkdir(exist_ok=True)
                sweep(folder)
            flush(path)
            flush(path.absolute().parent)
        except BaseException:  # also a Ctrl-C: the lock must be let go
            run.close()
            raise
        return run

    @classmethod
    def view(cls, path: Path) -> RunFolder:
        """The folder for reading, without a lock (a run may be working in it). RunFolderError where it is none."""
        if not (path / "recipe.json").is_file():
            raise RunFolderError(f"{path} is not a run folder: it has no recipe.json")
        return cls(path)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The resolved recipe that this folder belongs to."""
        value = _read_json(self.path / "recipe.json")
        if not isinstance(value, dict) or value.get("format_version") != _FORMAT_VERSION:
            raise RunFolderError(
                f"{self.path} was made by another version of posttrain: use that one, or another folder"
            )
        fingerprint: dict[str, Any] = value["fingerprint"]
        return fingerprint

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def trajectories(self) -> Path:
        return self.path / "trajectories"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    def stage_done(self, name: str, payload: Any) -> None:
        """Marks a stage as done, durably; a second mark replaces the first. payload: what later stages need (JSON)."""
        path = self._stage_path(name)
        if self._lock is None:
            raise RunFolderError(f"{self.path} is open for reading only: a stage is marked by the run that does it")
        try:
            text = json.dumps({"stage": name, "payload": payload}, indent=1, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"what stage {name} found out is not JSON: {error}") from error
        write_atomic(path, text.encode())

    def done(self, name: str) -> bool:
        """Whether the stage is marked as done (its payload may be None)."""
        return self._stage_path(name).exists()

    def stage(self, name: str) -> Any:
        """The payload of a finished stage, None where it is not finished."""
        path = self._stage_path(name)
        return _read_json(path)["payload"] if path.exists() else None

    def close(self) -> None:
        """Unlocks the folder; a second call does nothing."""
        if self._lock is not None:
            _open_here.discard(_identity(self._lock))
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim(self, fingerprint: dict[str, Any], recipe_toml: str) -> None:
        recipe = self.path / "recipe.json"
        if recipe.exists():
            differences = list(_differences(self.fingerprint, fingerprint))
            if differences and not self._begun():
                self._stage_path("model").unlink(missing_ok=True)  # of a start that came to nothing: take the folder
                self._write_recipe(fingerprint, recipe_toml)
                return
            if differences:
                more = len(differences) - _SHOWN_DIFFERENCES
                shown = "; ".join(differences[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
                raise RunFolderError(
                    f"{self.path} belongs to another recipe ({shown}): choose another run folder, or undo the change"
                )
            return
        strangers = [entry.name for entry in self.path.iterdir() if not _ours(entry.name)]
        if strangers:
            raise RunFolderError(
                f"{self.path} holds other files ({', '.join(sorted(strangers)[:3])}): choose an empty or a new folder"
            )
        self._write_recipe(fingerprint, recipe_toml)

    def _begun(self) -> bool:
        """Whether more was done than to load the model: only then would a change of recipe spoil something."""
        results = [self.metrics, *self.trajectories.glob("*"), *self.checkpoints.glob("*")]
        return any(self.done(name) for name in STAGES if name != "model") or any(
            path.exists() and path.stat().st_size > 0 for path in results
        )

    def _write_recipe(self, fingerprint: dict[str, Any], recipe_toml: str) -> None:
        write_atomic(self.path / "recipe.toml", recipe_toml.encode())
        value = {"format_version": _FORMAT_VERSION, "fingerprint": fingerprint}
        write_atomic(self.path / "recipe.json", json.dumps(value, indent=1, sort_keys=True).encode())

    def _stage_path(self, name: str) -> Path:
        if name not in STAGES:
            raise ValueError(f"no stage {name!r}: the stages of a run are {', '.join(STAGES)}")
        return self.path / "stages" / f"{name}.json"


def _ours(name: str) -> bool:
    return name in _OWN_BEFORE_RECIPE or (name.startswith(".recipe.") and name.endswith(TEMPORARY_SUFFIX))


def _acquire(path: Path) -> int:
    """Locks the file for this process and writes its id into it; returns the descriptor that holds the lock."""
    # The kernel ties the lock to the process and drops it when any descriptor of the file closes: look before opening.
    if path.exists():
        status = path.stat()
        if (status.st_dev, status.st_ino) in _open_here:
            raise RunFolderError(f"{path.parent} is open in this process already: close it first")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise RunFolderError(
            f"{path.parent} is in use by another run (process {holder}): wait for it, stop it, or choose another folder"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()} on {os.uname().nodename}\n".encode(), 0)
    _open_here.add(_identity(descriptor))
    return descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(f"{path} is damaged ({error}): remove it to do that part again") from error


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`key is X there and Y here` for each value that differs, keys dotted, in the order of their names."""
    for key in sorted({*old, *new}):
        name = f"{prefix}{key}"
        there, here = old.get(key, _Absent), new.get(key, _Absent)
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            yield from _differences(there, here, f"{name}.")
        elif there != here:
            yield f"{name} is {_shown(there)} there and {_shown(here)} here"


class _Absent:
    """Stands for a key that is not set, which is something else than null."""


def _shown(value: Any) -> str:
    if value is _Absent:
        return "not set"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
