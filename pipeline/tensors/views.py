"""Lazy views between stores: joining leaves into logical tensors, splitting them back, mapping them on the way.

Nothing here knows a dialect, a file or a model: a dialect says with `Part`s where a tensor lies, and the box arithmetic
that follows from it is done here once, for reading and for writing. A view never caches and never converts values; it
reads exactly the bytes of the box it is asked for.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from pipeline.errors import ConfigError, PlanError, Problem, SourceError, did_you_mean
from pipeline.hooks import misspelt, optional
from pipeline.tensors.binding import Binding, Bound, Packing, PackingHooks, Part
from pipeline.tensors.blocks import (
    block_grain,
    common,
    component_box,
    grain_of,
    inner_box,
    lane_of,
    outward,
    scratch_of,
    together,
    whole_blocks,
)
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from pipeline.tensors.store import Index, TensorStore, checked, normalize

Box = tuple[slice, ...]


@dataclass(frozen=True)
class JoinedStore:
    """The logical tensors that `binding` makes of `leaves`. Pickles when `leaves` does.

    `read` returns plain tensors with the leaf's NumPy dtype (BF16 as `ml_dtypes.bfloat16`) and quantized ones as a
    QTensor of uint8 codes and scales. A leaf that is stored transposed comes back as a transposed view of the bytes
    read: right in value and shape, not C-contiguous; whoever needs contiguity pays for the copy, once, where it is
    needed.
    """

    leaves: TensorStore
    binding: Binding

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: bound.spec for name, bound in self.binding.tensors.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.leaves.metadata

    def grain(self, name: str) -> tuple[int, ...]:
        return grain(self.binding.tensors[name])

    def read(self, name: str, index: Index = ()) -> Any:
        """The box `index` of `name`, owned by the caller.

        Raises:
            KeyError: no such tensor.
            IndexError: a box outside the tensor, or one that cuts a block of a quantized tensor.
            SourceError: from the leaves.
        """
        bound = self.binding.tensors.get(name)
        if bound is None:
            raise KeyError(f"no tensor {name!r}{did_you_mean(name, self.binding.tensors)}")
        wanted = normalize(index, bound.spec.shape)
        whole_only = bound.spec.scheme is not None and bound.spec.scheme.whole_only
        box = wanted if whole_only else outward(wanted, bound.spec.shape, grain(bound))
        value = self._read(bound, box)
        if box != wanted:
            inner = tuple(slice(w.start - b.start, w.stop - b.start) for w, b in zip(wanted, box, strict=True))
            value = inner_box(value, replace(bound.spec, shape=tuple(b.stop - b.start for b in box)), inner)
        return checked(value, bound.spec, index, name)

    def _read(self, bound: Bound, box: Box) -> Any:
        """A box that every part of `bound` can deliver."""
        first: dict[str, Part] = {}
        found: dict[str, dict[tuple[int, int], Any]] = {}
        for part, leaf in leaf_boxes(bound, box):
            first.setdefault(part.component, part)
            held = found.setdefault(part.component, {})
            turn = (part.at or 0, part.lane[1] if part.lane is not None else 0)
            # What is stored twice is read once (tied embeddings), or is one scale of an expert, and small.
            if turn not in held:
                held[turn] = _fold(part, self.leaves.read(part.leaf, leaf))
            elif part.at is not None:
                _same_twice(part, held[turn], _fold(part, self.leaves.read(part.leaf, leaf)))
        one = {c: together(first[c], held) for c, held in found.items()}
        scheme, whole = bound.spec.scheme, one.pop("*", None)
        if whole is not None:
            return replace(whole, scheme=scheme, **one) if one else whole
        return one["values"] if scheme is None else QTensor(scheme=scheme, **one)


def split(bound: Bound, index: Index, value: Any) -> list[tuple[str, Box, Any]]:
    """What to write where, so that reading the box `index` gives `value` again: the inverse of `JoinedStore.read`.

    Args:
        bound: the tensor's spec and parts.
        index: the box that `value` covers.
        value: an array of the box's shape, or a QTensor when the spec has a scheme.

    Returns:
        (leaf, box of the leaf, array) for every part; arrays are views of `value`, not C-contiguous when a part is
        stored transposed.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block.
    """
    checked(value, bound.spec, index, bound.parts[0].leaf)
    first = normalize(index, bound.spec.shape)[0].start if bound.spec.shape else 0
    out = []
    for part, box in leaf_boxes(bound, index):
        array = value.component(part.component) if isinstance(value, QTensor) and part.component != "*" else value
        if part.lane is not None:
            array = lane_of(array, part.lane)
        out.append((part.leaf, box, _unfold(part, array if part.at is None else array[part.at - first])))
    return out


def grain(bound: Bound) -> tuple[int, ...]:
    """For each dimension, what the bounds of a box must be multiples of to be written (the end may be the end).

    Raises:
        ConfigError: a packing has a member that looks like one of `PackingHooks` and is none.
    """
    out = list(block_grain(bound.spec.scheme, bound.spec.shape))
    if bound.spec.scheme is None and out and (bits := DTYPE_BITS[bound.spec.dtype]) < 8:
        if bound.spec.shape[-1] * bits % 8:  # rows do not fill bytes: such a tensor is read and written whole
            return tuple(max(1, n) for n in bound.spec.shape)
        out[-1] = 8 // math.gcd(8, bits)
    for part in bound.parts:
        if part.packing is not None and out:
            if wrong := misspelt(type(part.packing), Packing):
                raise ConfigError(wrong[0])
            rows = -2 if len(out) > 1 else -1
            step = part.lane[2] if part.lane is not None and part.lane[0] == rows else 1
            out[rows] = math.lcm(out[rows], part.packing.row_multiple * step)
            out[-1] = math.lcm(out[-1], optional(part.packing, PackingHooks, "column_multiple"))
        if part.lane is not None:
            dim, _, step = part.lane
            out[dim] = math.lcm(out[dim], step)
    return tuple(out)


def leaf_boxes(bound: Bound, index: Index) -> list[tuple[Part, Box]]:
    """The parts that hold something of the box `index`, each with the box of its leaf.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block.
    """
    box = normalize(index, bound.spec.shape)
    return [
        (part, leaf_box(part, bound.spec, box))
        for part in bound.parts
        if part.at is None or box[0].start <= part.at < box[0].stop
    ]


def stored_leaves(tensors: Mapping[str, Bound]) -> dict[str, TensorSpec]:
    """The leaves that hold `tensors`: for each leaf the union of the regions that the parts name.

    Raises:
        PlanError: tensors of different dtypes or widths share a leaf.
        AssertionError: the regions of a leaf overlap or leave a gap, a bug in the dialect.
    """
    leaves: dict[str, TensorSpec] = {}
    filled: dict[str, int] = {}
    problems = []
    for name, bound in tensors.items():
        for part in bound.parts:
            spec = stored_spec(part, bound.spec)
            size = math.prod(s.stop - s.start for s in leaf_box(part, bound.spec, ()))
            have = leaves.get(part.leaf)
            if have is not None and have.dtype != spec.dtype:
                problems.append(Problem(name, f"{spec.dtype} cannot share {part.leaf} with tensors of {have.dtype}"))
                continue
            shape = spec.shape if have is None else tuple(map(max, have.shape, spec.shape))
            leaves[part.leaf] = TensorSpec(shape, spec.dtype)
            filled[part.leaf] = filled.get(part.leaf, 0) + size
    if problems:
        raise PlanError(problems)
    for leaf, spec in leaves.items():
        if filled[leaf] != spec.size:
            raise AssertionError(f"{leaf}: parts fill {filled[leaf]} of the {spec.size} elements of {spec.shape}")
    return leaves


def stored_spec(part: Part, spec: TensorSpec) -> TensorSpec:
    """The leaf that `part` implies: its shape up to and including this part's rows, and its dtype."""
    shape = tuple(s.stop for s in leaf_box(part, spec, ()))
    if part.packing is not None:
        return TensorSpec(shape, part.packing.dtype)
    return TensorSpec(shape, spec.scheme.dtypes[part.component] if spec.scheme is not None else spec.dtype)


def leaf_box(part: Part, spec: TensorSpec, index: Index) -> Box:
    """The box of the leaf that holds the box `index` of a tensor of `spec`.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block or an unfolded group.
    """
    box = normalize(index, spec.shape) if part.component == "*" else component_box(spec, part.component, index)
    if part.at is not None:
        box = box[1:]
    if part.lane is not None:
        dim, _, step = part.lane
        lane = box[dim]
        if lane.start % step or lane.stop % step:
            raise IndexError(f"{part.leaf}: {lane.start}:{lane.stop} cuts a group of {step} in dimension {dim}")
        cut = list(box)
        cut[dim] = slice(lane.start // step, lane.stop // step)
        box = tuple(cut)
    if part.packing is not None:
        box = part.packing.box(box)
    if part.row0:
        box = (slice(box[0].start + part.row0, box[0].stop + part.row0), *box[1:])
    if part.transpose:
        box = (*box[:-2], box[-1], box[-2])
    if part.unfold:
        last, group = box[-1], part.unfold
        if last.start % group or last.stop % group:
            raise IndexError(f"{part.leaf}: {last.start}:{last.stop} cuts a group of {group} in the last dimension")
        box = (*box[:-1], slice(last.start // group, last.stop // group), slice(0, group))
    return box


class Transform(Protocol):
    """A change of values that keeps names and shapes. Must pickle."""

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        """What `apply` will make of a tensor of `spec`: same shape, another dtype or scheme (or the same)."""
        ...

    def apply(self, name: str, value: Any, index: Index) -> Any:
        """The transformed box; `value` is the box `index` of the source and belongs to the transform."""
        ...


@dataclass(frozen=True)
class MappedStore:
    """`store` seen through `transform`, box by box, when read. Pickles when both do.

    A box of a tensor that the transform packs in blocks must be whole blocks, as for any quantized tensor. The blocks
    of the source are no obstacle: as much as is needed is read and transformed, and the rest cut off.
    """

    store: TensorStore
    transform: Transform

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: self.transform.spec(name, spec) for name, spec in self.store.specs.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.store.metadata

    def grain(self, name: str) -> tuple[int, ...]:
        spec = self.specs[name]
        return common(grain_of(self.store, name), block_grain(spec.scheme, spec.shape))

    def scratch(self, name: str) -> int:
        return scratch_of(self.store, name)

    def read(self, name: str, index: Index = ()) -> Any:
        """The transformed box.

        Raises:
            KeyError, IndexError, SourceError: as for the source; IndexError for a box that cuts a block.
        """
        if name not in self.specs:
            raise KeyError(f"no tensor {name!r}{did_you_mean(name, self.specs)}")
        spec = self.specs[name]
        box = normalize(index, spec.shape)
        if spec.scheme is not None:
            whole_blocks(spec.scheme, spec.shape, box)
        source = self.store.specs[name].scheme
        both = common(block_grain(source, spec.shape), block_grain(spec.scheme, spec.shape))
        outer = box if source is None else outward(box, spec.shape, both)
        value = checked(self.transform.apply(name, self.store.read(name, outer), outer), spec, outer, name)
        if outer == box:
            return value
        inner = tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))
        return inner_box(value, replace(spec, shape=tuple(o.stop - o.start for o in outer)), inner)


def _same_twice(part: Part, held: Any, again: Any) -> None:
    """
    Raises:
        SourceError: two leaves are to hold one scale and do not.
    """
    if held.tobytes() != again.tobytes():
        text = f"holds {again.tolist()}, another leaf of the same tensor {held.tolist()}; one scale is for both"
        raise SourceError(f"{part.leaf}: {text}")


def _fold(part: Part, array: Any) -> Any:
    """Leaf box → component box."""
    if part.unfold:
        array = array.reshape(*array.shape[:-2], array.shape[-2] * part.unfold)
    if part.transpose:
        array = array.swapaxes(-1, -2)
    return array if part.packing is None else part.packing.unpack(array)


def _unfold(part: Part, array: Any) -> Any:
    """Component box → leaf box."""
    if part.packing is not None:
        array = part.packing.pack(array)
    if part.transpose:
        array = array.swapaxes(-1, -2)
    if part.unfold:
        array = array.reshape(*array.shape[:-1], array.shape[-1] // part.unfold, part.unfold)
    return array
