"""What `dask.memory` allows: the number that is given, or for `auto` what conversions need and this process may have.

The memory of the machine is not what a process may have: a container, a job of a scheduler or `ulimit -v` may give it
less. Linux says so in /proc and /sys/fs/cgroup (cgroups(7), proc(5); the files are those of the kernel's
admin-guide/cgroup-v2 and cgroup-v1/memory).
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.spine import AUTO, Dask
from pipeline.units import parse_bytes, show_bytes

CONVERSION = 2 << 30  # bytes that are enough to convert anything, whatever its size
SHARE = 0.8  # of what the process may have: the page cache and everybody else want some too
PERCENT = f"{SHARE * 100:.0f} %"


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds on a run.

    Attributes:
        conversion: bytes for processes and tasks.
        total: bytes for these and for running models; None: what the workers of a cluster have, known when connected.
        said: for people: what the bound is, and where it comes from.
    """

    conversion: int
    total: int | None
    said: str


def budget(conf: Dask, root: Path = Path("/")) -> Budget:
    """What `conf.memory` allows. With `dask.address` all of it is of each worker.

    Args:
        root: where proc and sys are, for tests.
    """
    if conf.memory != AUTO:
        given = parse_bytes(conf.memory, "dask.memory", bare=1 << 20)
        return Budget(given, given, str(conf.memory))
    if conf.address:
        text = f"auto: {show_bytes(CONVERSION)} for conversions; models {PERCENT} of the memory that a worker has"
        return Budget(CONVERSION, None, text)
    most, where = min(limits(root))
    total = int(most * SHARE)
    conversion = min(CONVERSION, total)
    text = f"auto: {show_bytes(total)}, {PERCENT} of {show_bytes(most)} ({where})"
    return Budget(conversion, total, f"{text}; {show_bytes(conversion)} of it for conversions")


def limits(root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Every bound on the memory of this process: bytes, and whose it is."""
    yield _available(root), "available on this machine"
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield soft, "ulimit -v"
    for folder, names in _cgroups(root):
        for name in names:
            if (nbytes := _number(folder / name)) is not None:
                yield nbytes, str(folder / name)


def _available(root: Path) -> int:
    """What could be had without swapping: free memory and what caches would give back."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroups(root: Path) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """The folder of this process's memory cgroup and those above it, and which of their files are limits.

    Within a container the path may be one of the host's, which is not there; the mount itself then is the container's.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, controllers_path = line.partition(":")
        controllers, _, path = controllers_path.partition(":")
        if controllers == "":
            mounts = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
            names: tuple[str, ...] = ("memory.max", "memory.high")
        elif "memory" in controllers.split(","):
            mounts, names = [root / "sys/fs/cgroup/memory"], ("memory.limit_in_bytes",)
        else:
            continue
        for mount in mounts:
            here = mount / path.strip("/")
            for folder in (here, *here.parents):
                yield folder, names
                if folder == mount:
                    break


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such file here, or "max"
        return None
