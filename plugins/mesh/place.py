"""Where parameters lie: on one device, or divided over a mesh of them, of which this process may see a part only.

What is put there is made of what each device holds: it never was one array on the host.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from pipeline.mesh import Layout, Mesh
from pipeline.tensors.blocks import Box
from pipeline.tensors.spec import TensorSpec
from plugins.mesh.components import layouts
from plugins.mesh.devices import sharding


class Placement(Protocol):
    """Where the parameters of a model lie."""

    def boxes(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[Box, Sequence[Any]]]:
        """Every distinct box of the parameter `name` that devices of this process hold, and these devices."""
        ...

    def sharding(self, name: str, spec: TensorSpec, component: str) -> Sharding:
        """How `component` (values, codes, scales, …) of the parameter `name`, which is of `spec`, lies."""
        ...


@dataclass(frozen=True)
class OnDevice:
    """Everything on one device."""

    device: Any

    def boxes(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[Box, Sequence[Any]]]:
        yield tuple(slice(0, n) for n in shape), (self.device,)

    def sharding(self, name: str, spec: TensorSpec, component: str) -> Sharding:
        return SingleDeviceSharding(self.device)


@dataclass(frozen=True)
class OnMesh:
    """Divided over devices.

    Attributes:
        mesh: how they are arranged.
        devices: the same in JAX: device number i of `mesh` is `devices.devices.flat[i]`.
        layouts: parameter, by the first of its tensors → how it lies.
    """

    mesh: Mesh
    devices: jax.sharding.Mesh
    layouts: Mapping[str, Layout]

    def boxes(self, name: str, shape: tuple[int, ...]) -> Iterator[tuple[Box, Sequence[Any]]]:
        here = jax.process_index()
        for box, numbers in self.layouts[name].boxes(self.mesh):
            devices = [self.devices.devices.flat[n] for n in numbers]
            if mine := [device for device in devices if device.process_index == here]:
                yield box, mine

    def sharding(self, name: str, spec: TensorSpec, component: str) -> Sharding:
        return sharding(self.devices, layouts(spec, self.layouts[name])[component])

