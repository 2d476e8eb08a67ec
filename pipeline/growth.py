"""What something whose cost is held against its size is: `flow=bench_scale` measures it at every size, and fits.

Each size is prepared in one process and measured in others, which have done nothing else; what it takes of the disk is
gone before the next one's turn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

GIVEN = {"seconds": "s", "cpu": "s", "peak": "B"}
"""What is measured of every process, beside what it finds itself: its time from its very beginning, interpreter,
imports and all; that of all its threads on a CPU, which others hardly change; and the most memory that it had."""


class Growing(Protocol):
    """A frozen dataclass that pickles; its module imports no framework until it measures."""

    @property
    def label(self) -> str:
        """What a size is, for people: `MB`, `tensors`, `tokens`, …"""

    @property
    def points(self) -> tuple[int, ...]:
        """The sizes, ascending."""

    @property
    def units(self) -> Mapping[str, str]:
        """What it finds, and the unit of each: `s` or `B`; what all have (`GIVEN`) is not named."""

    @property
    def expected(self) -> Mapping[str, float]:
        """Of each figure that is to be fitted the exponent that it is to have at most; 0: it is not to grow."""

    def show(self, size: int) -> str:
        """A size, for people."""

    def disk_nbytes(self, size: int) -> int:
        """What preparing and measuring it write at most."""

    def host_nbytes(self, size: int) -> int:
        """Memory that the process takes at most, about."""

    def prepare(self, size: int, folder: Path) -> None:
        """Write what is measured into an empty folder."""

    def measure(self, size: int, folder: Path, threads: int) -> Mapping[str, float]:
        """Do it once; what it found, by the names of `units`. It leaves behind whatever it likes in `folder`, and finds
        there what `prepare` wrote and the rounds before left."""
