"""dequantize, the definition: OCP MX v1.0, section 5.1, in double precision, which holds every product exactly."""

from typing import Any

import numpy as np

from plugins.kernels.cast.reference import cast
from plugins.kernels.dequantize import Overflow, check
from plugins.kernels.elements import E2M1_MAGNITUDES, E8M0_BIAS, E8M0_NAN


def dequantize(q: Any, dtype: str = "BF16", *, overflow: Overflow = "error") -> Any:
    """See the op's docstring."""
    check(q.scheme, dtype, overflow)
    packed = np.asarray(q.codes)
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(q.shape)  # the even element is the low nibble
    elements = np.array([*E2M1_MAGNITUDES, *(-m for m in E2M1_MAGNITUDES)], np.float64)[codes]
    scales = np.ldexp(1.0, np.asarray(q.scales).astype(int) - E8M0_BIAS)
    scales = np.where(np.asarray(q.scales) == E8M0_NAN, np.nan, scales)
    values = elements * np.repeat(scales, q.scheme.block_elems, axis=-1)
    return cast(values, dtype, overflow=overflow if dtype == "F16" else "inf")
