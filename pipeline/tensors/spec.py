"""What is known of a tensor before any of its bytes is read."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from pipeline.errors import SourceError, did_you_mean
from pipeline.tensors.scheme import Scheme

UNQUANTIZED = "unquantized"  # what people call weights of which nothing is packed

# Bits of one element, for every dtype of the safetensors format (safetensors 0.8, `Dtype`).
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "I32": "int32",
    "U32": "uint32", "F32": "float32", "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip

FLOAT_DTYPES = frozenset(d for d in DTYPE_BITS if d.startswith("F") or d == "BF16")


@cache
def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype that holds `dtype`; sub-byte dtypes (F4, F6_*) are held as packed uint8."""
    import ml_dtypes
    import numpy as np

    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    if dtype in _ML_DTYPES:
        return np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    if dtype in DTYPE_BITS:
        return np.dtype("uint8")
    raise SourceError(f"dtype {dtype!r} is unknown{did_you_mean(dtype, DTYPE_BITS, 30)}")


@cache
def dtype_name(numpy_dt: Any) -> str:
    """The inverse of `numpy_dtype` for whole-byte dtypes: np.dtype('float32') → 'F32'."""
    for name in (*_NUMPY, *_ML_DTYPES):
        if numpy_dtype(name) == numpy_dt:
            return name
    raise SourceError(f"array dtype {numpy_dt} has no safetensors name")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and encoding of one tensor.

    Attributes:
        shape: logical shape.
        dtype: a key of `DTYPE_BITS`: the stored elements of a plain tensor; what a quantized one decodes to.
        scheme: how the values are packed, or None for a plain tensor.
    """

    shape: tuple[int, ...]
    dtype: str
    scheme: Scheme | None = None

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes as stored: packed codes and scales when quantized."""
        if self.scheme is not None:
            return _packed_nbytes(self.scheme, self.shape)
        return (math.prod(self.shape) * DTYPE_BITS[self.dtype] + 7) // 8

    @property
    def encoding(self) -> str:
        """For people: `BF16`, or `e2m1/32/e8m0`: element, block, scale and what else there is; or `q4_k`."""
        s = self.scheme
        if s is None:
            return self.dtype
        if s.is_struct:
            return s.element
        columns, rows = s.block_elems or "row", s.block_rows
        block = (
            "tensor" if (s.block_elems, rows) == (0, 0) else f"{columns}" if rows == 1 else f"{rows or 'all'}x{columns}"
        )
        return "/".join(filter(None, (s.element, block, s.scale, s.zero and f"zero:{s.zero}", s.second)))


@lru_cache(maxsize=4096)
def _packed_nbytes(scheme: Scheme, shape: tuple[int, ...]) -> int:
    """Layers are alike."""
    dtypes = scheme.dtypes
    return sum(math.prod(s) * DTYPE_BITS[dtypes[c]] // 8 for c, s in scheme.components(shape).items())


def encodings(specs: Iterable[TensorSpec]) -> dict[str, int]:
    """Of tensors that are packed: encoding → values, the most first."""
    values: dict[str, int] = {}
    for spec in specs:
        if spec.scheme is not None:
            values[spec.encoding] = values.get(spec.encoding, 0) + spec.size
    return dict(sorted(values.items(), key=lambda one: -one[1]))


def called(packed: Iterable[str]) -> str:
    """What people call weights as they came, by their `encodings`."""
    names = ", ".join(packed)
    return f"as it came: {names}" if names else UNQUANTIZED


def group_of(tensor: str) -> str:
    """`model.layers.3.mlp.experts.gate_up_proj` → `model.layers.*.mlp.experts.gate_up_proj`."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", tensor)
