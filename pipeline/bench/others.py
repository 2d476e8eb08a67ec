"""Who else is at work on this machine while something is measured."""

import os
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Others:
    """How many cores other processes took while the block ran; meanwhile this one waits for its children, if any.

    Attributes:
        cores: of others, and of the host's other guests, on average.
        seconds: of the block.
        cpu_s: of this process and of the children that ended in the block.
    """

    cores: float = 0.0
    seconds: float = 0.0
    cpu_s: float = 0.0
    _at: tuple[float, float, float] = field(default=(0.0, 0.0, 0.0), repr=False)

    def __enter__(self) -> "Others":
        self._at = time.perf_counter(), _own(), _busy()
        return self

    def __exit__(self, *_: object) -> None:
        start, own, busy = self._at
        self.seconds, self.cpu_s = time.perf_counter() - start, _own() - own
        self.cores = max(0.0, _busy() - busy - self.cpu_s) / self.seconds


def _own() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def _busy() -> float:
    """CPU seconds of everybody since the machine started."""
    user, nice, system, _, _, irq, softirq, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")
