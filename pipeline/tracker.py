"""What a tracker is: a program that collects runs, told of them while they are at work.

A run's folder is the truth, and a tracker is told what stands there, from one thread of one process, whoever computes.
So it is never asked for anything but what it has of a run already, and nothing is lost when it cannot be reached.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

State = Literal["complete", "failed", "killed"]


@dataclass(frozen=True, slots=True)
class Point:
    """One number of a run.

    Attributes:
        name: `train/loss`; of a member of a population `train/loss/member 3`.
        value: not finite, where it was not.
        step: updates before it, or looks, of what is seen every so often; None: it is of the whole run.
        time: seconds since the epoch.
        unit: as `pipeline.figures.Figure` has it.
    """

    name: str
    value: float
    step: int | None
    time: float
    unit: str = ""


@dataclass(frozen=True)
class Tracked:
    """A run, or a sweep of several, as a tracker is told of it when it begins.

    Attributes:
        id: of the run, from its first try to its last: 32 hexadecimal digits.
        name: of its folder.
        folder: absolute.
        started: seconds since the epoch.
        config: by dotted key, what came from the environment by name.
        tags: in words: `command` (of a run), `folder`, `version`.
        parent: what the tracker called the sweep that it is of; empty: it is of none.
        sweep: it is no run, but several are of it.
        token: of its record here, which was written before the tracker is told to begin: a run that was begun with it
            already, by a process that was killed before it knew what the tracker calls it, is that run; empty: it has
            none, and is a run of its own.
    """

    id: str
    name: str
    folder: Path
    started: float
    config: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    parent: str = ""
    sweep: bool = False
    token: str = ""


class Tracker(Protocol):
    """A frozen dataclass; what it raises is of any kind, and said to people as it is.

    Attributes:
        required: a run that cannot be told fails.
        weights: exports are told too.
        patience_s: how long a run that is done waits for it.
    """

    @property
    def required(self) -> bool: ...

    @property
    def weights(self) -> bool: ...

    @property
    def patience_s(self) -> float: ...

    @property
    def place(self) -> str:
        """Where it collects, for people; the same place, the same words."""

    @property
    def host_nbytes(self) -> int:
        """Memory that its client takes in the process that tells it, for plans."""

    @property
    def needs(self) -> Mapping[str, str]:
        """Modules that have to be there, and what installs each: of mlflow weightmill[mlflow]."""

    def begin(self, run: Tracked, known: str = "") -> str:
        """A run is at work, and shows as that; returns what the tracker calls it.

        Args:
            known: what it called an earlier try of this run, which goes on; empty: there was none, or it is not known,
                and then it is looked for by `run.token`. Where it is gone, it is told all again, under another name.
        """

    def last(self, tracked: str, names: Sequence[str]) -> Mapping[str, int]:
        """The largest step that it has of points of these names; asked when a run goes on after it was killed."""

    def log(self, tracked: str, points: Sequence[Point]) -> None:
        """Add points, a few thousand at most. Those that it has already, equal in all, are not added again."""

    def files(self, tracked: str, files: Mapping[str, Path]) -> None:
        """Take copies of files, by what they are called there, with / between folders."""

    def end(self, tracked: str, state: State) -> None:
        """It is at work no more. Said once more when another process finds that a run was killed."""


def told(value: Any) -> str:
    """A value of a config as trackers have it: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
