"""Box arithmetic of blocks: what a box of a tensor is in its components, and how arrays and QTensors alike are cut.

Knows schemes, and nothing of leaves or dialects.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.hooks import optional
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, StoreHooks, TensorStore, normalize

Box = tuple[slice, ...]


def component_box(spec: TensorSpec, component: str, index: Index) -> Box:
    """The box of `component` (values, codes, scales, zeros, second) that holds the box `index` of a tensor of `spec`.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block.
    """
    box = normalize(index, spec.shape)
    scheme = spec.scheme
    if scheme is None:
        return box
    whole_blocks(scheme, spec.shape, box)
    *lead, last = box
    if component == "codes":
        columns, nbytes = scheme.period
        return (*lead, slice(last.start * nbytes // columns, last.stop * nbytes // columns))
    shape = scheme.components(spec.shape)[component]
    if scheme.whole_only or (len(shape) == 1 and component == "second"):
        return tuple(slice(0, n) for n in shape)
    if component == "second":
        return (*lead[:-1], slice(0, 1), slice(0, 1))
    across = _over(last, scheme.block_elems)
    return (*lead[:-1], _over(lead[-1], scheme.block_rows), across) if lead else (across,)


def box_of(component: str, spec: TensorSpec, index: Index) -> Box:
    """`component_box`, or the tensor's own for `*`, a part that holds all components."""
    return normalize(index, spec.shape) if component == "*" else component_box(spec, component, index)


def _over(box: slice, block: int) -> slice:
    """The blocks that `box` spans; one block (0) spans everything."""
    return slice(box.start // block, -(-box.stop // block)) if block else slice(0, 1)


def whole_blocks(scheme: Scheme, shape: tuple[int, ...], box: Box) -> None:
    """Raises IndexError unless `box` is whole blocks: a block has one scale, part of it cannot stand alone.

    A scale that a whole dimension shares is no obstacle: every slice of it has that same scale.
    """
    blocks = (scheme.block_rows, scheme.block_elems)[-len(shape) :]
    for s, n, block in zip(box[-2:], shape[-2:], blocks, strict=False):
        if block and (s.start % block or (s.stop % block and s.stop != n)):
            raise IndexError(f"{s.start}:{s.stop} cuts a block of {block} in a dimension of {n}")
    if box[-1].start % scheme.period[0] or box[-1].stop % scheme.period[0]:
        raise IndexError(f"{box[-1].start}:{box[-1].stop} cuts a byte of {scheme.element_bits}-bit elements")
    if scheme.whole_only and box != tuple(slice(0, n) for n in shape):
        raise IndexError("scales coded across the whole tensor: it can only be read and written whole")


def block_grain(scheme: Scheme | None, shape: tuple[int, ...]) -> tuple[int, ...]:
    """For each dimension, what the bounds of a box of whole blocks are multiples of (the end may be the end)."""
    if scheme is None or not shape:
        return (1,) * len(shape)
    if scheme.whole_only:
        return tuple(max(1, n) for n in shape)
    blocks = [scheme.block_rows or 1, scheme.column_grain][-min(2, len(shape)) :]
    return (1,) * (len(shape) - len(blocks)) + tuple(blocks)


def grain_of(store: TensorStore, name: str) -> tuple[int, ...]:
    """What `StoreHooks.grain` says, or what follows from the tensor's scheme."""
    if (own := optional(store, StoreHooks, "grain")) is not None:
        return tuple(own(name))
    spec = store.specs[name]
    return block_grain(spec.scheme, spec.shape)


def scratch_of(store: TensorStore, name: str) -> int:
    """What `StoreHooks.scratch` says; 0 where it says nothing."""
    own = optional(store, StoreHooks, "scratch")
    return int(own(name)) if own is not None else 0


def shares_of(store: TensorStore, name: str) -> Sequence[tuple[Index, int]] | None:
    """What `StoreHooks.shares` says; None where it says nothing."""
    own = optional(store, StoreHooks, "shares")
    found: Sequence[tuple[Index, int]] | None = own(name) if own is not None else None
    return found


def read_nbytes_of(store: TensorStore, name: str, boxes: Sequence[Index]) -> int:
    """What `StoreHooks.read_nbytes` says, or the bytes that the boxes hold."""
    if (own := optional(store, StoreHooks, "read_nbytes")) is not None:
        return int(own(name, boxes))
    return sum(box_nbytes(store.specs[name], box) for box in boxes)


def box_nbytes(spec: TensorSpec, index: Index) -> int:
    """Bytes of the box `index` of a tensor of `spec`: packed codes, and scales and whatever else decoding it needs."""
    if spec.scheme is None:
        elems: int = math.prod(s.stop - s.start for s in normalize(index, spec.shape))
        return (elems * DTYPE_BITS[spec.dtype] + 7) // 8
    found = 0
    for component, dtype in spec.scheme.dtypes.items():
        box = component_box(spec, component, index)
        found += math.prod(s.stop - s.start for s in box) * DTYPE_BITS[dtype] // 8
    return found


def common(*grains: tuple[int, ...]) -> tuple[int, ...]:
    """The least grain that is a multiple of all of these."""
    return tuple(math.lcm(*sides) for sides in zip(*grains, strict=True))


def outward(box: Box, shape: tuple[int, ...], grain: tuple[int, ...]) -> Box:
    """The smallest box around `box` whose bounds are multiples of `grain`, or the end."""
    sides = zip(box, shape, grain, strict=True)
    return tuple(slice(s.start // g * g, min(n, -(-s.stop // g) * g)) for s, n, g in sides)


def tensor_grain(spec: TensorSpec, component: str, grain: tuple[int, ...]) -> tuple[int, ...]:
    """`grain` of boxes of a component (or of the tensor, for `values` and `*`), as one of boxes of the tensor.

    What a block has anyway (`block_grain`) is left out.
    """
    scheme = spec.scheme
    if scheme is None or component == "*":
        return grain
    ones = (1,) * len(spec.shape)
    if component == "second":  # one a matrix, or read whole
        return ones
    if component == "codes":
        columns, nbytes = scheme.period
        return (*grain[:-1], 1 if grain[-1] == 1 else columns * grain[-1] // math.gcd(nbytes, grain[-1]))
    sides = (scheme.block_rows or spec.shape[-2:][0], scheme.block_elems or spec.shape[-1])[-len(grain) :]
    blocks = (*ones[: len(grain) - len(sides)], *sides)
    return tuple(1 if g == 1 else g * block for g, block in zip(grain, blocks, strict=True))


def each(value: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of an array, or of every component of a QTensor."""
    if isinstance(value, QTensor):
        out: dict[str, Any] = {name: fn(array) for name, array in value.components.items()}
        return replace(value, **out)
    return fn(value)


def empty(shape: tuple[int, ...], scheme: Scheme) -> QTensor:
    """A QTensor to be filled."""
    dtypes = scheme.dtypes
    found: dict[str, Any] = {c: np.empty(s, numpy_dtype(dtypes[c])) for c, s in scheme.components(shape).items()}
    return QTensor(scheme=scheme, **found)


def part_of(q: QTensor, box: Index) -> QTensor:
    """The box of a QTensor, which must be whole blocks: views of its arrays."""
    spec = TensorSpec(tuple(q.shape), "BF16", q.scheme)
    found: dict[str, Any] = {c: array[component_box(spec, c, box)] for c, array in q.components.items()}
    return replace(q, **found)


def inner_box(value: Any, box: Box) -> Any:
    """The box of an array or QTensor, contiguous."""
    if not isinstance(value, QTensor):
        return np.ascontiguousarray(value[box])
    return each(part_of(value, box), np.ascontiguousarray)
