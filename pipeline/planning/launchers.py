"""Whether this command was started several times at once, as batch systems and launchers of processes do.

A run is one command, and starts its processes itself. Whoever is used to `srun python train.py`, where all find each
other, starts as many runs, which would be in each other's way.
"""

import os
from collections.abc import Iterator, Mapping

from pipeline.errors import Problem

# Of a process: its number, and how many there are. Slurm says the second one to the tasks of a step only (srun(1)), so
# that a batch script, which is one process, is none of them.
LAUNCHERS = {
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"), "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"), "torchrun": ("RANK", "WORLD_SIZE"),
}  # fmt: skip


def started_several(processes: int, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """What is wrong when a run of several processes is itself one of several that a launcher started.

    Args:
        processes: `mesh.processes`.
    """
    for launcher, (rank, size) in LAUNCHERS.items():
        there = environ.get(size, "")
        if processes > 1 and rank in environ and there.isdecimal() and int(there) > 1:
            text = f"{processes}, and {launcher} started this as process {environ[rank]} of {there} ({rank}, {size})"
            cure = "a run is one command, which starts its processes itself; on several machines have it start a Dask"
            yield Problem("mesh.processes", f"{text}; {cure} worker on each, and give this their dask.address=")
            return
