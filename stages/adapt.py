"""Adapt: put adapters that somebody trained into the weights that they are for."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.adapters import AdapterFormat, Layer, MergedStore
from pipeline.errors import PlanError, Problem
from pipeline.files import of_source, placed
from pipeline.ops import Call, Kernel
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.spec import TensorSpec


@dataclass(frozen=True)
class Adapt:
    """Merge adapters: what they add is computed in fp32 and added in fp32, and the sum rounded once, to the dtype that
    the tensor has, or decodes to. Tensors that they are for are plain then; the others pass as they are.

    Attributes:
        source: folder of the adapter.
        format: how it lies there.
        cast, unpack: the kernels that round and decode.
    """

    source: str
    format: AdapterFormat
    cast: Kernel
    unpack: Kernel

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            SourceError: no adapter there, or a broken one.
            PlanError: one of another kind, or for other tensors; all problems at once.
        """
        with of_source(f"adapt.source={self.source!r:.300}"):
            inputs = self.format.inputs(self._folder)
        layers = self._layers(checkpoint)
        store = MergedStore(checkpoint.store, layers, _plain(checkpoint, layers), self.cast, self.unpack)
        return replace(checkpoint, store=store, inputs=(*checkpoint.inputs, *inputs))

    def calls(self, checkpoint: Checkpoint) -> Iterator[Call]:
        """The kernel calls that reading the result makes."""
        for name, spec in _plain(checkpoint, self._layers(checkpoint)).items():
            before = checkpoint.store.specs[name]
            if before.scheme is not None:
                yield Call(self.unpack, name, {"q": before, "dtype": "F32"})
            if spec.dtype != "F32":
                yield Call(self.cast, name, {"x": TensorSpec(spec.shape, "F32"), "dtype": spec.dtype})

    @property
    def _folder(self) -> Path:
        return placed(self.source)

    def _layers(self, checkpoint: Checkpoint) -> tuple[Layer, ...]:
        with of_source(f"adapt.source={self.source!r:.300}"):
            layers = self.format.read(self._folder, checkpoint.store.specs)
        if not layers:
            raise PlanError([Problem("adapt.source", f"{self._folder}: adapts no tensor")])
        return layers


def _plain(checkpoint: Checkpoint, layers: Iterable[Layer]) -> dict[str, TensorSpec]:
    """Specs of the tensors that adapters are for, with these."""
    specs = checkpoint.store.specs
    return {n: TensorSpec(specs[n].shape, specs[n].dtype) for layer in layers for n in layer.names}
