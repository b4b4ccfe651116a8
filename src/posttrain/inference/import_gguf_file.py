"""A bounded reader of GGUF files: metadata and tensor table first, tensor rows on demand.

Why not the reader of the `gguf` package: it trusts every length in the file and keeps one numpy view for each element
of each array (49,152 tokens = seconds). Here nothing is read before its length was compared with the bytes that are
left, so a truncated, foreign or hostile file is one `ModelSourceError`, and no length in the file can cause an
allocation larger than the file allows. Dequantisation is the package's own (`gguf.quants`).

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from posttrain.inference.import_errors import ModelSourceError

MAX_ENTRIES = 100_000  # metadata keys or tensors; the largest published files have about 2,000
MAX_ARRAY = 4_000_000  # elements of one metadata array; the largest vocabulary in use has about 300,000
MAX_DIMENSIONS = 4  # of a tensor, by the format
CHUNK_BYTES = 32 << 20  # float32 bytes dequantised at once: bounds the memory of an import
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. shape: rows first (numpy order). kind: ggml type name. offset, nbytes: position in the file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int


class GgufFile:
    """An open GGUF file.

    `metadata`: key -> scalar, string, list of strings, or numpy array. `tensors`: name -> TensorInfo.
    """

    def __init__(self, path: Path, *, name: str | None = None) -> None:
        """name: what error messages call the file (its path where None). Raises ModelSourceError."""
        self.name = name or str(path)
        try:
            with path.open("rb") as handle:
                self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelSourceError(
                f"{self.name}: can not be read ({error.strerror}); check the path and its permissions"
            ) from error
        except ValueError as error:
            raise ModelSourceError(f"{self.name}: the file is empty; download it again") from error
        self._at = 0
        try:
            self._read_header()
        except BaseException:  # also a Ctrl-C: the map must not stay open
            self._map.close()
            raise

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BufferError):  # an array still looks into the map: it closes when the last one goes
            self._map.close()

    def rows(self, name: str, order: NDArray[np.int64] | None = None) -> Iterator[NDArray[np.float32]]:
        """The tensor in float32, in chunks [rows, columns] of `CHUNK_BYTES` at most; order permutes rows, [rows]."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        info = self.tensors[name]
        columns = info.shape[-1]
        count = math.prod(info.shape[:-1])
        kind = GGMLQuantizationType[info.kind]
        raw = np.frombuffer(self._map, dtype=np.uint8, count=info.nbytes, offset=info.offset).reshape(count, -1)
        step = max(1, CHUNK_BYTES // (4 * columns))
        for start in range(0, count, step):
            chunk = raw[start : start + step] if order is None else raw[order[start : start + step]]
            if kind is GGMLQuantizationType.F32:
                yield np.ascontiguousarray(chunk).view(np.float32)
            elif kind is GGMLQuantizationType.F16:
                yield np.ascontiguousarray(chunk).view(np.float16).astype(np.float32)
            else:
                yield np.asarray(dequantize(chunk, kind), dtype=np.float32).reshape(-1, columns)

    def _fail(self, what: str) -> ModelSourceError:
        return ModelSourceError(f"{self.name}: {what}; download the file again")

    def _take(self, nbytes: int, what: str) -> bytes:
        if nbytes > len(self._map) - self._at:
            raise self._fail(f"not a whole GGUF file: {what} ends after the end of the file ({len(self._map)} bytes)")
        self._at += nbytes
        return self._map[self._at - nbytes : self._at]

    def _number(self, code: str, what: str) -> int:
        return int(struct.unpack(code, self._take(struct.calcsize(code), what))[0])

    def _string(self, what: str) -> str:
        raw = self._take(self._number("<Q", what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fail(f"{what} is not UTF-8") from error

    def _read_header(self) -> None:
        if self._map[:4] != b"GGUF":
            raise ModelSourceError(
                f"{self.name}: not a GGUF file (it starts with {self._map[:4]!r}); give a file that ends in .gguf"
            )
        self._at = 4
        version = self._number("<I", "the version")
        if version not in (2, 3):
            if int.from_bytes(version.to_bytes(4, "big"), "little") in (2, 3):
                raise ModelSourceError(
                    f"{self.name}: a big-endian GGUF file; convert it to little-endian with gguf-convert-endian"
                )
            raise ModelSourceError(f"{self.name}: GGUF version {version}; versions 2 and 3 are supported")
        tensor_count, key_count = self._number("<Q", "the tensor count"), self._number("<Q", "the key count")
        if max(tensor_count, key_count) > MAX_ENTRIES:
            raise self._fail(f"{tensor_count} tensors and {key_count} keys are not believable")
        self.metadata: dict[str, Any] = {}
        for _ in range(key_count):
            key = self._string("a metadata key")
            self.metadata[key] = self._value(self._number("<I", f"the type of {key!r:.80}"), f"metadata {key!r:.80}")
        self._read_tensor_table(tensor_count)

    def _value(self, kind: int, what: str) -> Any:
        if kind == _STRING:
            return self._string(what)
        if kind == _ARRAY:
            return self._array(what)
        if kind not in _SCALARS:
            raise self._fail(f"{what} has the unknown type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(dtype.itemsize, what), dtype=dtype)[0].item()

    def _array(self, what: str) -> Any:
        kind, count = self._number("<I", what), self._number("<Q", what)
        if count > MAX_ARRAY:
            raise self._fail(f"{what} has {count} elements, more than {MAX_ARRAY}")
        if kind == _STRING:
            return [self._string(what) for _ in range(count)]
        if kind not in _SCALARS:
            raise self._fail(f"{what} is an array of the unsupported type {kind}")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize, what), dtype=dtype)

    def _read_tensor_table(self, count: int) -> None:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        table: list[tuple[str, tuple[int, ...], GGMLQuantizationType, int]] = []
        for _ in range(count):
            name = self._string("a tensor name")
            dimensions = self._number("<I", f"tensor {name!r:.80}")
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise self._fail(f"tensor {name!r:.80} has {dimensions} dimensions")
            shape = tuple(self._number("<Q", f"tensor {name!r:.80}") for _ in range(dimensions))[::-1]
            code, offset = self._number("<I", f"tensor {name!r:.80}"), self._number("<Q", f"tensor {name!r:.80}")
            try:
                table.append((name, shape, GGMLQuantizationType(code), offset))
            except ValueError as error:
                raise ModelSourceError(
                    f"{self.name}: tensor {name!r:.80} has the unknown type {code}; use another quantisation"
                ) from error
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise self._fail(f"general.alignment is {alignment!r:.40}")
        start = -(-self._at // alignment) * alignment
        self.tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in table:
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if min(shape) < 1 or shape[-1] % block:
                raise self._fail(f"tensor {name!r:.80} of shape {shape} can not be {kind.name}")
            nbytes = math.prod(shape) // block * block_bytes
            if start + offset + nbytes > len(self._map):
                raise self._fail(
                    f"not a whole GGUF file: tensor {name!r:.80} ends after the end of the file "
                    f"({len(self._map)} bytes)"
                )
            if name in self.tensors:
                raise self._fail(f"tensor {name!r:.80} stands twice")
            self.tensors[name] = TensorInfo(name, shape, kind.name, start + offset, nbytes)
