"""Where parameters lie: on one device, or divided over a mesh of them, of which this process may see a part only."""

from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

from pipeline.mesh import Layout
from pipeline.tensors.blocks import Box
from pipeline.tensors.regions import ends
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import normalize
from plugins.mesh.components import layouts
from plugins.mesh.devices import sharding


def shardings(spec: TensorSpec, layout: Layout | None, where: Any) -> dict[str, Sharding]:
    """Component of a parameter (values, codes, scales, …) → how it lies.

    Args:
        spec: of the parameter.
        layout: None: it lies whole.
        where: a JAX mesh, or one JAX device.
    """
    if isinstance(where, jax.sharding.Mesh):
        lie = layouts(spec, layout or Layout(spec.shape, ((),) * len(spec.shape), ((),) * len(spec.shape)))
        return {component: sharding(where, lies) for component, lies in lie.items()}
    names = ["values"] if spec.scheme is None else spec.scheme.dtypes
    return {component: SingleDeviceSharding(where) for component in names}


def boxes(shape: tuple[int, ...], layout: Layout | None, where: Any) -> list[tuple[Box, list[Any]]]:
    """Every distinct box of a parameter that devices of this process hold, and these devices."""
    whole = TensorSpec(shape, "BF16")
    lies = shardings(whole, layout, where)["values"]
    found: dict[tuple[tuple[int, int], ...], list[Any]] = {}
    for device, index in lies.addressable_devices_indices_map(shape).items():
        found.setdefault(ends(normalize(index or (), shape)), []).append(device)
    return [(tuple(slice(*side) for side in box), devices) for box, devices in found.items()]
