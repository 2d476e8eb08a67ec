"""What is encoded must decode to numbers again, and near the end of float32's range it need not.

A scale that was rounded up, or an element that was, may take a product past the largest number. OCP MX v1.0 (section
6.3) clamps elements and scales, each by itself, and says nothing of their product; libraries write such codes and get
infinities back. Here they are refused, unless told otherwise. The bar is BF16's, which packed tensors decode to: its
largest number is a little below float32's.
"""

from typing import Any, Final

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.elements import Element, element
from plugins.kernels.codecs.mx import E8M0_NAN

# Halfway from BF16's largest number, 2^128 - 2^120, to 2^128: from here on it rounds to infinity.
PAST_BF16: Final = np.float32(2.0**128 - 2.0**119)


def refuse_infinities(x: Any, q: QTensor) -> None:
    """Refuse an `x` of which a finite value decodes to an infinity from `q`. Decodes only where scales are that large.

    Raises:
        ValueRangeError: names the first such value by its flat index.
    """
    if not may_overflow(q):
        return
    from plugins.kernels.dequantize.numpy import dequantize

    with np.errstate(invalid="ignore"):  # a signalling NaN, to be poisoned
        values = np.asarray(x).astype(np.float32)
    refuse(values, dequantize(q, "F32"), q)


def refuse(values: Any, decoded: Any, q: QTensor) -> None:
    """The same, of float32 values that were decoded already."""
    past = np.abs(decoded) >= PAST_BF16
    if q.second is not None:  # zeros under an infinite factor; without a second level NaN is a poisoned block's
        past |= np.isnan(decoded)
    past &= np.isfinite(values)
    if not past.any():
        return
    at = int(np.argmax(past))
    y = decoded.flat[at]
    scheme, dtype = q.scheme, "BF16" if np.isfinite(y) else "F32"
    raise ValueRangeError(
        f"flat index {at}: {values.flat[at]} would decode to {y}, out of range of {dtype}, as {scheme.element.upper()} "
        f"under a scale in {scheme.scale.upper()}"
    )


def unstorable(amax: Any, what: str, scheme: Scheme) -> ValueRangeError:
    """The error for a finite block of which a component (`scales`, or minima in `zeros`) is past its dtype."""
    dtype = "F32" if scheme.scale == "dynamic8" else scheme.dtypes[what]
    return ValueRangeError(
        f"a block with amax {amax}: its {'scale' if what == 'scales' else 'minimum'} is out of range of {dtype}"
    )


def may_overflow(q: QTensor) -> bool:
    """Whether scales leave room for a value past BF16: the largest element under the largest of them."""
    scheme, given = q.scheme, np.asarray(q.scales)
    if not given.size:
        return False
    with np.errstate(over="ignore"):
        if scheme.scale == "e8m0":  # 0xFF is a poisoned block's; those of real scales are NaN
            most = scales.powers()[given.max(where=given != E8M0_NAN, initial=0)]
        else:
            most = np.fmax.reduce(np.abs(scales.totals(q)), axis=None)
    return reaches(most, scheme)


def reaches(most: Any, scheme: Scheme) -> bool:
    """The same, of the largest factor of a block; NaN reaches."""
    with np.errstate(over="ignore"):
        reach = np.float32(most) * np.float32(_largest(element(scheme.element)))
    if scheme.zero == "min_f16":
        reach += np.float32(np.finfo(np.float16).max)
    return not reach < PAST_BF16


def _largest(e: Element) -> float:
    """The largest magnitude of a code, less its zero point: of signed integers the negative end's."""
    return -e.least * e.unit if e.family == "fixed" else e.max
