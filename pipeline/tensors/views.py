"""Lazy views between stores: joining leaves into logical tensors, splitting them back, mapping them on the way.

Nothing here knows a dialect, a file or a model: a dialect says with `Part`s where a tensor lies, and the box arithmetic
that follows from it is done here once, for reading and for writing. A view never caches and never converts values; it
reads exactly the bytes of the box it is asked for.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from pipeline.errors import PlanError, Problem, SourceError, did_you_mean
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.blocks import (
    block_grain,
    box_of,
    common,
    component_box,
    each,
    inner_box,
    outward,
    read_nbytes_of,
    tensor_grain,
    whole_blocks,
)
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from pipeline.tensors.steps import Pick
from pipeline.tensors.store import Index, TensorStore, checked, normalize
from pipeline.tensors.store_view import StoreView

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

    @cached_property
    def _grains(self) -> dict[str, tuple[int, ...]]:
        """Those that were asked for."""
        return {}

    def grain(self, name: str) -> tuple[int, ...]:
        found = self._grains.get(name)
        if found is None:
            found = self._grains[name] = grain(self.binding.tensors[name])
        return found

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
        box = self._taken(name, wanted)
        value = self._read(bound, box)
        if box != wanted:
            inner = tuple(slice(w.start - b.start, w.stop - b.start) for w, b in zip(wanted, box, strict=True))
            value = inner_box(value, inner)
        return checked(value, bound.spec, index, name)

    def _taken(self, name: str, box: Box) -> Box:
        """What is read of the leaves for a box."""
        spec = self.binding.tensors[name].spec
        whole_only = spec.scheme is not None and spec.scheme.whole_only
        return box if whole_only else outward(box, spec.shape, self.grain(name))

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        """Of the leaves that are read: one scale may serve many experts, and one leaf several tensors."""
        bound = self.binding.tensors[name]
        leaves: dict[str, list[Box]] = {}
        for index in boxes:
            read = set()
            for part, _, leaf in held(bound, self._taken(name, normalize(index, bound.spec.shape))):
                if part.picks or part.component not in read:
                    leaves.setdefault(part.leaf, []).append(leaf)
                if not part.picks:
                    read.add(part.component)
        return sum(read_nbytes_of(self.leaves, leaf, taken) for leaf, taken in leaves.items())

    def _read(self, bound: Bound, box: Box) -> Any:
        """A box that every part of `bound` can deliver."""
        spec = bound.spec
        taken_apart = {p.component for p in bound.parts if p.picks} - {"*"}
        found: dict[str, Any] = {c: _room(spec, c, box) for c in taken_apart}
        filled: dict[str, int] = dict.fromkeys(taken_apart, 0)
        read: set[tuple[str, tuple[Pick, ...]]] = set()
        for part, own, leaf in held(bound, box):
            # What is stored twice is read once (tied embeddings), or is one scale of an expert, and small.
            again = (part.component, part.picks) in read
            if again and not part.picks:
                continue
            read.add((part.component, part.picks))
            value = part.unpack(self.leaves.read(part.leaf, leaf))
            if not part.picks:
                found[part.component] = value
                continue
            if part.component not in found:
                found["*"] = replace(value, **{c: _room(spec, c, box) for c in value.components})
            place = picked(part, found[part.component], own)
            if again:
                _same_twice(part, place, value)
                continue
            _fill(place, value)
            filled[part.component] = filled.get(part.component, 0) + math.prod(value.shape)
        for component, size in filled.items():
            if size != math.prod(found[component].shape):
                raise AssertionError(
                    f"{bound.parts[0].leaf}: parts hold {size} elements of {component} {found[component].shape}"
                )
        whole = found.pop("*", None)
        if whole is not None:
            return replace(whole, scheme=spec.scheme, **found) if found else whole
        return found["values"] if spec.scheme is None else QTensor(scheme=spec.scheme, **found)


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
    out = []
    for part, own, leaf in held(bound, index):
        array = value.component(part.component) if isinstance(value, QTensor) and part.component != "*" else value
        out.append((part.leaf, leaf, part.pack(picked(part, array, own))))
    return out


def grain(bound: Bound) -> tuple[int, ...]:
    """For each dimension, what the bounds of a box must be multiples of to be written (the end may be the end)."""
    out = list(block_grain(bound.spec.scheme, bound.spec.shape))
    if bound.spec.scheme is None and out and (bits := DTYPE_BITS[bound.spec.dtype]) < 8:
        if bound.spec.shape[-1] * bits % 8:  # rows do not fill bytes: such a tensor is read and written whole
            return tuple(max(1, n) for n in bound.spec.shape)
        out[-1] = 8 // math.gcd(8, bits)
    for part in bound.parts:
        if out and (part.steps or part.picks):
            dims = len(_whole(part, bound.spec))
            out = list(common(tuple(out), tensor_grain(bound.spec, part.component, part.grain(dims))))
    return tuple(out)


def held(bound: Bound, index: Index) -> Iterator[tuple[Part, Box, Box]]:
    """The parts that hold something of the box `index`, each with the box of its component and that of its leaf.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block.
    """
    of: dict[str, Box] = {}  # of a thousand experts most hold nothing of a box: it is worked out once for all of them
    for part in bound.parts:
        box = of.get(part.component)
        if box is None:
            box = of[part.component] = box_of(part.component, bound.spec, index)
        if (leaf := part.box(box)) is not None:
            yield part, box, leaf


def leaf_boxes(bound: Bound, index: Index) -> list[tuple[Part, Box]]:
    """The parts that hold something of the box `index`, each with the box of its leaf.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block.
    """
    return [(part, leaf) for part, _, leaf in held(bound, index)]


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
            box = _whole(part, bound.spec)
            spec = _stored(part, bound.spec, box)
            size = math.prod(s.stop - s.start for s in box)
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
    return _stored(part, spec, _whole(part, spec))


def _whole(part: Part, spec: TensorSpec) -> Box:
    box = leaf_box(part, spec, ())
    assert box is not None, f"{part.leaf}: picks what {spec.shape} does not have"
    return box


def _stored(part: Part, spec: TensorSpec, box: Box) -> TensorSpec:
    own = spec.scheme.dtypes.get(part.component, "") if spec.scheme is not None else spec.dtype
    return TensorSpec(tuple(s.stop for s in box), part.dtype(own))


def leaf_box(part: Part, spec: TensorSpec, index: Index) -> Box | None:
    """The box of the leaf that holds the box `index` of a tensor of `spec`; None: it holds nothing of it.

    Raises:
        IndexError: a box outside the tensor, or one that cuts a block or what else belongs together.
    """
    return part.box(box_of(part.component, spec, index))


def picked(part: Part, value: Any, box: Box) -> Any:
    """What `part` holds of a value that covers the box of its component: views."""
    for where in part.where(box):
        value = each(value, partial(_at, where=where))
    return value


class Transform(Protocol):
    """A change of values that keeps names and shapes. Must pickle."""

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        """What `apply` will make of a tensor of `spec`: same shape, another dtype or scheme (or the same)."""
        ...

    def apply(self, name: str, value: Any, index: Index) -> Any:
        """The transformed box; `value` is the box `index` of the source and belongs to the transform."""
        ...


@dataclass(frozen=True)
class MappedStore(StoreView):
    """`store` seen through `transform`, box by box, when read. Pickles when both do.

    A box of a tensor that the transform packs in blocks must be whole blocks, as for any quantized tensor. The blocks
    of the source are no obstacle: as much as is needed is read and transformed, and the rest cut off.
    """

    store: TensorStore
    transform: Transform

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: self.transform.spec(name, spec) for name, spec in self.store.specs.items()}

    def grain(self, name: str) -> tuple[int, ...]:
        spec = self.specs[name]
        return common(super().grain(name), block_grain(spec.scheme, spec.shape))

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
        outer = self._taken(name, box)
        value = checked(self.transform.apply(name, self.store.read(name, outer), outer), spec, outer, name)
        if outer == box:
            return value
        inner = tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))
        return inner_box(value, inner)

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        shape = self.specs[name].shape
        return read_nbytes_of(self.store, name, [self._taken(name, normalize(box, shape)) for box in boxes])

    def _taken(self, name: str, box: Box) -> Box:
        """What is read of the source for a box."""
        source, spec = self.store.specs[name].scheme, self.specs[name]
        both = common(block_grain(source, spec.shape), block_grain(spec.scheme, spec.shape))
        return box if source is None else outward(box, spec.shape, both)


def _same_twice(part: Part, held: Any, again: Any) -> None:
    """
    Raises:
        SourceError: two leaves are to hold one scale and do not.
    """
    if held.tobytes() != again.tobytes():
        text = f"holds {again.tolist()}, another leaf of the same tensor {held.tolist()}; one scale is for both"
        raise SourceError(f"{part.leaf}: {text}")


def _at(array: Any, where: tuple[Any, ...]) -> Any:
    return array[where]


def _room(spec: TensorSpec, component: str, box: Box) -> Any:
    """An array for the box of a component, uninitialized."""
    dtype = spec.dtype if spec.scheme is None else spec.scheme.dtypes[component]
    shape = [s.stop - s.start for s in component_box(spec, component, box)]
    if spec.scheme is None and shape and (bits := DTYPE_BITS[dtype]) < 8:
        shape[-1] = shape[-1] * bits // 8  # sub-byte elements are held packed
    return np.empty(shape, numpy_dtype(dtype))


def _fill(place: Any, value: Any) -> None:
    """Write `value` into views."""
    if isinstance(value, QTensor):
        for component, array in value.components.items():
            place.component(component)[...] = array
    else:
        place[...] = value
