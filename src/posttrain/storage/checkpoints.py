"""Checkpoints that load right or not at all.

Layout: `step-000012/` holds the files and `manifest.json`, which carries the `Checkpoint` (with the SHA-256 of every
file) and a hash of itself. A checkpoint is written as a temporary folder, flushed, and renamed into place.

Invariants: a folder named `step-*` was written to its end; one whose hashes do not match (a disk that rots, a hand that
edited) is never handed out: `latest` falls back to the one before and says so. Killing the writer at any moment costs
at most the checkpoint it was writing. Disk use is bounded by `keep + 1` checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from posttrain.records import Checkpoint
from posttrain.storage.atomic import explained, flush, remove, removed_on_error, sweep, temporary_beside

MANIFEST = "manifest.json"
_REPLACED = ".replaced"


class CheckpointStore:
    """The checkpoints of one run, in `folder`.

    One process at a time calls `save` and `latest` (`RunFolder` sees to that); `load` and `steps` only read.

    warn: is told, in one line, when a damaged checkpoint was passed over.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self._warn = warn or logging.getLogger("posttrain.storage").warning

    def save(
        self, step: int, files: Mapping[str, Callable[[Path], object]], meta: Checkpoint, keep: int = 2
    ) -> Checkpoint:
        """Writes a checkpoint and returns it with the hashes of its files; then removes all but the newest `keep`.

        step: the run's next step; checkpoints of later steps are of a future that is not going to happen, and are
        removed. files: relative path -> a function that writes the file at the path it is given. Raises StorageError
        on a full disk: nothing of this checkpoint is left then, and the ones before are whole.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}: at least one checkpoint has to stay")
        for name in files:
            _check_name(name)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._tidy()
        place = self._place(step)
        temporary = temporary_beside(place)
        before = self.steps()
        intact = f"the checkpoint of step {before[-1]} is intact" if before else "nothing was left behind"
        with removed_on_error(temporary), explained(place, temporary, None, intact):
            checkpoint = _write(temporary, files, replace(meta, step=step))
            flush(self.folder)
            for later in before:
                if later > step:
                    self._discard(later)
            self._put(temporary, place)
        for old in self.steps()[:-keep]:
            self._discard(old)
        return checkpoint

    def latest(self) -> tuple[Checkpoint, Path] | None:
        """The newest whole checkpoint and its folder; None where there is none."""
        if self.folder.is_dir():
            self._restore()
        for step in reversed(self.steps()):
            try:
                return self.load(step)
            except ValueError as error:
                self._warn(f"{error}; going back to the checkpoint before it")
        return None

    def load(self, step: int) -> tuple[Checkpoint, Path]:
        """The checkpoint of `step`, every hash verified, and its folder. ValueError where it is damaged or missing."""
        place = self._place(step)
        if not place.is_dir():
            raise ValueError(
                f"no checkpoint of step {step} in {self.folder}: there are those of {self.steps() or 'none'}"
            )
        try:
            checkpoint = _read_manifest(place)
            _verify(place, checkpoint)
            if checkpoint.step != step:
                raise ValueError(f"it is of step {checkpoint.step}")
        except (ValueError, OSError) as error:
            raise ValueError(f"the checkpoint {place} is damaged: {error}") from error
        return checkpoint, place

    def steps(self) -> list[int]:
        """Steps that have a checkpoint, ascending."""
        if not self.folder.is_dir():
            return []
        found = (re.fullmatch(r"step-(\d{6,})", entry.name) for entry in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _place(self, step: int) -> Path:
        if step < 0:
            raise ValueError(f"step {step}: steps count from 0")
        return self.folder / f"step-{step:06d}"

    def _put(self, temporary: Path, place: Path) -> None:
        """Renames into place. A folder can not be renamed over another, so the old one steps aside under a name from
        which `_restore` brings it back if the process dies in between."""
        aside = place.with_name(f".{place.name}{_REPLACED}")
        if place.exists():
            place.rename(aside)
        temporary.rename(place)
        flush(self.folder)
        remove(aside)

    def _restore(self) -> None:
        for aside in self.folder.glob(f".step-*{_REPLACED}"):
            place = self.folder / aside.name[1 : -len(_REPLACED)]
            if place.exists():
                remove(aside)
            else:
                aside.rename(place)

    def _tidy(self) -> None:
        self._restore()
        sweep(self.folder)

    def _discard(self, step: int) -> None:
        """Removes a checkpoint by way of a temporary name, so that one removed by half is no checkpoint."""
        place = self._place(step)
        leaving = temporary_beside(place)
        place.rename(leaving)
        remove(leaving)


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or name == MANIFEST:
        raise ValueError(
            f"{name!r} can not be a file of a checkpoint: a relative path inside it, other than {MANIFEST}"
        )


def _write(folder: Path, files: Mapping[str, Callable[[Path], object]], meta: Checkpoint) -> Checkpoint:
    folder.mkdir()
    folders = {folder}
    hashes = {}
    for name, write in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        folders.update(parent for parent in path.parents if parent.is_relative_to(folder))
        write(path)
        flush(path)
        hashes[name] = _sha256(path)
    checkpoint = replace(meta, files=hashes)
    manifest = {"checkpoint": checkpoint.to_json(), "sha256": _sha256_of_json(checkpoint.to_json())}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    flush(folder / MANIFEST)
    for inner in folders:
        flush(inner)
    return checkpoint


def _read_manifest(folder: Path) -> Checkpoint:
    value: Any = json.loads((folder / MANIFEST).read_bytes())
    if not isinstance(value, dict) or _sha256_of_json(value.get("checkpoint")) != value.get("sha256"):
        raise ValueError(f"{MANIFEST} is not what was written")
    return Checkpoint.from_json(value["checkpoint"])


def _verify(folder: Path, checkpoint: Checkpoint) -> None:
    for name, expected in checkpoint.files.items():
        if _sha256(folder / name) != expected:
            raise ValueError(f"{name} is not what was written")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256_of_json(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
