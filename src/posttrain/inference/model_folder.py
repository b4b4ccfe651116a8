"""An imported model: a Hugging Face folder and a manifest that says what it must hold.

Invariants: a folder without a whole manifest does not exist for anybody (the manifest is written last, and the folder
renamed into place); `checksum` names the weights and nothing else, so it is the same on every machine. Opening compares
sizes and times; only a file whose time changed, or `verify=True`, is hashed.
Bounds: loading reads each tensor once into memory of its own: a map would keep the whole file resident, and faulting
its pages in was measured 5 times slower than reading (0.5 GB: 2.6 s against 0.5 s).
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.import_resources import require_memory
from posttrain.inference.import_safetensors import TensorSpan, read_header

if TYPE_CHECKING:
    import torch

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
_READ_BYTES = 8 << 20
_MAX_JSON_BYTES = 64 << 20  # the largest tokenizer in use has 17 MB


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that is ready to load. path: the Hugging Face folder. entry: where its manifest is (path, or the cache).

    checksum: SHA-256 (hex) over the names and hashes of the weight files. dtype: of the stored weights, in torch's
    words.
    """

    path: Path
    entry: Path
    config: dict[str, Any]
    checksum: str
    parameter_count: int
    dtype: str
    source: str

    @classmethod
    def open(cls, entry: Path, *, verify: bool = False) -> ModelFolder:
        """Reads an entry of the cache. Raises ModelSourceError where it is not whole. verify: hash every file again."""
        manifest = _manifest(entry)
        path = Path(manifest["location"]) if manifest["location"] else entry
        changed = False
        for name, record in manifest["files"].items():
            file = path / name
            try:
                found = file.stat()
            except OSError:
                raise ModelSourceError(f"{file}: is missing; import {manifest['source']} again with --force") from None
            touched = found.st_mtime_ns != record["mtime_ns"]
            if found.st_size != record["bytes"] or ((verify or touched) and sha256_file(file) != record["sha256"]):
                raise ModelSourceError(
                    f"{file}: is not what was imported; import {manifest['source']} again with --force"
                )
            if touched:  # the same bytes, copied or touched: remember, so that the next start does not hash again
                record["mtime_ns"] = found.st_mtime_ns
                changed = True
        if changed and os.access(entry, os.W_OK):
            write_json(entry / MANIFEST, manifest)
        return cls(
            path=path,
            entry=entry,
            config=read_json(path / "config.json"),
            checksum=manifest["checksum"],
            parameter_count=manifest["parameter_count"],
            dtype=manifest["dtype"],
            source=manifest["source"],
        )

    def load_state(self) -> dict[str, torch.Tensor]:
        """Hugging Face names -> tensors on the CPU, each in memory of its own, in the dtype of the folder."""
        import torch

        dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        spans = {file: read_header(self.path / file) for file in weight_files(self.path)}
        require_memory(sum(s.end - s.start for f in spans.values() for s in f), f"loading {self.source}")
        state: dict[str, torch.Tensor] = {}
        for file, tensors in spans.items():
            with (self.path / file).open("rb", buffering=0) as handle:
                for span in sorted(tensors, key=lambda s: s.start):
                    tensor = torch.empty(span.shape, dtype=dtypes[span.dtype])
                    if tensor.numel():
                        handle.seek(span.start)
                        _fill(handle.readinto, tensor.view(-1).view(torch.uint8).numpy().data, self.path / file)
                    state[span.name] = tensor
        return state


def list_models(cache: Path) -> list[ModelFolder]:
    """Every whole model of a cache folder, by name; what is not whole is left out."""
    found = []
    for manifest in sorted(cache.glob(f"models/*/{MANIFEST}")):
        if manifest.parent.name.startswith("."):
            continue
        try:
            found.append(ModelFolder.open(manifest.parent))
        except ModelSourceError:
            continue  # an entry that is not whole does not exist
    return found


def weight_files(path: Path) -> list[str]:
    """Names of the safetensors files of a Hugging Face folder, by its index where it is sharded."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        if (path / "model.safetensors").exists():
            return ["model.safetensors"]
        raise ModelSourceError(
            f"{path}: holds no model.safetensors; save the model with save_pretrained(..., safe_serialization=True)"
        )
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise ModelSourceError(f"{index}: has no weight_map; download the folder again")
    names = sorted(set(map(str, shards.values())))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelSourceError(
                f"{index}: names {name!r:.80}, which is not a safetensors file beside it; download the folder again"
            )
        if not (path / name).exists():
            raise ModelSourceError(f"{path}: the shard {name} is missing; download the folder again")
    return names


def read_tensors(path: Path) -> list[TensorSpan]:
    """The tensors of a folder, from the headers of its files. Raises ModelSourceError where one stands twice."""
    spans = [span for file in weight_files(path) for span in read_header(path / file)]
    names = {span.name for span in spans}
    if len(names) != len(spans):
        raise ModelSourceError(
            f"{path}: {len(spans) - len(names)} tensors stand in two shards; download the folder again"
        )
    return spans


def write_manifest(
    entry: Path,
    *,
    source: str,
    origin: dict[str, int] | None,
    location: Path | None,
    files: Iterable[str],
    known: dict[str, str],
    tensors: list[TensorSpan],
    progress: Callable[[float], None] = lambda share: None,
) -> None:
    """Hashes the files of a folder and writes its manifest into `entry`, flushed to the disk.

    known: hashes already made.
    """
    path = location or entry
    sizes = {name: (path / name).stat() for name in sorted(files)}
    total, done, records = sum(s.st_size for s in sizes.values()) or 1, 0, {}
    for name, stat in sizes.items():
        digest = known.get(name) or sha256_file(path / name)
        records[name] = {"sha256": digest, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        done += stat.st_size
        progress(done / total)
    weights = "".join(f"{name} {records[name]['sha256']}\n" for name in sorted(weight_files(path)))
    kinds = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    largest = max(tensors, key=lambda s: s.end - s.start)
    manifest = {
        "format_version": FORMAT_VERSION,
        "source": source,
        "origin": origin,
        "location": str(location) if location else None,
        "checksum": hashlib.sha256(weights.encode()).hexdigest(),
        "dtype": kinds[largest.dtype],
        "parameter_count": sum(span.count for span in tensors),
        "imported_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": records,
    }
    write_json(entry / MANIFEST, manifest)


def sha256_file(path: Path) -> str:
    """SHA-256 (hex) of a file, read once."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelSourceError where the file is missing, too large, or not one."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelSourceError(f"{path}: is larger than {_MAX_JSON_BYTES >> 20} MiB; download the folder again")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelSourceError(
            f"{path}: can not be read ({error.strerror}); give a whole Hugging Face folder"
        ) from None
    except (ValueError, RecursionError):
        raise ModelSourceError(f"{path}: is not JSON; download the folder again") from None
    if not isinstance(value, dict):
        raise ModelSourceError(f"{path}: is not a JSON object; download the folder again")
    return value


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replaces a file as a whole: another process sees the old or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as handle:
        json.dump(value, handle, indent=2, ensure_ascii=False)
        handle.write("\n")
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


def _fill(readinto: Callable[[memoryview], int | None], view: memoryview, path: Path) -> None:
    done = 0
    while done < len(view):
        count = readinto(view[done:])
        if not count:
            raise ModelSourceError(f"{path}: became shorter while it was read; import the model again with --force")
        done += count


def _manifest(entry: Path) -> dict[str, Any]:
    value = read_json(entry / MANIFEST)
    if value.get("format_version") != FORMAT_VERSION:
        raise ModelSourceError(
            f"{entry}: manifest format {value.get('format_version')!r:.40}, this version reads "
            f"{FORMAT_VERSION}; import it again"
        )
    kinds = {
        "source": str,
        "checksum": str,
        "dtype": str,
        "parameter_count": int,
        "files": dict,
        "location": (str, type(None)),
    }
    for key, kind in kinds.items():
        if not isinstance(value.get(key), kind):  # type: ignore[arg-type]
            raise ModelSourceError(f"{entry}: the manifest lacks {key}; import the model again with --force")
    for name, record in value["files"].items():
        if (
            Path(name).name != name
            or not isinstance(record, dict)
            or not {"sha256", "bytes", "mtime_ns"} <= set(record)
        ):
            raise ModelSourceError(
                f"{entry}: the manifest's record of {name!r:.60} is damaged; import the model again with --force"
            )
    return value
