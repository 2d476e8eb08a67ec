"""The tensors of a model, or of any tree of JAX arrays, as a store: what exports read is fetched from the devices that
hold it, one box at a time. No tensor is gathered, so host memory stays that of a chunk.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np

from pipeline.errors import StageError, did_you_mean
from pipeline.tensors.blocks import Box, component_box
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.regions import ends, overlap, within
from pipeline.tensors.spec import TensorSpec, dtype_name
from pipeline.tensors.store import Index, normalize


class Parameter(Protocol):
    """What is asked of a parameter: see `plugins.models.common.weights.Weights`."""

    names: Sequence[str]
    spec: TensorSpec
    stack: bool

    def get_value(self) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A tensor on devices.

    Attributes:
        spec: of the tensor.
        value: a `jax.Array`, or a QTensor of them.
        at: which of its first dimension it is; None: all of it.
    """

    spec: TensorSpec
    value: Any
    at: int | None = None

    def box(self, box: Box) -> Box:
        """A box of the tensor as one of `value`, or of a component of both."""
        return box if self.at is None else (slice(self.at, self.at + 1), *box)

    @property
    def components(self) -> Mapping[str, Any]:
        return self.value.components if isinstance(self.value, QTensor) else {"values": self.value}


@dataclass(frozen=True, eq=False)
class DeviceStore:
    """A `TensorStore` of what lies on devices. It does not travel to another process."""

    tensors: Mapping[str, Held]

    @classmethod
    def of_parameters(cls, parameters: Iterable[Parameter]) -> "DeviceStore":
        """Of a model's parameters, under the names of the checkpoint's tensors."""
        found: dict[str, Held] = {}
        for param in parameters:
            value, spec = param.get_value(), param.spec
            one = TensorSpec(spec.shape[1:], spec.dtype, spec.scheme) if param.stack else spec
            found |= {name: Held(one, value, i if param.stack else None) for i, name in enumerate(param.names)}
        return cls(found)

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {name: held.spec for name, held in self.tensors.items()}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def read(self, name: str, index: Index = ()) -> Any:
        """The box, in memory of its own.

        Raises:
            KeyError: no such tensor.
            IndexError: a box outside the tensor, or one that cuts a block.
            StageError: a part of it lies on no device of this process.
        """
        held = self.tensors.get(name)
        if held is None:
            raise KeyError(f"no tensor {name!r}{did_you_mean(name, self.tensors)}")
        found = {}
        for component, array in held.components.items():
            value = _fetched(array, held.box(component_box(held.spec, component, index)), name)
            found[component] = value if held.at is None else value[0]
        return found["values"] if held.spec.scheme is None else QTensor(scheme=held.spec.scheme, **found)

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        """See `StoreHooks.read_nbytes`: nothing comes out of files."""
        return 0

    def shares(self, name: str) -> list[tuple[Box, int]] | None:
        """See `StoreHooks.shares`: of the processes that hold a box, one is to read it."""
        held = self.tensors[name]
        array = next(iter(held.components.values()))
        if array.is_fully_addressable:
            return None
        shape = held.spec.shape if held.at is None else (len(array), *held.spec.shape)
        first: dict[tuple[tuple[int, int], ...], Any] = {}
        for device, index in array.sharding.devices_indices_map(shape).items():
            box = ends(normalize(index or (), shape))
            if box not in first or device.id < first[box].id:
                first[box] = device
        boxes = [(tuple(slice(*side) for side in box), device.process_index) for box, device in first.items()]
        if held.at is None:
            return boxes
        return [(box[1:], process) for box, process in boxes if box[0].start <= held.at < box[0].stop]

    def __reduce__(self) -> Any:
        raise TypeError("what lies on this process's devices does not travel to another process")


def held_spec(value: Any) -> TensorSpec:
    """Of a `jax.Array` or a QTensor of them, which decodes to BF16, or of shapes alone.

    Raises:
        SourceError: no tensor has such numbers.
    """
    if isinstance(value, QTensor):
        return TensorSpec(tuple(value.shape), "BF16", value.scheme)
    return TensorSpec(tuple(value.shape), dtype_name(np.dtype(value.dtype)))


def _fetched(array: Any, box: Box, name: str) -> Any:
    """A box of an array from those of its shards that lie here; each part of it once."""
    out = np.empty([s.stop - s.start for s in box], array.dtype)
    missing, seen = out.size, set()
    for shard in array.addressable_shards:
        lies = normalize(shard.index, array.shape)
        part = overlap(lies, box)
        if part is None or ends(lies) in seen:
            continue
        seen.add(ends(lies))
        taken = _part(shard.data, within(part, lies))
        out[within(part, box)] = taken
        missing -= taken.size
    if missing:
        here = f"process {jax.process_index()} of {jax.process_count()}"
        raise StageError(f"{name}: {missing:,} of {out.size:,} elements lie on devices that are not those of {here}")
    return out


def _part(data: Any, box: Box) -> Any:
    """A box of what one device holds, and no more than it on the host."""
    if data.device.platform == "cpu":
        return np.asarray(data)[box]  # the same memory
    return _sliced(data, box)


def _sliced(data: Any, box: Box) -> Any:
    """Cut on the device; one program for each shape."""
    return np.asarray(jax.lax.dynamic_slice(data, [s.start for s in box], [s.stop - s.start for s in box]))
