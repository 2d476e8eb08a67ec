"""Low-rank adapters, whoever trained them: what is added to a tensor or to a stack of experts, and tensors with it.

w + scale · b · a, scale = alpha / r (LoRA, arXiv 2106.09685), or alpha / √r (rsLoRA, arXiv 2312.03732)

r rank, E experts
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.digest import InputFile
from pipeline.errors import Problem
from pipeline.ops import Kernel
from pipeline.tensors.blocks import block_grain, outward
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, TensorStore, normalize
from pipeline.tensors.store_view import StoreView


class AdapterFormat(Protocol):
    """A plugin node: how adapters lie in files of their own."""

    def problems(self, names: Iterable[tuple[str, ...]]) -> Iterator[Problem]:
        """Why adapters for these parameters, each given by its tensors, cannot be written."""
        ...

    def write(self, folder: Path, layers: "Sequence[Layer]", *, dropout: float) -> None:
        """Write them.

        Args:
            folder: made if it is not there.
            dropout: that they were trained with.

        Raises:
            PlanError: `problems` has some.
            StorageError: the files cannot be written.
        """
        ...

    def inputs(self, folder: Path) -> tuple[InputFile, ...]:
        """The files that `read` reads.

        Raises:
            SourceError: they are not there.
        """
        ...

    def read(self, folder: Path, specs: Mapping[str, TensorSpec]) -> "tuple[Layer, ...]":
        """The adapters in `folder`, for a checkpoint with these tensors.

        Raises:
            SourceError: no such files, or broken ones.
            PlanError: adapters of another kind, or for other tensors; all problems at once.
        """
        ...


def scale_of(alpha: float, rank: int, *, rslora: bool) -> float:
    """The factor on what is added."""
    return alpha / (rank**0.5 if rslora else rank)


@dataclass(frozen=True, eq=False)
class Layer:
    """What is added to one parameter.

    Attributes:
        names: the tensors that it is: one, or those of all experts in order, where files have them one by one.
        a: float32 `[r, in]`; of experts `[E, r, in]`.
        b: float32 `[out, r]`; of experts `[out, r, E]`, as PEFT has them (peft, tuners/lora/layer.py, ParamWrapper).
        alpha, rslora: see the module.
    """

    names: tuple[str, ...]
    a: Any
    b: Any
    alpha: float
    rslora: bool = False

    @property
    def rank(self) -> int:
        return int(self.a.shape[-2])

    @property
    def scale(self) -> float:
        return scale_of(self.alpha, self.rank, rslora=self.rslora)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter."""
        return (*self.a.shape[:-2], self.b.shape[0], self.a.shape[-1])

    def delta(self, name: str, box: tuple[slice, ...]) -> Any:
        """float32, what is added to the box of the tensor `name`."""
        *expert, rows, columns = box
        if self.a.ndim == 2:
            return np.float32(self.scale) * (self.b[rows] @ self.a[:, columns])
        if len(self.names) > 1:
            at = self.names.index(name)
            return np.float32(self.scale) * (self.b[rows, :, at] @ self.a[at, :, columns])
        a, b = self.a[expert[0], :, columns], np.moveaxis(self.b[rows, :, expert[0]], 2, 0)
        return np.float32(self.scale) * (b @ a)


@dataclass(frozen=True)
class MergedStore(StoreView):
    """A store's tensors with what adapters add to them: computed where they are read, in float32, rounded once.

    Attributes:
        store: what is read.
        layers: what is added.
        plain: specs of the tensors that are plain then, in which dtype; all that `layers` are for are among them. The
            others are as they were.
        cast, unpack: the kernels that round and decode.
    """

    store: TensorStore
    layers: tuple[Layer, ...]
    plain: Mapping[str, TensorSpec]
    cast: Kernel
    unpack: Kernel

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: self.plain.get(name, spec) for name, spec in self.store.specs.items()}

    @cached_property
    def _added(self) -> dict[str, Layer]:
        return {name: layer for layer in self.layers for name in layer.names}

    def read(self, name: str, index: Index = ()) -> Any:
        if name not in self.plain:
            return self.store.read(name, index)
        spec, layer = self.plain[name], self._added.get(name)
        box = normalize(index, spec.shape)
        outer = outward(box, spec.shape, block_grain(self.store.specs[name].scheme, spec.shape))
        value = self.store.read(name, outer)
        if isinstance(value, QTensor):
            value = self.unpack(value, "F32" if layer is not None else spec.dtype)
        if outer != box:
            value = value[tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))]
        if layer is not None:
            value = value.astype("float32") + layer.delta(name, box)
        return value if value.dtype == numpy_dtype(spec.dtype) else self.cast(value, spec.dtype)
