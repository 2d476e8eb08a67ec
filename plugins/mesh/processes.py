"""This process as one of several that JAX runs programs in together."""

import os

import jax

from pipeline.errors import PlanError, Problem
from pipeline.mesh import Mesh

FORCED = "--xla_force_host_platform_device_count"  # JAX takes either this flag or its own option


def join(mesh: Mesh, rank: int, address: str, platform: str, *, alone: bool) -> None:
    """Make this process one of those that the devices of `mesh` are divided among; before JAX is used.

    Args:
        rank: which.
        address: HOST:PORT of the first, which listens there and not at all addresses of the machine.
        platform: of the devices, as JAX names it. Of a CPU so many are made as the process is to have.
        alone: it takes all accelerators that it sees; else those of this machine are divided among the processes.

    Raises:
        PlanError: they cannot be divided.
    """
    each, mine = mesh.size // mesh.processes, None
    if platform == "cpu":
        flags = os.environ.get("XLA_FLAGS", "").split()
        os.environ["XLA_FLAGS"] = " ".join(f for f in flags if not f.startswith(FORCED))
        for option, value in (("jax_platforms", "cpu"), ("jax_num_cpu_devices", each)):
            jax.config.update(option, value)  # type: ignore[no-untyped-call]
    elif not alone and platform == "gpu":
        mine = list(range(rank * each, (rank + 1) * each))
    elif not alone:
        text = f"{mesh.processes} on one machine cannot divide its {platform}; 1, or a Dask worker on each of several"
        raise PlanError([Problem("mesh.processes", text)])
    # Who started this process has said who it is. JAX would look at what a batch system says too, where there is one,
    # and have each process take one device of the node, by its number there.
    jax.distributed.initialize(
        address, mesh.processes, rank, local_device_ids=mine, cluster_detection_method="deactivate",
        coordinator_bind_address=address if rank == 0 else None,
    )  # fmt: skip


def check(mesh: Mesh) -> None:
    """Raises PlanError: this process is not one of as many as the mesh is divided among."""
    if (there := jax.process_count()) != mesh.processes:
        text = f"{mesh.processes}, and JAX runs in {there} here; a run starts them for the stages that run a model"
        cure = f"a program of your own is started as often, and calls jax.distributed.initialize, or says {there}"
        raise PlanError([Problem("mesh.processes", f"{text}; {cure}")])
