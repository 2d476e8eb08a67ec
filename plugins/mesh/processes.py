"""This process as one of several that JAX runs programs in together."""

import os

import jax

from pipeline.errors import PlanError, Problem
from pipeline.mesh import Mesh

FORCED = "--xla_force_host_platform_device_count"  # JAX takes either this flag or its own option


def join(mesh: Mesh, rank: int, address: str) -> None:
    """Make this process one of those that the devices of `mesh` are divided among; before JAX is used.

    Its devices are so many of its CPU's.

    Args:
        rank: which.
        address: HOST:PORT of the first, which listens there and not at all addresses of the machine.
    """
    os.environ["XLA_FLAGS"] = " ".join(f for f in os.environ.get("XLA_FLAGS", "").split() if not f.startswith(FORCED))
    for option, value in (("jax_platforms", "cpu"), ("jax_num_cpu_devices", mesh.size // mesh.processes)):
        jax.config.update(option, value)  # type: ignore[no-untyped-call]
    bound = address if rank == 0 else None
    jax.distributed.initialize(address, mesh.processes, rank, coordinator_bind_address=bound)


def check(mesh: Mesh) -> None:
    """Raises PlanError: this process is not one of as many as the mesh is divided among."""
    if (there := jax.process_count()) != mesh.processes:
        said = f"{mesh.processes}, and JAX runs in {there} here; evaluate and generate start them in a run"
        raise PlanError([Problem("mesh.processes", f"{said}, anything else needs mesh.processes={there}")])
