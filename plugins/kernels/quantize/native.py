"""quantize in C++, MXFP4: block by block in registers, the sums of errors in the same pass.

The library reads any layout where it lies; a matrix whose rows are neighbours in memory goes a register of rows at a
time. It takes no memory but its result.
"""

from functools import cache
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.codecs.blocks import as_matrices
from plugins.kernels.native import library
from plugins.kernels.quantize.declines import FLOATS
from plugins.kernels.quantize.mxfp4 import tile
from plugins.kernels.quantize.reach import refuse_infinities
from plugins.kernels.quantize.recipe import checked

_NEVER = np.iinfo(np.int16).max


def quantize(
    x: Any, scheme: Scheme, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """See the op's docstring."""
    recipe = checked(x.shape, scheme, options)
    if not x.flags.aligned or any(s % x.itemsize for s in x.strides) or not x.dtype.isnative:
        x = np.array(x, x.dtype.newbyteorder("="), order="C")  # a copy: what is contiguous may be misaligned
    core, isa = library.core(), library.isa()
    shapes = scheme.components(x.shape)
    q = QTensor(np.empty(shapes["codes"], np.uint8), np.empty(shapes["scales"], np.uint8), scheme)
    stats = np.zeros(4)
    edges = _thresholds(recipe.ties, recipe.scale_rule, recipe.tiny)
    before = 0
    for lead, matrix in as_matrices(x):
        at = lead if x.ndim > 1 else ()
        codes, scales = q.codes[at], q.scales[at]
        down, n = matrix.shape
        bad = core.wm_mxfp4_quantize(
            isa, matrix.ctypes.data, FLOATS.index(dtype_name(x.dtype)), down, n,
            *(s // matrix.itemsize for s in matrix.strides),
            scheme.block_elems, tile.CARRY[recipe.scale_rule], edges.ctypes.data, recipe.zero == "positive",
            recipe.nonfinite == "poison", codes.ctypes.data, n // 2, scales.ctypes.data, n // scheme.block_elems,
            stats.ctypes.data if measure else None,
        )  # fmt: skip
        if bad >= 0:
            value = matrix[divmod(bad, n)]
            raise ValueRangeError(f"flat index {before + bad}: {value} has no {scheme.element.upper()} value")
        before += matrix.size
    if recipe.overflow == "error":
        refuse_infinities(x, q)
    return (q, ErrorStats(int(stats[0]), *map(float, stats[1:]))) if measure else q


@cache
def _thresholds(ties: Any, rule: Any, tiny: str) -> Any:
    """int16 `[256, 8]`: of each scale byte; the eighth is there so that a row is a whole vector."""
    found = np.full((256, 8), _NEVER, np.int16)
    found[:, :7] = tile.thresholds(ties)
    if tiny == "torchao":
        found[0] = found[127 if rule == "rceil" else 1]
    return found
