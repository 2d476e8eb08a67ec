"""The header of one GGUF file: reading it strictly and in bounded memory, and writing it with the `gguf` package.

The format (ggml, docs/gguf.md, versions 2 and 3, little-endian): `GGUF`, version, number of tensors, number of metadata
entries; the entries (key, type, value); for every tensor its name, dimensions (fastest first), type and offset;
padding; the data, every tensor at a multiple of `general.alignment`. Strings are a length and UTF-8.

`gguf.GGUFReader` is not used for reading: it maps the file and keeps an array for each token of a vocabulary (160 MB
and seconds for a model of 135 M parameters), and a length that lies makes it read on. Like ggml's own reader, this one
refuses duplicate keys and names, nested arrays, tensors that do not lie back to back in the order of their entries,
and rows that are no whole blocks.
"""

import math
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import SourceError
from pipeline.tensors.spec import TensorSpec
from plugins.formats.common.boxes import read_bytes
from plugins.formats.common.leafspecs import LARGEST
from plugins.formats.gguf.types import GGML, NAMES, PLAIN, stored_shape

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # GGUF_DEFAULT_ALIGNMENT
MAX_HEADER_NBYTES = 100_000_000  # vocabularies take about 10 MB; Python's objects some times what the file does
MAX_KEY_NBYTES = 65535  # docs/gguf.md
MAX_DIMS = 4  # GGML_MAX_DIMS
WINDOW_NBYTES = 1 << 20

# gguf_type of ggml: name ← number, and how struct and NumPy call the fixed-size ones.
VALUE_TYPES = {
    0: "uint8", 1: "int8", 2: "uint16", 3: "int16", 4: "uint32", 5: "int32", 6: "float32", 7: "bool", 8: "string",
    9: "array", 10: "uint64", 11: "int64", 12: "float64",
}  # fmt: skip
FIXED = {
    "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i", "float32": "f", "bool": "B",
    "uint64": "Q", "int64": "q", "float64": "d",
}  # fmt: skip

KV = Mapping[str, tuple[str, Any]]
"""Metadata: key → (type, value); the type of an array is `array:` and that of its items."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says.

    Attributes:
        kv: the metadata, in file order.
        tensors: name → (spec of the leaf, first byte in the file), in file order; block types are U8, rows in bytes.
        types: name → ggml type.
    """

    kv: KV
    tensors: Mapping[str, tuple[TensorSpec, int]]
    types: Mapping[str, str]


def read_header(fd: int, path: Path) -> Header:
    """Read and check the header of an open file; reads no data.

    Raises:
        SourceError: names the file, the byte or the tensor, and what is wrong.
    """
    cursor = _Cursor(fd, path)
    if (magic := cursor.take(4)) != MAGIC:
        raise SourceError(f"{path}: begins with {bytes(magic)!r}, not with {MAGIC!r}: no GGUF file")
    version = cursor.number("uint32")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        what = "big-endian, which is not supported" if swapped else f"of version {version}; 2 and 3 are supported"
        raise SourceError(f"{path}: GGUF file {what}")
    tensor_count, kv_count = cursor.number("uint64"), cursor.number("uint64")
    cursor.expect(kv_count, 13, "metadata entries")  # key length, type and one byte of value
    cursor.expect(tensor_count, 24, "tensors")  # name length, dimensions, type, offset
    kv = _metadata(cursor, kv_count)
    entries = [_entry(cursor) for _ in range(tensor_count)]
    kind, alignment = kv.get("general.alignment", ("uint32", ALIGNMENT))
    if kind != "uint32" or alignment < 1 or alignment & (alignment - 1):
        raise SourceError(f"{path}: general.alignment is {kind} {alignment!r:.40}; a uint32 power of two is expected")
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, tuple[TensorSpec, int]] = {}
    types: dict[str, str] = {}
    end, before = 0, "the start of the data"
    for name, type_name, spec, offset in entries:
        where = f"{path}: tensor {name!r:.200}"
        if name in tensors:
            raise SourceError(f"{where} is there twice")
        if offset != end:
            what = f"overlaps {before}" if offset < end else f"leaves a gap after {before}"
            raise SourceError(f"{where} {what}: it begins at data byte {offset}, expected {end}")
        if start + offset + spec.nbytes > cursor.file_nbytes:
            raise SourceError(
                f"{where} of {type_name}{list(spec.shape)} is cut short: its {spec.nbytes} bytes begin at byte "
                f"{start + offset} of a file of {cursor.file_nbytes}"
            )
        tensors[name], types[name] = (spec, start + offset), type_name
        end, before = offset + -(-spec.nbytes // alignment) * alignment, f"tensor {name!r:.200}"
    return Header(kv, tensors, types)


def header_bytes(kv: KV, tensors: Mapping[str, tuple[str, TensorSpec]]) -> bytes:
    """Header of a file with data that begins right after it; `tensors` gives each leaf's ggml type and spec.

    Alignment is 32, and leaves lie in the order given, each padded to it.
    """
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

    with tempfile.TemporaryDirectory(prefix="gguf-header-") as folder:
        path = Path(folder) / "header"
        writer = GGUFWriter(path, kv["general.architecture"][1])
        for key, (kind, value) in kv.items():
            if key == "general.architecture":  # the writer has put it in front
                continue
            outer, _, inner = kind.partition(":")
            sub = GGUFValueType[inner.upper()] if inner else None
            writer.add_key_value(key, value, GGUFValueType[outer.upper()], sub)
        for name, (type_name, spec) in tensors.items():
            number = GGMLQuantizationType(GGML[type_name].number)
            writer.add_tensor_info(name, spec.shape, _writer_dtype(spec), spec.nbytes, number)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        header = path.read_bytes()
    return header + bytes(-len(header) % ALIGNMENT)


def _writer_dtype(spec: TensorSpec) -> Any:
    """uint8 tells the writer that the last dimension is in bytes."""
    return np.dtype(np.uint8 if spec.dtype == "U8" else np.float32)


def _metadata(cursor: "_Cursor", count: int) -> dict[str, tuple[str, Any]]:
    kv: dict[str, tuple[str, Any]] = {}
    for _ in range(count):
        key = cursor.string("metadata key", MAX_KEY_NBYTES)
        if key in kv:
            raise SourceError(f"{cursor.path}: metadata key {key!r:.200} is there twice")
        cursor.what = f"metadata {key!r:.200}"
        kind = cursor.value_type()
        if kind == "array":
            inner = cursor.value_type()
            if inner == "array":
                raise SourceError(
                    f"{cursor.path}: {cursor.what} is an array of arrays, which ggml does not read either"
                )
            kv[key] = (f"array:{inner}", cursor.values(inner, cursor.number("uint64")))
        else:
            kv[key] = (kind, cursor.values(kind, 1)[0])
    return kv


def _entry(cursor: "_Cursor") -> tuple[str, str, TensorSpec, int]:
    """(name, ggml type, leaf spec, offset in the data)."""
    cursor.what = "tensor entries"
    name = cursor.string("tensor name", MAX_KEY_NBYTES)
    cursor.what = where = f"tensor {name!r:.200}"
    dims = cursor.number("uint32")
    if dims > MAX_DIMS:
        raise SourceError(f"{cursor.path}: {where} has {dims} dimensions; at most {MAX_DIMS} are allowed")
    shape = tuple(cursor.number("uint64") for _ in range(dims))[::-1]
    number, offset = cursor.number("uint32"), cursor.number("uint64")
    if number not in NAMES:
        raise SourceError(f"{cursor.path}: {where} has type {number}, which no ggml type known here has")
    kind = NAMES[number]
    if math.prod(d or 1 for d in shape) * GGML[kind].nbytes > LARGEST:
        raise SourceError(f"{cursor.path}: {where}: shape {list(shape)!r:.80} overflows the size of any file")
    try:
        spec = TensorSpec(stored_shape(kind, shape), kind if kind in PLAIN else "U8")
    except ValueError as why:
        raise SourceError(f"{cursor.path}: {where}: {why}") from None
    return name, kind, spec, offset


class _Cursor:
    """Reads a header from front to back through a small window. `what` is being read, for messages."""

    def __init__(self, fd: int, path: Path):
        self.fd, self.path, self.what = fd, path, "header"
        self.file_nbytes = os.fstat(fd).st_size
        self.at = 0
        self._window, self._start = memoryview(b""), 0

    def take(self, n: int) -> memoryview:
        """The next `n` bytes."""
        if n > self.file_nbytes - self.at:
            raise SourceError(
                f"{self.path}: {self.what} at byte {self.at} needs {n} bytes, of which the file has "
                f"{self.file_nbytes - self.at}"
            )
        if self.at + n > MAX_HEADER_NBYTES:
            raise SourceError(f"{self.path}: {self.what}: header of more than {MAX_HEADER_NBYTES:,} bytes")
        begin = self.at - self._start
        if begin + n > len(self._window):
            size = min(max(n, WINDOW_NBYTES), self.file_nbytes - self.at)
            self._window, self._start, begin = memoryview(bytearray(size)), self.at, 0
            read_bytes(self.fd, self.at, self._window, f"{self.path}: {self.what}")
        self.at += n
        return self._window[begin : begin + n]

    def expect(self, count: int, least: int, what: str) -> None:
        """Refuse a count of things, of `least` bytes each, that the file cannot hold."""
        if count * least > self.file_nbytes - self.at:
            raise SourceError(f"{self.path}: states {count} {what}, too many for a file of {self.file_nbytes} bytes")

    def number(self, kind: str) -> int:
        return int.from_bytes(self.take(struct.calcsize("<" + FIXED[kind])), "little")

    def value_type(self) -> str:
        number = self.number("uint32")
        if number not in VALUE_TYPES:
            raise SourceError(f"{self.path}: {self.what} has value type {number}; 0 to {max(VALUE_TYPES)} are known")
        return VALUE_TYPES[number]

    def string(self, what: str, most: int = MAX_HEADER_NBYTES) -> str:
        n = self.number("uint64")
        if n > most:
            raise SourceError(f"{self.path}: {what} before byte {self.at} of {n} bytes; at most {most:,} are allowed")
        raw = self.take(n)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as why:
            raise SourceError(f"{self.path}: {what} at byte {self.at - n} is not UTF-8: {why.reason}") from None

    def values(self, kind: str, count: int) -> list[Any]:
        """`count` values of a type that is not an array."""
        if kind == "string":
            self.expect(count, 8, f"strings ({self.what})")
            return [self.string(self.what) for _ in range(count)]
        size = struct.calcsize("<" + FIXED[kind])
        raw: Any = np.frombuffer(self.take(count * size), f"<{FIXED[kind]}")
        if kind != "bool":
            return list(raw.tolist())
        if raw.size and raw.max() > 1:
            raise SourceError(f"{self.path}: {self.what} is bool and holds {raw.max()}; 0 and 1 are allowed")
        return [bool(v) for v in raw]
