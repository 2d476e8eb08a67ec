"""Backends that take many times an array's bytes, over pieces of it: memory is bounded, whatever they are given.

A piece is whole blocks. What its scales must know of the rest comes as extremes, as for a task that sees part of a
tensor, so that bytes do not depend on where anything is cut.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.errors import ValueRangeError
from pipeline.tensors.blocks import Box, block_grain, component_box, empty, inner_box
from pipeline.tensors.chunks import cut
from pipeline.tensors.matrices import Extremes, ExtremesOf
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec, dtype_name, numpy_dtype
from pipeline.tensors.stats import ErrorStats
from pipeline.tensors.store import Index


@dataclass(frozen=True)
class _Whole:
    """One array as a store, whose boxes are views."""

    x: Any
    specs: Mapping[str, TensorSpec]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def read(self, name: str, index: Index = ()) -> Any:
        return self.x[index]


def quantized(
    fn: Callable[..., Any], x: Any, scheme: Scheme, most: int, *, cuts_rows: bool, measure: bool, observed: Any,
    rows: Any, place: Any, importance: Any = None, **options: Any,
) -> Any:  # fmt: skip
    """`fn(x, scheme, …)`, the `quantize` op, over pieces of at most `most` elements where blocks are no larger.

    Args:
        cuts_rows: extremes are all that a scale must know of a row.
    """
    spec = TensorSpec(tuple(x.shape), dtype_name(x.dtype), scheme)
    grain = block_grain(scheme, spec.shape)
    if scheme.block_elems == 0 and scheme.block_rows and not cuts_rows:
        grain = (*grain[:-1], max(1, spec.shape[-1]))
    pieces = [p.index for p in cut("", spec.shape, most, grain)]
    if len(pieces) < 2:
        weights = {} if importance is None else {"importance": importance}
        return fn(x, scheme, measure=measure, observed=observed, rows=rows, place=place, **weights, **options)
    q = empty(spec.shape, scheme)
    store, found, stats = _Whole(x, {"": spec}), ExtremesOf(), ErrorStats()
    for box in pieces:
        of = _part(observed, box, 0) if observed is not None else found.box(store, "", box, _never)
        bands = None
        if rows is not None:
            bands = _part(rows, box, scheme.block_rows)
        elif scheme.block_elems == 0 and scheme.block_rows:
            bands = found.bands(store, "", box, scheme.block_rows, _never)
        at = None if place is None else (*place[:2], tuple(p + s.start for p, s in zip(place[2], box, strict=True)))
        part = _placed(
            spec.shape, box, fn, x[box], scheme, measure=measure, observed=of, rows=bands, place=at,
            **({} if importance is None else {"importance": importance[(*box[:-2], box[-1])]}), **options,
        )  # fmt: skip
        if measure:
            part, more = part
            stats += more
        for component, array in part.components.items():
            q.component(component)[component_box(spec, component, box)] = array
    return (q, stats) if measure else q


def dequantized(fn: Callable[..., Any], q: QTensor, dtype: str, most: int, *, overflow: str) -> Any:
    """`fn(q, dtype, …)`, the `dequantize` op, over pieces of at most `most` elements where blocks are no larger."""
    spec = TensorSpec(tuple(q.shape), "BF16", q.scheme)
    pieces = [p.index for p in cut("", spec.shape, most, block_grain(q.scheme, spec.shape))]
    if len(pieces) < 2:
        return fn(q, dtype, overflow=overflow)
    out = np.empty(spec.shape, numpy_dtype(dtype))
    for box in pieces:
        out[box] = _placed(spec.shape, box, fn, inner_box(q, box), dtype, overflow=overflow)
    return out


def _part(of: Extremes, box: Box, rows: int) -> Extremes:
    """Of what `box` touches: its matrices, or its bands of `rows` rows."""
    if len(box) < 2:
        return of
    at: tuple[slice, ...] = box[:-2]
    if rows:
        at = (*at, slice(box[-2].start // rows, -(-box[-2].stop // rows)))
    return Extremes(np.asarray(of.low)[at], np.asarray(of.high)[at])


def _placed(shape: tuple[int, ...], box: Box, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """`fn(…)` of a piece; an error that says where in the piece says where in the whole."""
    try:
        return fn(*args, **options)
    except ValueRangeError as why:
        match = re.match(r"flat index (\d+)(.*)", str(why), re.DOTALL)
        if match is None:
            raise
        within = np.unravel_index(int(match[1]), tuple(s.stop - s.start for s in box))
        index = tuple(s.start + int(i) for s, i in zip(box, within, strict=True))
        raise ValueRangeError(f"flat index {int(np.ravel_multi_index(index, shape))}{match[2]}") from None


def _never(q: QTensor, dtype: str) -> Any:
    raise AssertionError("an array has nothing to decode")
