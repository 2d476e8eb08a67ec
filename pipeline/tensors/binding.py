"""Bindings: which leaves of a file hold which component of which logical tensor, and how.

A dialect makes them, in both directions; what is named here is all that readers and writers know of a file's packing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.hooks import hooks_of
from pipeline.tensors.spec import TensorSpec


class Packing(Protocol):
    """How a leaf orders what it holds, where more than reshaping is needed. Must pickle.

    Packing loses nothing: it reorders bytes, or widens floats. Only a packing that cannot `pack` may decode a type that
    no scheme describes.
    """

    @property
    def dtype(self) -> str:
        """Dtype of the leaf."""
        ...

    @property
    def row_multiple(self) -> int:
        """A box's rows must be a multiple of this."""
        ...

    def box(self, box: tuple[slice, ...]) -> tuple[slice, ...]:
        """The leaf's box for a box of the component (of the tensor, when the part's component is `*`)."""
        ...

    def pack(self, value: Any) -> Any:
        """Component → leaf array (a QTensor → leaf array, for `*`)."""
        ...

    def unpack(self, array: Any) -> Any:
        """The inverse of `pack`."""
        ...


@hooks_of(Packing)
class PackingHooks:
    """What a packing may have beside that."""

    column_multiple: int = 1
    """What a box's columns must be a multiple of where no scheme says it: it decodes blocks to plain values."""


@dataclass(frozen=True, slots=True)
class Part:
    """How one component of a logical tensor lies in a leaf. The same record serves reading and writing.

    Attributes:
        leaf: name of the stored array.
        component: `values` of a plain tensor; `codes`, `scales`, `zeros` or `second` of a quantized one; `*` for a
            leaf that holds all of a quantized tensor interleaved (GGUF), which `packing` takes apart.
        row0: the row (dimension 0, before `transpose`) of the leaf at which this tensor's row 0 lies (q, k, v fused
            in one qkv leaf).
        transpose: the leaf holds the last two dimensions swapped: `[..., in, out]`.
        unfold: when > 0, the leaf's last dimension is split in two, `[..., n / unfold, unfold]`, after `transpose`.
        at: the leaf holds only this index of dimension 0, without the dimension (experts stored one by one).
        lane: `(dim, phase, step)`, `dim` counted from the end: the leaf holds only the indices phase, phase + step, …
            of that dimension (gate and up rows, stored apart). The parts of all phases stand in order.
        packing: how the leaf orders bytes, when that is not the component's own order.
    """

    leaf: str
    component: str = "values"
    row0: int = 0
    transpose: bool = False
    unfold: int = 0
    at: int | None = None
    lane: tuple[int, int, int] | None = None
    packing: Packing | None = None


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
