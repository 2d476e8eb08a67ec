"""What a tile lost, while it is still in cache: ErrorStats from the code magnitudes, without decoding.

Signs do not matter to an error, so |x| is compared with |y| in float32, where both and (by Sterbenz) nearly all their
differences are exact. Squares are summed in runs of 8192 by a float32 dot product, runs in float64, in the order of the
tensor: the result does not depend on threads.
"""

from functools import cache
from typing import Any, Final

import numpy as np

from pipeline import subnormals
from pipeline.tensors.spec import dtype_name
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.codecs.mx import E2M1_MAGNITUDES, E2M1_MAX, E8M0_BIAS, E8M0_NAN

_PIECE: Final = 1 << 18  # elements: three float32 buffers of 1 MiB
_RUN: Final = 8192  # short enough for every BLAS to use one thread
# Scales within 2^±40: squares of the tile's largest values are far from both ends of float32.
_LOW, _HIGH = E8M0_BIAS - 40, E8M0_BIAS + 40
_SAFE = (2.0**-40, 2.0**40)  # the same of values


def _scales() -> Any:
    values = np.ldexp(1.0, np.arange(256) - E8M0_BIAS)
    values[E8M0_NAN] = np.nan
    return values


_SCALES = _scales()
_MAGNITUDES = np.array(E2M1_MAGNITUDES)


@cache
@subnormals.kept()
def _half_scales(copies: int) -> Any:
    """float32 `[256, copies]`: half of each scale, for magnitudes that come doubled."""
    return np.repeat((_SCALES / 2).astype(np.float32)[:, None], copies, axis=1)


class Measure:
    """Accumulates ErrorStats over tiles of at most `elems` elements.

    Attributes:
        stats: the sums so far.
        twice: uint8 buffer in which the caller leaves twice the E2M1 magnitudes of a tile.
    """

    def __init__(self, elems: int):
        self.stats = ErrorStats()
        self.twice = np.empty(elems, np.uint8)
        self._floats = np.empty((3, 0), np.float32)

    def add(
        self, box: Any, magnitude: Any, code: Any, amax: Any, scale: Any, group: tuple[int, int, int], careful: bool
    ) -> None:
        """Add a tile: original values `box`, flat bfloat16 magnitudes, unsigned codes, `[k, c]` maxima and scale bytes.

        Args:
            careful: the tile has blocks near the bottom of the range.
        """
        top = int(scale.max(initial=0))
        if careful or not _LOW <= top <= _HIGH:
            self._carefully(box, code, scale, group)
            return
        k, block, c = group
        source = box.reshape(group) if dtype_name(box.dtype) != "BF16" else None
        # The largest error a tile can have: half the widest gap of E2M1 (4 to 6), or what its amax, which is in a block
        # of the largest scale, exceeds 6 by. Most tiles are known by this, or cannot beat an earlier one.
        unit = float(_SCALES[top])
        over = float(_largest(source, amax)) - E2M1_MAX * unit
        settled = over >= unit or self.stats.max_abs >= unit
        if settled:
            self.stats += ErrorStats(max_abs=max(over, 0.0))
        step = max(1, _PIECE // (block * c))
        for start in range(0, k, step):
            piece = slice(start * block * c, min(start + step, k) * block * c)
            x, y, spare = self._buffers(piece.stop - piece.start)
            if source is None:
                bits = x.view(np.uint32)
                np.copyto(bits, magnitude[piece].view(np.uint16))
                np.left_shift(bits, 16, out=bits)
            else:
                part = source[start : start + step]
                np.abs(part, out=x.reshape(part.shape), casting="same_kind")
            np.copyto(y, self.twice[piece])
            part_scale = scale[start : start + step]
            if c > 1:
                y3 = y.reshape(-1, block, c)
                np.multiply(y3, _half_scales(1)[part_scale, 0][:, None, :], out=y3)
            else:
                index = part_scale[:, 0].astype(np.intp)
                np.take(_half_scales(block), index, axis=0, out=spare.reshape(-1, block), mode="clip")
                np.multiply(y, spare, out=y)
            np.subtract(x, y, out=y)
            worst = 0.0 if settled else max(float(y.max()), -float(y.min()))
            self.stats += ErrorStats(x.size, worst, _sum_squares(y), _sum_squares(x))

    def _buffers(self, elems: int) -> Any:
        if self._floats.shape[1] < elems:
            self._floats = np.empty((3, elems), np.float32)
        return self._floats[:, :elems]

    def _carefully(self, box: Any, code: Any, scale: Any, group: tuple[int, int, int]) -> None:
        """The same in float64, without the blocks that have no values (scale NaN)."""
        with np.errstate(invalid="ignore"):
            x = np.abs(np.ascontiguousarray(box).astype(np.float64)).reshape(group)
        with np.errstate(over="ignore"):  # what decodes to an infinity is infinitely far
            y = (_MAGNITUDES[code].reshape(group) * _SCALES[scale][:, None, :]).astype(np.float32)
        finite = np.broadcast_to((scale != E8M0_NAN)[:, None, :], x.shape)
        error, x = (x - y)[finite], x[finite]
        worst = float(np.max(np.abs(error), initial=0.0))
        self.stats += ErrorStats(x.size, worst, float(np.sum(error * error)), float(np.sum(x * x)))


def compared(x: Any, y: Any) -> ErrorStats:
    """ErrorStats of flat float32 `x` and `y`, of which y, NaN where there is no value, is lost."""
    with np.errstate(invalid="ignore", over="ignore"):
        np.subtract(x, y, out=y)
        worst, top = (float(max(v.max(initial=0.0), -v.min(initial=0.0))) for v in (y, x))
    if not all(v == 0 or _SAFE[0] < v < _SAFE[1] for v in (worst, top)):
        some = ~np.isnan(y)
        x, y = x[some].astype(np.float64), y[some].astype(np.float64)
        return ErrorStats(x.size, float(np.max(np.abs(y), initial=0.0)), float(np.sum(y * y)), float(np.sum(x * x)))
    return ErrorStats(x.size, worst, _sum_squares(y), _sum_squares(x))


def _sum_squares(flat: Any) -> float:
    whole = flat.size // _RUN * _RUN
    runs = flat[:whole].reshape(-1, _RUN)
    rest = flat[whole:]
    return float(np.sum(np.vecdot(runs, runs), dtype=np.float64)) + float(np.vecdot(rest, rest))


def _largest(source: Any, amax: Any) -> Any:
    """max |x| of a tile: of bfloat16 patterns, or of wider values, whose patterns are rounded."""
    if source is None:
        return (amax.max().astype(np.uint32) << np.uint32(16)).view(np.float32)
    return max(source.max(), -source.min())
