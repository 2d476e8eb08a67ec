"""Recoding that changes no value: keep the scales, or else encode again; decode, compare."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.errors import NotLossless, ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.codecs import bits, scales
from plugins.kernels.codecs.elements import element


def recode_exactly(method: Any, q: QTensor) -> QTensor:
    """`q` in the scheme of `method`, its scales kept or made by `method`, if that gives exactly the values of `q`.

    Raises:
        NotLossless: it does not; says how many values would change and names the first.
    """
    if q.scheme == method.scheme:
        return q
    before = method.decode(q, "F32")
    kept = with_its_scales(q, method.scheme)
    if kept is not None and np.array_equal(_bits(before), _bits(method.decode(kept, "F32"))):
        return kept
    try:
        recoded: QTensor = method.encode(before)
    except ValueRangeError as why:
        raise NotLossless(str(why)) from None
    after = method.decode(recoded, "F32")
    changed = _bits(before) != _bits(after)
    if count := int(np.count_nonzero(changed)):
        first = int(np.argmax(changed))
        raise NotLossless(
            f"{count:,} of {before.size:,} values would change, the first at flat index {first}: "
            f"{before.flat[first]} → {after.flat[first]}"
        )
    return recoded


def with_its_scales(q: QTensor, wanted: Scheme) -> QTensor | None:
    """`q` with the scales it has, for blocks that `wanted` cuts into whole ones; None where codes or scales do not fit.

    Not for scales that are codes themselves, nor for structs. Whether values are the same is for the caller to see: a
    scale that rounds to itself may still give another product.
    """
    if q.scheme.is_struct or wanted.is_struct:
        return None
    given, (*lead, rows, n) = q.scheme, (1, *q.shape)[-max(2, len(q.shape)) :]
    if (given.zero, given.second) != (wanted.zero, wanted.second) or given.second == "dynamic8" or not q.codes.size:
        return None
    table = _codes(given.element, wanted.element)
    codes = table[bits.unpack(np.asarray(q.codes), given.element_bits)]
    if (codes < 0).any():
        return None
    dtype = numpy_dtype(wanted.dtypes["scales"])
    value = np.asarray(q.scales)
    if given.scale != wanted.scale:
        if wanted.scale == "e8m0":
            return None
        wide = scales.powers()[value] if given.scale == "e8m0" else value.astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            value = wide.astype(dtype)
        if not np.array_equal(value.astype(np.float32), wide, equal_nan=True):
            return None
    cut = _cutter(given, wanted, rows, n)
    if cut is None:
        return None
    shape = wanted.components(q.shape)["scales"]
    zeros = None if q.zeros is None else cut(np.asarray(q.zeros).reshape(*lead, *given.blocks(rows, n))).reshape(shape)
    found = cut(value.reshape(*lead, *given.blocks(rows, n))).reshape(shape)
    packed = bits.pack(codes.astype(np.uint8), wanted.element_bits)
    return QTensor(packed, found, wanted, zeros, q.second)


def _codes(given: str, wanted: str) -> Any:
    """int16 `[256]`: the code of `wanted` that has the value of a code of `given`; -1 where there is none."""
    theirs = {v.tobytes(): code for code, v in reversed(list(enumerate(element(wanted).values)))}
    table = np.full(256, -1, np.int16)
    for code, v in enumerate(element(given).values):
        table[code] = theirs.get(v.tobytes(), -1)
    return table


def _cutter(given: Scheme, wanted: Scheme, rows: int, n: int) -> Callable[[Any], Any] | None:
    """What repeats what blocks of `given` share for the blocks of `wanted`; None where those are no parts of them."""
    r, e = wanted.block_rows or rows, wanted.block_elems or n
    over, by = given.block_rows or rows, given.block_elems or n
    if (over % r and over < rows) or by % e:
        return None
    down, across = wanted.blocks(rows, n)
    return lambda a: a[..., np.arange(down) * r // over, :][..., np.arange(across) * e // by]


def _bits(values: Any) -> Any:
    return values.view(np.uint32)
