"""Stands in for the text data set until that is there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.digest import InputFile, identity, small_input
from pipeline.errors import Problem
from pipeline.stage import Checkpoint
from pipeline.training import DataPlan, Splits


@dataclass(frozen=True)
class Text:
    files: tuple[str, ...]
    length: int = 128
    held_out: float = 0.05

    def inputs(self) -> tuple[InputFile, ...]:
        return tuple(small_input(Path(f).absolute()) for f in self.files if Path(f).is_file())

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        missing = [f for f in self.files if not Path(f).is_file()]
        return tuple(Problem("data.files", f"{f}: no such file") for f in missing)

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        n = sum(f.nbytes for f in self.inputs()) // 4
        one = (self.length,)
        specs = dict.fromkeys(("tokens", "targets", "positions", "segments"), (one, "int32"))
        return DataPlan(n // self.length, {**specs, "weights": (one, "float32")}, n, 4 * n)

    def open(self, results: Any, tokenizer: Any | None) -> Splits:
        def make(folder):
            ids = [i for f in self.files for i in tokenizer.encode(Path(f).read_text())]
            np.save(folder / "tokens.npy", np.asarray(ids, np.int32))

        _, folder = results.once(identity([f.identity for f in self.inputs()]), make)
        ids = np.load(folder / "tokens.npy", mmap_mode="r")
        n = (len(ids) - 1) // self.length
        cut = max(1, round(n * self.held_out))
        return Splits(_Rows(ids, self.length, 0, n - cut), _Rows(ids, self.length, n - cut, n))


class _Rows:
    def __init__(self, ids, length, begin, end):
        self.ids, self.length, self.begin, self.end = ids, length, begin, end

    def __len__(self):
        return self.end - self.begin

    @property
    def specs(self):
        one = (self.length,)
        return {
            **dict.fromkeys(("tokens", "targets", "positions", "segments"), (one, "int32")),
            "weights": (one, "float32"),
        }

    def batch(self, at):
        rows = (np.asarray(at)[:, None] + self.begin) * self.length + np.arange(self.length + 1)
        ids = self.ids[rows]
        pos = np.broadcast_to(np.arange(self.length, dtype=np.int32), (len(at), self.length)).copy()
        return {
            "tokens": ids[:, :-1].copy(),
            "targets": ids[:, 1:].copy(),
            "positions": pos,
            "segments": np.ones_like(pos),
            "weights": np.ones(pos.shape, np.float32),
        }
