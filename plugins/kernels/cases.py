"""What the named calls of the ops (`plugins/kernels/<op>/cases.py`) are made of. No dimension is like another."""

from typing import Any

import ml_dtypes
import numpy as np

from pipeline.tensors.scheme import INSIDE, MXFP4, STRUCTS, Scheme
from pipeline.testing.memory import quantized

BF16 = ml_dtypes.bfloat16
SCHEMES = {
    "mxfp4": MXFP4,
    "mxfp8": Scheme("e4m3", 32, "e8m0"),
    "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
    "nvfp4, inverse": Scheme("e2m1", 16, "e4m3", second="inverse_f32"),
    "nf4": Scheme("nf4", 64, "f32"),
    "nf4 twice": Scheme("nf4", 64, "dynamic8", second="dynamic8"),
    "int8 a row": Scheme("int8", 0, "f32"),
    "int8 a matrix": Scheme("int8", 0, "f32", block_rows=0),
    "int4 a group": Scheme("int4", 32, "bf16"),
    "uint4 with zero": Scheme("uint4", 32, "f32", zero="int"),
    "q4_1": Scheme("uint4", 32, "f16", zero="min_f16"),
    "int3": Scheme("int3", 64, "f32"),
    "e3m2": Scheme("e3m2", 32, "e8m0"),
    "fp8 in tiles": Scheme("e4m3", 64, "f32", block_rows=3),
}

BY_STRUCTS = {kind: Scheme(kind, elems, INSIDE) for kind, (elems, _) in STRUCTS.items()}  # rows of whole 256

NOT_FINITE = {
    "int8": Scheme("int8", 32, "f32"),
    "int8, odd blocks": Scheme("int8", 20, "f32"),
    "q4_1": SCHEMES["q4_1"],
    "int8 a row": SCHEMES["int8 a row"],
}


def rng_of(name: str) -> np.random.Generator:
    return np.random.default_rng([ord(c) for c in name])


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def not_finite(scheme: Scheme, rows: int, shape: tuple[int, ...] = (6,)) -> tuple[Any, Any]:
    """x of ones, zeros and, once, NaN; weights `[*shape, in]` with infinite scales in the last block of a row, and NaN
    in a first one. Rows are three blocks: they fill no registers. All codes are of one sign, because the sum of a block
    may meet its scale, and is an infinity then where the definition has NaN."""
    n = 3 * (scheme.block_elems or 8)
    w = quantized(scheme, (*shape, n))
    w.codes[...] = 0x11
    w.scales[...] = 1
    w.scales[..., 1, -1], w.scales[..., 3, -1], w.scales[..., 4, 0] = np.inf, -np.inf, np.nan
    if w.zeros is not None:
        w.zeros[...] = 0
        w.zeros[..., 5, -1] = np.inf
    x = np.ones((rows, n), np.float32)
    x[1:2] = 0
    x[2:3, 1] = np.nan
    return x, w
