"""Points of a run's folder as trackers are told of them: by what name, of which step, and how far they were read.

What is seen every so often, as what a run takes of the machine, has no step. It is numbered as it stands in its file,
from 0, as programs that collect runs number such points: so each of them is known again when a run goes on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from pipeline.records import points
from pipeline.tracker import Point

AT_ONCE = 5000  # points that are handed on together


@dataclass
class _Read:
    """How far a file was read.

    Attributes:
        looks: by name of point, how many without a step were read.
        taken: points.
    """

    at: points.Position = field(default_factory=points.Position)
    looks: dict[str, int] = field(default_factory=dict)
    taken: int = 0


class PointReader:
    """Reads the metrics of a run again and again, each file from where it was."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._read: dict[Path, _Read] = {}

    @property
    def taken(self) -> int:
        """Points that were read."""
        return sum(read.taken for read in [*self._read.values()])

    @property
    def left(self) -> int:
        """Points that are there and were not read."""
        ahead = [(file, deepcopy(self._read.get(file, _Read()))) for file in points.files(self._folder)]
        return sum(1 for file, read in ahead for _ in of_run(points.points(file, read.at)))

    def read(self, take: Callable[[Sequence[Point]], None], cut: Callable[[], None]) -> None:
        """Hand on what came since the last time; a file of which not all was taken is read again from where it was.

        Args:
            take: takes some thousand points.
            cut: called before a file is read from its beginning, as it is not the one that was read: a training goes on
                from a saved state.

        Raises:
            SourceError: a file cannot be read.
        """
        for file in points.files(self._folder):
            read = deepcopy(self._read.get(file, _Read()))
            if not read.at.holds(file):
                cut()
                read = _Read()
            found = of_run(points.points(file, read.at), read.looks)
            while some := list(islice(found, AT_ONCE)):
                take(some)
                read.taken += len(some)
            self._read[file] = read

    def forget(self) -> None:
        """Read all from the beginning."""
        self._read = {}


def of_run(found: Iterable[points.Point], looks: dict[str, int] | None = None) -> Iterator[Point]:
    """Points of one file as trackers are told of them; not figures of the whole run, which are told at its end.

    Args:
        looks: by name of point, how many without a step came before; it is counted on.
    """
    looks = {} if looks is None else looks
    for p in found:
        if p.kind == points.FIGURE:
            continue
        name = p.name if p.kind == points.POINT else f"{p.kind}/{p.name}"
        name = name if p.member is None else f"{name}/member {p.member}"
        step = p.step
        if step is None:
            step = looks[name] = looks.get(name, -1) + 1
        yield Point(name, p.value, step, time.time() if p.time is None else p.time, p.unit)
