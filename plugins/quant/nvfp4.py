"""MXFP4 as NVFP4 without touching a code: only the scales change their clothes.

Both have E2M1 elements. E4M3 holds the 18 powers of two 2^-9 … 2^8 (OFP8, table 1), so the exponents of a matrix's
E8M0 scales fit under one power of two for the matrix when they span at most 17. Blocks of zeros have no say.
"""

from typing import Any

import ml_dtypes
import numpy as np

from pipeline.errors import NotLossless
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.mx import E8M0_BIAS, E8M0_NAN

_LEAST, _MOST = -9, 8


def applies(given: Scheme, wanted: Scheme) -> bool:
    """Whether `given` is a block of E2M1 under powers of two that whole blocks of `wanted` divide."""
    return (
        (given.element, given.scale, given.block_rows) == ("e2m1", "e8m0", 1)
        and (wanted.element, wanted.scale, wanted.block_rows) == ("e2m1", "e4m3", 1)
        and wanted.second in ("f32", "inverse_f32")
        and given.block_elems > 0
        and given.block_elems % 2 == 0
        and wanted.block_elems > 0
        and given.block_elems % wanted.block_elems == 0
    )


def recode(q: QTensor, wanted: Scheme) -> QTensor:
    """`q` (whole matrices) under E4M3 scales and one power of two a matrix, its codes untouched.

    Raises:
        NotLossless: a matrix whose exponents span more than 17, or whose common factor is past float32; says which.
    """
    codes, given = np.asarray(q.codes), np.asarray(q.scales)
    blocks = codes.reshape(*given.shape, q.scheme.block_elems // 2)
    used = ((blocks & 0x77) != 0).any(axis=-1) & (given != E8M0_NAN)
    exponent = given.astype(np.int32) - E8M0_BIAS
    axes = tuple(range(max(0, given.ndim - 2), given.ndim))
    some = used.any(axis=axes, keepdims=True)
    high = np.max(exponent, axis=axes, keepdims=True, where=used, initial=-999)
    low = np.min(exponent, axis=axes, keepdims=True, where=used, initial=999)
    # 2^127 is the largest reciprocal, 2^-149 the smallest float32.
    common = np.where(some, np.maximum(high - _MOST, -127 if wanted.second == "inverse_f32" else -149), 0)
    bad = some & (low - common < _LEAST)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        raise NotLossless(
            f"scales of matrix {at[: max(0, given.ndim - 2)]} span 2^{int(low[at])} … 2^{int(high[at])}; "
            f"E4M3 under one factor holds powers of two that are at most {_MOST - _LEAST} apart"
        )
    values = np.where(used, np.ldexp(1.0, exponent - common), 0.0)
    values = np.where(given == E8M0_NAN, np.nan, values)
    scales: Any = np.repeat(values, q.scheme.block_elems // wanted.block_elems, axis=-1)
    sign = -1 if wanted.second == "inverse_f32" else 1
    second = np.ldexp(1.0, sign * common).astype(np.float32)
    return QTensor(codes, scales.astype(ml_dtypes.float8_e4m3fn), wanted, second=second)
