"""The header of a .npy file, versions 1.0 and 2.0, parsed by a grammar instead of evaluated.

NumPy's "NEP 1 — A simple file format for NumPy arrays": magic, version, header length, then a Python literal of a dict
with exactly the keys descr, fortran_order and shape. Refused here: arrays of objects (they are pickles), big-endian and
structured arrays, strings, and Fortran order (a box of rows would not be contiguous; save the C-order array instead).
"""

import os
import re
from pathlib import Path

from pipeline.errors import SourceError, did_you_mean
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from plugins.formats.common.boxes import held_shape, read_bytes
from plugins.formats.common.leafspecs import MAX_DIMS

MAGIC = b"\x93NUMPY"
MAX_HEADER_NBYTES = 1 << 16
ALIGNMENT = 64
VOID = {8: "<V1", 16: "<V2"}  # what numpy.save writes for ml_dtypes; jax.numpy.load reads <V2 as bfloat16

_ENTRY = re.compile(
    r"""\s*(['"])(?P<key>descr|fortran_order|shape)\1\s*:\s*"""
    r"""(?:(['"])(?P<descr>[^'"\\]{1,40})\3|(?P<order>True|False)|\((?P<shape>[\d\s,]*)\))\s*(?P<end>,|(?=\}))"""
)
_VALUE = {"descr": "descr", "fortran_order": "order", "shape": "shape"}
_SHAPE = re.compile(r"\s*(\d{1,19}\s*,\s*)*(\d{1,19}\s*)?")


def descr(dtype: str) -> str:
    """The NPY type of a dtype: NumPy's own; void of its width where NumPy has none; packed uint8 below a byte."""
    np_dtype = numpy_dtype(dtype)
    return str(np_dtype.str) if np_dtype.isbuiltin == 1 else VOID[DTYPE_BITS[dtype]]


def header_bytes(spec: TensorSpec) -> bytes:
    """Magic, version 1.0, length and dict, padded so that the data begins at a multiple of 64."""
    text = f"{{'descr': '{descr(spec.dtype)}', 'fortran_order': False, 'shape': {held_shape(spec)}, }}".encode()
    start = len(MAGIC) + 4
    text += b" " * (-(start + len(text) + 1) % ALIGNMENT) + b"\n"
    return MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text


def read_header(fd: int, path: Path) -> tuple[str, tuple[int, ...], int]:
    """(descr, shape, first data byte) of an open file whose size is exactly what these demand.

    Raises:
        SourceError: names the file and what is wrong.
    """
    file_nbytes = os.fstat(fd).st_size
    head = bytearray(min(12, file_nbytes))
    read_bytes(fd, 0, memoryview(head), f"{path}: header")
    if head[:6] != MAGIC or len(head) < 12:
        raise SourceError(f"{path}: begins with {bytes(head[:6])!r}, not with {MAGIC!r} and a header")
    version = (head[6], head[7])
    if version not in ((1, 0), (2, 0)):
        raise SourceError(f"{path}: NPY version {version[0]}.{version[1]}; 1.0 and 2.0 are supported")
    start = 10 if version == (1, 0) else 12
    n = int.from_bytes(head[8:start], "little")
    if n > min(MAX_HEADER_NBYTES, file_nbytes - start):
        raise SourceError(f"{path}: header of {n:,} bytes; the file has {file_nbytes:,}, at most 65,536 are allowed")
    raw = bytearray(n)
    read_bytes(fd, start, memoryview(raw), f"{path}: header")
    try:
        kind, shape = _parse(bytes(raw))
        width = _width(kind)
    except ValueError as e:
        raise SourceError(f"{path}: header: {e}") from None
    nbytes = width
    for d in shape:
        nbytes *= d
    if start + n + nbytes != file_nbytes:
        raise SourceError(
            f"{path}: {kind}{list(shape)} takes {nbytes:,} bytes from byte {start + n} on, the file has {file_nbytes:,}"
        )
    return kind, shape, start + n


def plain_dtype(kind: str, path: Path) -> str:
    """The dtype of a file that nothing else describes. A void of two bytes is bfloat16, as jax.numpy.load takes it.

    Raises:
        SourceError: no dtype, or more than one, is stored like this.
    """
    if kind in ("<V2", "|V2"):
        return "BF16"
    names = [d for d, bits in DTYPE_BITS.items() if bits >= 8 and descr(d) == kind and kind not in ("<V1", "|V1")]
    if len(names) != 1:
        allowed = [descr(d) for d in DTYPE_BITS if numpy_dtype(d).isbuiltin == 1]
        hint = did_you_mean(kind, allowed, 30)
        raise SourceError(f"{path}: type {kind!r} is no known dtype without a metadata.json{hint}")
    return names[0]


def _parse(raw: bytes) -> tuple[str, tuple[int, ...]]:
    text = raw.decode("latin-1").strip(" \n")
    if not (text.startswith("{") and text.endswith("}")):
        raise ValueError(f"{text[:40]!r} is not a dict")
    found: dict[str, str] = {}
    at = 1
    while m := _ENTRY.match(text, at):
        key, value = m["key"], m[_VALUE[m["key"]]]
        if value is None or key in found:
            raise ValueError(f"{key} is {'given twice' if key in found else 'of the wrong type'}")
        found[key], at = value, m.end()
    if text[at:].strip() != "}" or len(found) != len(_VALUE):
        raise ValueError(f"expected exactly descr, fortran_order and shape, got {text[:120]!r}")
    if found["fortran_order"] == "True":
        raise ValueError("fortran_order is True; only C order is supported (save np.ascontiguousarray of it)")
    dims = [d.strip() for d in found["shape"].split(",")]
    scalar_like = len(dims) == 1 and dims[0]  # (3) is an integer, not a tuple
    if not _SHAPE.fullmatch(found["shape"]) or scalar_like:
        raise ValueError(f"shape ({found['shape'][:80]}) is not a tuple of non-negative integers")
    shape = tuple(int(d) for d in dims if d)
    if len(shape) > MAX_DIMS:
        raise ValueError(f"{len(shape)} dimensions; at most {MAX_DIMS} are supported")
    return found["descr"], shape


def _width(kind: str) -> int:
    """Bytes of one element of a type that is fixed-width, little-endian and not a pickle."""
    allowed = {descr(d): max(1, DTYPE_BITS[d] // 8) for d in DTYPE_BITS} | {"|V1": 1, "|V2": 2}
    if kind not in allowed:
        raise ValueError(f"type {kind!r} is not supported{did_you_mean(kind, sorted(allowed), 30)}")
    return allowed[kind]
