"""A member of a gang that ends itself, with no word, when it comes to a place for the nth time: what a killed process
is to the others, at a moment that tests can name."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from typing import Any

from pipeline.stage import Gang

PLACES = {
    "loading": ("plugins.engine.load:_placed", 5),
    "compiling": ("jax.stages:Lowered.compile", 1),
    "in a step": ("plugins.engine.runtime:Runtime.fetched", 2),
    "writing its part of a baseline": ("plugins.engine.score:Kept.finish", 1),
    "while the baseline is written": ("plugins.engine.runtime:Runtime.head", 1),
    "in an update": ("plugins.train.loop:_Run._row", 5),
    "saving a state": ("plugins.train.checkpoints:Checkpoints.save", 2),
    "exporting to orbax": ("stages.export_work:ExportWork.do", 3),  # the folder's name is the last word
    "exporting to safetensors": ("stages.export_work:ExportWork.do", 3),
    "in Orbax": ("orbax.checkpoint:StandardCheckpointer.close", 1),
}


@dataclass(frozen=True)
class Doomed:
    """Joins a gang as `join` does; then the process of that rank is on its way to a place of `PLACES`."""

    join: Callable[..., None]
    rank: int
    place: str

    def __call__(self, rank: int, address: str, *, alone: bool) -> None:
        self.join(rank, address, alone=alone)
        if rank != self.rank:
            return
        where, nth = PLACES[self.place]
        module, _, name = where.partition(":")
        owner: Any = import_module(module)
        *classes, function = name.split(".")
        for part in classes:
            owner = getattr(owner, part)
        real, calls = getattr(owner, function), count(1)

        def dying(*args: Any, **options: Any) -> Any:
            elsewhere = "exporting" in self.place and args[0].target.name != self.place.split()[-1]
            if not elsewhere and next(calls) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)

        setattr(owner, function, dying)


def doomed(gang: Gang, rank: int, place: str) -> Gang:
    """The same, of which one member is killed there."""
    return replace(gang, join=Doomed(gang.join, rank, place))
