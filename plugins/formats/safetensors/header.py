"""The header of one safetensors file: reading it as strictly as the format demands, and writing it.

The format (safetensors README, "Format"): 8 bytes little-endian N; N bytes of UTF-8 JSON that begin with `{` and may
end in spaces; then the data. Offsets count from the data's first byte; the tensors together cover every byte once.

Where the text is silent and the `safetensors` package accepts, this reader refuses what cannot be read in only one way:
duplicate keys, unknown fields, a tensor given as a JSON array, white space before `{` or other than spaces after `}`,
`__metadata__: null`, and shapes that NumPy cannot hold: of more than 64 dimensions, or beyond 2^63 - 1 bytes where a
zero dimension hides it.
"""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError, did_you_mean
from pipeline.strictjson import parse_object
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from plugins.formats.common.boxes import read_bytes
from plugins.formats.common.leafspecs import LARGEST, MAX_DIMS, is_count

LENGTH_NBYTES = 8
MAX_HEADER_NBYTES = 100_000_000  # safetensors 0.8, `MAX_HEADER_SIZE`
METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says.

    Attributes:
        metadata: `__metadata__`, or empty.
        tensors: name → (spec, first byte in the file), in file order.
    """

    metadata: Mapping[str, str]
    tensors: Mapping[str, tuple[TensorSpec, int]]


def read_header(fd: int, path: Path) -> Header:
    """Read and check the header of an open file; reads no data.

    Raises:
        SourceError: names the file, the tensor where there is one, and what is wrong.
    """
    file_nbytes = os.fstat(fd).st_size
    if file_nbytes < LENGTH_NBYTES:
        raise SourceError(f"{path}: {file_nbytes} bytes are too few for a safetensors file (the length alone takes 8)")
    head = bytearray(LENGTH_NBYTES)
    read_bytes(fd, 0, memoryview(head), f"{path}: header length")
    n = int.from_bytes(head, "little")
    if n > MAX_HEADER_NBYTES:
        raise SourceError(f"{path}: header of {n:,} bytes; at most {MAX_HEADER_NBYTES:,} are allowed")
    if n > file_nbytes - LENGTH_NBYTES:
        raise SourceError(f"{path}: header of {n:,} bytes does not fit in a file of {file_nbytes:,} bytes")
    raw = bytearray(n)
    read_bytes(fd, LENGTH_NBYTES, memoryview(raw), f"{path}: header")
    return parse_header(bytes(raw), file_nbytes - LENGTH_NBYTES - n, path)


def parse_header(raw: bytes, data_nbytes: int, path: Path) -> Header:
    """Check header bytes `raw` of a file that has `data_nbytes` after them.

    Raises:
        SourceError: as `read_header`.
    """
    if raw[:1] != b"{":
        raise SourceError(f"{path}: header begins with {raw[:1]!r}, not with '{{'")
    if raw.rstrip(b" ")[-1:] != b"}":
        raise SourceError(f"{path}: header ends with {raw.rstrip(b' ')[-1:]!r}; only spaces may follow its '}}'")
    table = parse_object(raw, f"{path}: header")
    metadata = table.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SourceError(f"{path}: {METADATA} must map strings to strings")
    found = []
    for name, entry in table.items():
        try:
            found.append((*_offsets(entry), name, _spec(entry)))
        except ValueError as e:
            raise SourceError(f"{path}: tensor {name!r:.200}: {e}") from None
    found.sort(key=lambda t: t[:2])
    tensors = {}
    data_start, end, before = LENGTH_NBYTES + len(raw), 0, "the start of the data"
    for begin, stop, name, spec in found:
        if begin != end:
            what = f"overlaps {before}" if begin < end else f"leaves {begin - end} bytes unindexed after {before}"
            raise SourceError(f"{path}: tensor {name!r:.200} {what}: it begins at data byte {begin}, expected {end}")
        bits = spec.size * DTYPE_BITS[spec.dtype]
        if bits != (stop - begin) * 8:
            raise SourceError(
                f"{path}: tensor {name!r:.200} of {spec.dtype}{list(spec.shape)} takes {_amount(bits)}, "
                f"its data_offsets [{begin}, {stop}] span {stop - begin} bytes"
            )
        tensors[name] = (spec, data_start + begin)
        end, before = stop, f"tensor {name!r:.200}"
    if end != data_nbytes:
        what = f"{data_nbytes - end} bytes follow the last tensor" if end < data_nbytes else "the data is cut short"
        raise SourceError(f"{path}: {what}: the header indexes {end} data bytes, the file has {data_nbytes}")
    return Header(metadata, tensors)


def entry_json(name: str, spec: TensorSpec, begin: int) -> bytes:
    """One tensor's line of a header, for data at bytes `begin` on."""
    shape = ",".join(map(str, spec.shape))  # `json.dumps` takes three times as long, and a model has a million of them
    ends = f"{begin},{begin + spec.nbytes}"
    return f'{encode_basestring(name)}:{{"dtype":"{spec.dtype}","shape":[{shape}],"data_offsets":[{ends}]}}'.encode()


def metadata_json(metadata: Mapping[str, str]) -> bytes:
    return f"{_dumps(METADATA)}:{_dumps(dict(metadata))}".encode()


def header_bytes(entries: Iterable[bytes]) -> bytes:
    """Length and header of a file, padded with spaces so that the data begins at a multiple of 8."""
    text = b"{" + b",".join(entries) + b"}"
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_NBYTES, "little") + text


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _amount(bits: int) -> str:
    return f"{bits // 8} bytes" if bits % 8 == 0 else f"{bits} bits, which do not fill whole bytes,"


def _offsets(entry: Any) -> tuple[int, int]:
    if not isinstance(entry, dict) or set(entry) != set(FIELDS):
        got = f"fields {', '.join(entry) or 'none':.80}" if isinstance(entry, dict) else type(entry).__name__
        raise ValueError(f"must have exactly the fields {', '.join(FIELDS)}; got {got}")
    offsets = entry["data_offsets"]
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_count, offsets)):
        raise ValueError(f"data_offsets must be two non-negative integers, got {offsets!r:.80}")
    if offsets[0] > offsets[1]:
        raise ValueError(f"data_offsets {offsets} end before they begin")
    return offsets[0], offsets[1]


def _spec(entry: Mapping[str, Any]) -> TensorSpec:
    shape, dtype = entry["shape"], entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise ValueError(f"dtype {dtype!r:.80} is unknown{did_you_mean(str(dtype)[:80], DTYPE_BITS, 30)}")
    if not isinstance(shape, list) or not all(map(is_count, shape)):
        raise ValueError(f"shape must be a list of non-negative integers, got {shape!r:.80}")
    if len(shape) > MAX_DIMS:
        raise ValueError(f"{len(shape)} dimensions; at most {MAX_DIMS} are supported")
    if math.prod(d or 1 for d in shape) * DTYPE_BITS[dtype] // 8 > LARGEST:
        raise ValueError(f"shape {shape!r:.80} overflows the size of any file")
    return _of(tuple(shape), dtype)


@lru_cache(maxsize=4096)
def _of(shape: tuple[int, ...], dtype: str) -> TensorSpec:
    """Layers are alike, and a million tensors need no million specs."""
    return TensorSpec(shape, dtype)
