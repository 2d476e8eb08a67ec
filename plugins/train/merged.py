"""A checkpoint's tensors with what adapters add to them: computed where they are read, in float32, rounded once."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.ops import Kernel
from pipeline.tensors.blocks import block_grain, outward
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, TensorStore, normalize
from pipeline.tensors.store_view import StoreView
from plugins.facts.lora import Layer


@dataclass(frozen=True)
class MergedStore(StoreView):
    """The lazy view. All tensors are plain, in the dtypes that `plain` says.

    Attributes:
        store: what is read.
        layers: what is added.
        plain: of the tensors that there are.
        cast, unpack: the kernels that round and decode.
    """

    store: TensorStore
    layers: tuple[Layer, ...]
    plain: Mapping[str, TensorSpec]
    cast: Kernel
    unpack: Kernel

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self.plain

    @cached_property
    def _added(self) -> dict[str, Layer]:
        return {name: layer for layer in self.layers for name in layer.names}

    def read(self, name: str, index: Index = ()) -> Any:
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
