"""safetensors files: written as a stream (hashed on the way, memory of one chunk), headers read without trust.

Format: 8 bytes little-endian header length, JSON header (name -> dtype, shape, data_offsets), then the data.
https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from posttrain.inference.import_errors import ModelSourceError

BYTES = {"F32": 4, "BF16": 2, "F16": 2}
_MAX_HEADER_BYTES = 64 << 20  # the format allows 100 MB; the largest published ones have a few


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor to write. chunks: called once, gives float32 arrays that together hold the tensor in row order."""

    name: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[NDArray[np.float32]]]

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def write_safetensors(path: Path, plan: list[Planned], dtype: str, progress: Callable[[float], None]) -> str:
    """Writes and fsyncs the file; returns its SHA-256 (hex).

    progress: called with the share done, 0 to 1. Errors: OSError.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in plan:
        end = offset + tensor.count * BYTES[dtype]
        header[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the data starts aligned
    digest = hashlib.sha256()
    with path.open("wb") as handle:
        done = 0
        for block in (len(head).to_bytes(8, "little"), head):
            digest.update(block)
            handle.write(block)
        for tensor in plan:
            written = 0
            for chunk in tensor.chunks():
                raw = _encode(chunk, dtype).reshape(-1).view(np.uint8).data
                digest.update(raw)
                handle.write(raw)
                written += chunk.size
                progress((done + written) * BYTES[dtype] / max(offset, 1))
            assert written == tensor.count, (tensor.name, written, tensor.shape)
            done += written
        handle.flush()
        os.fsync(handle.fileno())
    return digest.hexdigest()


def _encode(values: NDArray[np.float32], dtype: str) -> NDArray[np.generic]:
    """Rounds to nearest, ties to even, as every float conversion of torch does."""
    values = np.ascontiguousarray(values)
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    bits = values.view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """Where a tensor lies in a file: bytes [start, end) from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> list[TensorSpan]:
    """The tensors of a file. Raises ModelSourceError where the header and the file's size do not agree."""
    again = "download it again"
    try:
        with path.open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ModelSourceError(
                    f"{path}: not a whole safetensors file ({size} bytes, header of {length}); {again}"
                )
            header = json.loads(handle.read(length))
    except OSError as error:
        raise ModelSourceError(f"{path}: can not be read ({error.strerror}); check its permissions") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ModelSourceError):
            raise
        raise ModelSourceError(f"{path}: not a safetensors file (its header is not JSON); {again}") from None
    if not isinstance(header, dict):
        raise ModelSourceError(f"{path}: not a safetensors file (its header is not an object); {again}")
    header.pop("__metadata__", None)
    return [_span(path, name, entry, 8 + length, size) for name, entry in header.items()]


def _span(path: Path, name: str, entry: object, base: int, size: int) -> TensorSpan:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
        numbers = (*shape, start, end)
        whole = all(type(n) is int and n >= 0 for n in numbers) and start <= end <= size - base
    except (TypeError, KeyError, ValueError):
        raise ModelSourceError(f"{path}: the record of tensor {name!r:.80} is damaged; download it again") from None
    if dtype not in BYTES:
        raise ModelSourceError(
            f"{path}: tensor {name!r:.80} is {dtype!r:.20}; supported are {', '.join(BYTES)}: save it in one of these"
        )
    if not whole or math.prod(shape) * BYTES[dtype] != end - start:
        raise ModelSourceError(f"{path}: tensor {name!r:.80} does not fit the file ({size} bytes); download it again")
    return TensorSpan(name, dtype, shape, base + start, base + end)
