"""Box arithmetic of blocks, and taking values apart and together along their dimensions.

What a box of a tensor is in its components, and how arrays and QTensors alike are sliced, cut and interleaved. Knows
schemes, and nothing of leaves or dialects.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.hooks import optional
from pipeline.tensors.binding import Part
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
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
        bits = scheme.element_bits
        return (*lead, slice(last.start * bits // 8, last.stop * bits // 8))
    shape = scheme.components(spec.shape)[component]
    if scheme.whole_only or (len(shape) == 1 and component == "second"):
        return tuple(slice(0, n) for n in shape)
    if component == "second":
        return (*lead[:-1], slice(0, 1), slice(0, 1))
    across = _over(last, scheme.block_elems)
    return (*lead[:-1], _over(lead[-1], scheme.block_rows), across) if lead else (across,)


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
    if box[-1].start * scheme.element_bits % 8 or box[-1].stop * scheme.element_bits % 8:
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


def common(*grains: tuple[int, ...]) -> tuple[int, ...]:
    """The least grain that is a multiple of all of these."""
    return tuple(math.lcm(*sides) for sides in zip(*grains, strict=True))


def outward(box: Box, shape: tuple[int, ...], grain: tuple[int, ...]) -> Box:
    """The smallest box around `box` whose bounds are multiples of `grain`, or the end."""
    sides = zip(box, shape, grain, strict=True)
    return tuple(slice(s.start // g * g, min(n, -(-s.stop // g) * g)) for s, n, g in sides)


def each(value: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of an array, or of every component of a QTensor."""
    if isinstance(value, QTensor):
        out: dict[str, Any] = {name: fn(array) for name, array in value.components.items()}
        return replace(value, **out)
    return fn(value)


def lane_of(value: Any, lane: tuple[int, int, int]) -> Any:
    """The indices that a part's `lane` names."""
    dim, phase, step = lane
    index = (..., slice(phase, None, step), *(slice(None) for _ in range(-1 - dim)))
    return each(value, lambda array: array[index])


def together(part: Part, found: Mapping[tuple[int, int], Any]) -> Any:
    """One component from its parts, by (index of dimension 0, phase): lanes taken in turns, experts stacked."""
    experts: dict[int, list[Any]] = {}
    for (at, _), value in sorted(found.items(), key=lambda item: item[0]):
        experts.setdefault(at, []).append(value)
    turns = [v[0] if part.lane is None else _in_turns(v, part.lane[0]) for v in experts.values()]
    return turns[0] if part.at is None else np.stack(turns)


def _in_turns(values: list[Any], dim: int) -> Any:
    """Arrays or QTensors whose indices of `dim` take turns, as one."""
    parts = [v.components if isinstance(v, QTensor) else {"": v} for v in values]
    out: dict[str, Any] = {}
    for name, first in parts[0].items():
        turns = np.stack([v[name] for v in parts], axis=dim)
        shape = list(first.shape)
        shape[dim] *= len(values)
        out[name] = turns.reshape(shape)
    return replace(values[0], **out) if isinstance(values[0], QTensor) else out[""]


def inner_box(value: Any, spec: TensorSpec, box: Box) -> Any:
    """The box of a value of `spec`."""
    if not isinstance(value, QTensor):
        return np.ascontiguousarray(value[box])
    out: dict[str, Any] = {c: np.ascontiguousarray(a[component_box(spec, c, box)]) for c, a in value.components.items()}
    return replace(value, **out)
