"""Which JAX devices a mesh takes, and how arrays lie on them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pipeline.errors import PlanError
from pipeline.mesh import Layout, Mesh
from pipeline.planning.layout import device_problems


def arrange(mesh: Mesh, devices: Sequence[Any]) -> jax.sharding.Mesh:
    """The devices as the grid that `mesh` says, in order: the last axis changes fastest; but along the axis `host` they
    are those of another process each, wherever it stands.

    Args:
        devices: those of a process are together.

    Raises:
        PlanError: there are more or fewer of them.
    """
    if problems := device_problems(mesh, len(devices)):
        if {device.platform for device in devices} == {"cpu"}:
            hint = f"; XLA_FLAGS=--xla_force_host_platform_device_count={mesh.size} makes a CPU so many"
            problems = [replace(p, message=p.message + hint) for p in problems]
        raise PlanError(problems)
    grid = np.empty(mesh.size, object)
    grid[[device for host in mesh.hosts for device in host]] = devices
    return jax.sharding.Mesh(grid.reshape(tuple(mesh.axes.values())), tuple(mesh.axes))


def sharding(mesh: jax.sharding.Mesh, layout: Layout) -> NamedSharding:
    """How an array of that layout lies on the devices."""
    return NamedSharding(mesh, PartitionSpec(*(axes or None for axes in layout.axes)))  # type: ignore[no-untyped-call]
