"""Bindings: which leaves of a file hold which component of which logical tensor, and how.

A dialect makes them, in both directions; what is named here is all that readers and writers know of a file's packing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.tensors.inputs import InputLeaves
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Pick, Step, Transpose


@dataclass(frozen=True, slots=True)
class Part:
    """How one component of a logical tensor lies in a leaf. The same record serves reading and writing.

    Attributes:
        leaf: name of the stored array.
        component: `values` of a plain tensor; `codes`, `scales`, `zeros` or `second` of a quantized one; `*` for a
            leaf that holds all of a quantized tensor interleaved (GGUF), which a packing takes apart.
        steps: how it lies there, from the component to the leaf; see `pipeline.tensors.steps`.
        picks: which of the component it is, before any step; none: all of it. Where several parts pick from one
            component, together they hold all of it.
    """

    leaf: str
    component: str = "values"
    steps: tuple[Step, ...] = ()
    picks: tuple[Pick, ...] = ()

    @property
    def turned(self) -> bool:
        """Whether what are columns here are rows of the leaf."""
        return any(isinstance(step, Transpose) for step in self.steps)

    def box(self, box: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """The leaf's box for a box of the component (of the tensor, when the component is `*`); None: it holds nothing.

        Raises:
            IndexError: the box cuts what belongs together.
        """
        try:
            for pick in self.picks:
                picked = pick.box(box)
                if picked is None:
                    return None
                box = picked
            for step in self.steps:
                box = step.box(box)
        except IndexError as why:
            raise IndexError(f"{self.leaf}: {why}") from None
        return box

    def where(self, box: tuple[slice, ...]) -> Iterator[tuple[Any, ...]]:
        """What is picked of an array that covers a box of the component, as indices to be taken one after the other."""
        for pick in self.picks:
            yield pick.where(box)
            picked = pick.box(box)
            assert picked is not None
            box = picked

    def pack(self, value: Any) -> Any:
        """What is picked → leaf array."""
        for step in self.steps:
            value = step.pack(value)
        return value

    def unpack(self, array: Any) -> Any:
        """The inverse of `pack`."""
        for step in reversed(self.steps):
            array = step.unpack(array)
        return array

    def grain(self, dims: int) -> tuple[int, ...]:
        """What bounds of a box of the component must be multiples of, for a leaf of `dims` dimensions."""
        found = (1,) * dims
        for step in reversed(self.steps):
            found = step.grain(found)
        for pick in reversed(self.picks):
            found = pick.grain(found)
        return found

    def dtype(self, own: str) -> str:
        """Dtype of the leaf, for a component of dtype `own`."""
        for step in self.steps:
            own = step.dtype or own
        return own


@dataclass(frozen=True, slots=True)
class Bound:
    """A logical tensor's spec and the leaves that hold it.

    Two parts may hold the same component (tied embeddings that a file stores twice): writing fills both, reading takes
    the first.
    """

    spec: TensorSpec
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A dialect applied to a concrete checkpoint.

    Attributes:
        tensors: logical name → spec and parts, in model order.
        leaves: leaf name → stored spec (no schemes), complete: the union of the regions that `tensors` names, and
            `constants`.
        config: reading: config.json as Hugging Face spells it, without quantization_config; writing: the config.json
            to write.
        ignored: what the dialect knows and leaves out, with the reason: leaves that the source has (reading), or
            logical tensors that it does not write.
        constants: leaves whose bytes follow from specs and config alone (code books, shapes), little-endian and whole;
            `leaves` has their specs too. Reading: checked by `decode`, and not read again. Writing: written once.
        files: small companion files, name → content: to write beside the tensors, or, when reading, made from what the
            source itself holds (the tokenizer in a GGUF file).
        metadata: writing: what the container's header is to say, as `Container.layout` takes it.
        notes: what a person should know of it: reading, types that are decoded because no scheme describes them;
            writing, what a program that reads it makes of it and does not say.
        drop: names of companion files of the source that must not be carried over.
        input_scales: reading: where scales are of what tensors are multiplied by; None: the source has none.
    """

    tensors: Mapping[str, Bound]
    leaves: Mapping[str, TensorSpec]
    config: Mapping[str, Any]
    ignored: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    input_scales: InputLeaves | None = None
