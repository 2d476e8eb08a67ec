"""An array as a folder of zarr version 3 that holds its bytes raw, in C order, in one file.

Zarr's sharding codec puts many chunks and an index of them into one file. With the index in front, no compression, and
chunks that are bands of whole rows, the chunks follow each other just as the rows do: the file is the index and then
the array, so it is written in place like any other, and still a reader that wants a part (a shard of a JAX array)
reads the bands it needs and no more.

Zarr core specification 3.0, https://zarr-specs.readthedocs.io/en/latest/v3/core/v3.0.html, and its codec
`sharding_indexed` 1.0: an index entry is (first byte, bytes), little-endian uint64 each, chunks in C order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from plugins.formats.common.leafspecs import is_shape

METADATA = "zarr.json"
CHUNK_NBYTES = 4 << 20  # a request that a disk or a bucket answers at full speed
FEWEST = 8  # a band may be this many times smaller than asked for before a larger one is better
ENTRY_NBYTES = 16

# Names of data types: the core specification's, and for the rest those of tensorstore (driver `zarr3`).
DATA_TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
    "C64": "complex64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
_FILL: dict[str, Any] = {"BOOL": False, "C64": [0.0, 0.0]}
_NAMES = {name: dtype for dtype, name in DATA_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Banded:
    """One array and the bands its bytes are cut into.

    Attributes:
        spec: shape and dtype, a key of `DATA_TYPES`.
        band: shape of a band: 1 in the leading dimensions, some rows of one, all of those after it.
    """

    spec: TensorSpec
    band: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Bands along each dimension; one along an empty dimension, which nobody looks at."""
        return tuple(max(1, -(-n // b)) for n, b in zip(self.spec.shape, self.band, strict=True))

    @property
    def band_nbytes(self) -> int:
        return math.prod(self.band) * DTYPE_BITS[self.spec.dtype] // 8

    @property
    def index_nbytes(self) -> int:
        return math.prod(self.counts) * ENTRY_NBYTES

    @property
    def nbytes(self) -> int:
        """Of the file: index and bands. The last band is whole: what it has beyond the array is never looked at."""
        return math.prod(self.counts) * (ENTRY_NBYTES + self.band_nbytes)

    @property
    def file(self) -> str:
        """The file within the array's folder: the only cell of zarr's grid."""
        return "/".join(["c", *("0" for _ in self.spec.shape)])

    def index(self) -> bytes:
        """What the file begins with."""
        count = math.prod(self.counts)
        entries = np.empty((count, 2), "<u8")
        entries[:, 0] = self.index_nbytes + np.arange(count, dtype="<u8") * self.band_nbytes
        entries[:, 1] = self.band_nbytes
        return entries.tobytes()

    def metadata(self) -> dict[str, Any]:
        """The content of `zarr.json`."""
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        dtype = self.spec.dtype
        sharding = {
            "chunk_shape": list(self.band),
            "codecs": [little],
            "index_codecs": [little],
            "index_location": "start",
        }
        whole = [n * b for n, b in zip(self.counts, self.band, strict=True)]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.spec.shape),
            "data_type": DATA_TYPES[dtype],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": whole}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": _FILL.get(dtype, 0.0 if "F" in dtype else 0),
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }


def banded(spec: TensorSpec, band_nbytes: int = CHUNK_NBYTES) -> Banded:
    """Cut an array into bands of at most `band_nbytes`, where its rows can be divided like that.

    Bands divide a dimension without remainder, so that they follow each other without gaps; only the very first
    dimension may leave one, at the end of the file.
    """
    item = DTYPE_BITS[spec.dtype] // 8
    band = [max(1, n) for n in spec.shape]
    for dim in range(len(band)):
        rest = math.prod(band[dim + 1 :]) * item
        if rest > band_nbytes and dim + 1 < len(band):
            band[dim] = 1
            continue
        n, most = band[dim], max(1, band_nbytes // rest)
        below, above = _divisors(n, most)
        if below * FEWEST >= min(n, most):
            band[dim] = below
        elif math.prod(spec.shape[:dim]) <= 1:
            band[dim] = -(-n // -(-n // most))
        else:
            band[dim] = above
        break
    return Banded(spec, tuple(band))


def understood(metadata: Mapping[str, Any]) -> Banded | None:
    """The array that a `zarr.json` describes, when it is one that `Banded` would have written."""
    try:
        shape, dtype = metadata["shape"], _NAMES[metadata["data_type"]]
        band = metadata["codecs"][0]["configuration"]["chunk_shape"]
    except (KeyError, IndexError, TypeError):
        return None
    if not is_shape(shape) or not is_shape(band) or len(shape) != len(band) or not all(band):
        return None
    found = Banded(TensorSpec(tuple(shape), dtype), tuple(band))
    return found if _follow(found.spec.shape, found.band) and found.metadata() == metadata else None


def _follow(shape: Sequence[int], band: Sequence[int]) -> bool:
    """Whether bands in C order are the array in C order."""
    cut = next((d for d in reversed(range(len(shape))) if band[d] != max(1, shape[d])), None)
    if cut is None:
        return True
    if any(b != 1 for b in band[:cut]) or band[cut] > shape[cut]:
        return False
    return shape[cut] % band[cut] == 0 or math.prod(shape[:cut]) <= 1


def _divisors(n: int, most: int) -> tuple[int, int]:
    """The largest divisor of `n` up to `most`, and the smallest one that is no smaller."""
    found = [d for i in range(1, math.isqrt(n) + 1) if n % i == 0 for d in (i, n // i)]
    return max(d for d in found if d <= most), min(d for d in found if d >= min(n, most))
