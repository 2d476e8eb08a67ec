"""Stages that do next to nothing, to plan with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.digest import InputFile
from pipeline.errors import Problem
from pipeline.planning.wiring import Plan, make_plan, wire
from pipeline.stage import Checkpoint, Chunk, Context, Footprint, OutputFile, Prediction, Work
from pipeline.tensors.pieces import Piece
from pipeline.tensors.views import MappedStore
from tests.cases.memory_store import MemoryStore

CTX = Context(Path("/nowhere"))


@dataclass(frozen=True)
class Source:
    names: tuple[str, ...] = ("w",)
    inputs: tuple[InputFile, ...] = ()

    def run(self, ctx: Context) -> Checkpoint:
        return Checkpoint(MemoryStore({n: np.zeros((2, 3), "f4") for n in self.names}), inputs=self.inputs)


@dataclass(frozen=True)
class View:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, store=MappedStore(checkpoint.store, Same()))


@dataclass(frozen=True)
class Same:
    def spec(self, name: str, spec: Any) -> Any:
        return spec

    def apply(self, name: str, value: Any, index: Any) -> Any:
        return value


@dataclass(frozen=True)
class Passes:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint


@dataclass(frozen=True)
class Compare:
    def run(self, ctx: Context, before: Checkpoint, after: Checkpoint) -> "Verdict":
        return Verdict()


class Verdict:
    pass


class Finer(Verdict):
    pass


@dataclass(frozen=True)
class GivesFiner:
    def run(self, ctx: Context) -> Finer:
        return Finer()


@dataclass(frozen=True)
class TakesVerdict:
    def run(self, ctx: Context, verdict: Verdict) -> None:
        return None


@dataclass(frozen=True)
class Reads:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.store.read(next(iter(checkpoint.store.specs)))
        return checkpoint


@dataclass(frozen=True)
class Raises:
    why: Exception

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        raise self.why


@dataclass
class Computes:
    """Eager: `plan` predicts, `run` would read."""

    ran: list[str] = field(default_factory=list)

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(checkpoint, Footprint(host_nbytes=7))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        self.ran.append("run")
        return checkpoint


@dataclass(frozen=True)
class Written:
    n: int


@dataclass(frozen=True)
class WriteWork:
    store: Any
    chunks: Sequence[Chunk] = (Chunk((Piece("w", ()),), 24, 24, 100), Chunk((Piece("v", ()),), 24, 24, 70))
    outputs: Sequence[OutputFile] = ()

    def begin(self, *, fresh: bool) -> None: ...

    def do(self, chunk: Chunk) -> str:
        return ""

    def digest(self, chunk: Chunk) -> str:
        return ""

    def finish(self) -> Written:
        return Written(1)


@dataclass(frozen=True)
class Write:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Written]:
        return WriteWork(checkpoint.store)


@dataclass(frozen=True)
class TakesWritten:
    def run(self, ctx: Context, written: Written) -> None:
        return None


def edges(**stages: Any) -> Mapping[str, Mapping[str, str]]:
    problems: list[Problem] = []
    nodes = wire(stages, problems)
    assert problems == []
    return {name: node.inputs for name, node in nodes.items()}


def wrong(**stages: Any) -> list[str]:
    wire(stages, problems := [])  # type: ignore[var-annotated]
    return [str(p) for p in problems]


def planned(**stages: Any) -> Plan:
    return make_plan(stages, CTX)


@dataclass(frozen=True)
class Judge:
    """Takes what not every run has, in either order."""

    def plan(self, checkpoint: Checkpoint, *, verdict: Verdict | None = None) -> Prediction:
        return Prediction("judged" if verdict is None else "judged again", Footprint())

    def run(self, ctx: Context, checkpoint: Checkpoint, verdict: Verdict | None = None) -> str:
        return str(self.plan(checkpoint, verdict=verdict).result)
