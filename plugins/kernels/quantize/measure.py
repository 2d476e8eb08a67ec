"""What a tile lost, while it is still in cache: ErrorStats from the code magnitudes, without decoding.

Signs do not matter to an error, so |x| is compared with |y| in float32, where both and (by Sterbenz) nearly all their
differences are exact. Squares are summed in runs of 8192 by a float32 dot product, runs in float64, in the order of the
tensor: the result does not depend on threads.
"""

from typing import Any, Final

import numpy as np

from pipeline.tensors.spec import dtype_name
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.elements import E2M1_MAGNITUDES, E8M0_BIAS, E8M0_NAN

_RUN: Final = 8192  # short enough for every BLAS to use one thread
# Scales within 2^±40: squares of the tile's largest values are far from both ends of float32.
_LOW, _HIGH = E8M0_BIAS - 40, E8M0_BIAS + 40


def _scales() -> Any:
    values = np.ldexp(1.0, np.arange(256) - E8M0_BIAS)
    values[E8M0_NAN] = np.nan
    return values


_SCALES = _scales()
# A row per scale byte, half the scale 32 times over: magnitudes come as integers 2|y|.
_HALF_ROWS = np.repeat((_SCALES / 2).astype(np.float32)[:, None], 32, axis=1)
_TWICE = np.array(E2M1_MAGNITUDES) * 2


class Measure:
    """Accumulates ErrorStats over tiles of at most `elems` elements."""

    def __init__(self, elems: int):
        self.stats = ErrorStats()
        self._x = np.empty(elems, np.float32)
        self._y = np.empty(elems, np.float32)
        self._twice = np.empty(elems, np.uint8)
        self._hit = np.empty(elems, np.bool_)

    def add(self, box: Any, magnitude: Any, code: Any, scale: Any, group: tuple[int, int, int], careful: bool) -> None:
        """Add a tile: original values `box`, flat bfloat16 magnitudes, unsigned codes, `[k, c]` scale bytes.

        Args:
            careful: the tile has blocks near the bottom of the range.
        """
        n = magnitude.size
        if careful or not _LOW <= scale.max(initial=0) <= _HIGH:
            self._carefully(box, code, scale, group)
            return
        x, y, twice, hit = self._x[:n], self._y[:n], self._twice[:n], self._hit[:n]
        if dtype_name(box.dtype) == "BF16":
            bits = x.view(np.uint32)
            np.copyto(bits, magnitude.view(np.uint16))
            np.left_shift(bits, 16, out=bits)
        else:
            np.abs(box, out=x.reshape(box.shape), casting="same_kind")
        # 2|y| of codes 0..7 is 0 1 2 3 4 6 8 12: the code, one more from 5, one from 6, three from 7.
        np.greater_equal(code, 5, out=twice.view(np.bool_))
        np.add(twice, code, out=twice)
        np.greater_equal(code, 6, out=hit)
        np.add(twice, hit.view(np.uint8), out=twice)
        np.greater_equal(code, 7, out=hit)
        np.multiply(hit.view(np.uint8), 3, out=hit.view(np.uint8))
        np.add(twice, hit.view(np.uint8), out=twice)
        k, block, c = group
        if c > 1:
            np.multiply(
                twice.reshape(group), _HALF_ROWS[scale, 0][:, None, :], out=y.reshape(group), casting="same_kind"
            )
        else:
            rows = _HALF_ROWS if block == 32 else np.repeat(_HALF_ROWS[:, :1], block, axis=1)
            np.take(rows, scale[:, 0].astype(np.intp), axis=0, out=y.reshape(-1, block), mode="clip")
            np.multiply(y, twice, out=y)
        signal = _sum_squares(x)
        np.subtract(x, y, out=y)
        worst = max(float(y.max()), -float(y.min()))
        self.stats += ErrorStats(n, worst, _sum_squares(y), signal)

    def _carefully(self, box: Any, code: Any, scale: Any, group: tuple[int, int, int]) -> None:
        """The same in float64, without the blocks that have no values (scale NaN)."""
        with np.errstate(invalid="ignore"):
            x = np.abs(np.ascontiguousarray(box).astype(np.float64)).reshape(group)
        y = (_TWICE / 2)[code].reshape(group) * _SCALES[scale][:, None, :]
        finite = np.broadcast_to((scale != E8M0_NAN)[:, None, :], x.shape)
        error, x = (x - y)[finite], x[finite]
        worst = float(np.max(np.abs(error), initial=0.0))
        self.stats += ErrorStats(x.size, worst, float(np.sum(error * error)), float(np.sum(x * x)))


def _sum_squares(flat: Any) -> float:
    whole = flat.size // _RUN * _RUN
    runs = flat[:whole].reshape(-1, _RUN)
    rest = flat[whole:]
    return float(np.sum(np.vecdot(runs, runs), dtype=np.float64)) + float(np.vecdot(rest, rest))
