"""Reconstruct: codes and scales of a block are trained until it gives what it gave before it was quantized."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import meter, texts
from pipeline.calibration import Reconstructor
from pipeline.digest import InputFile
from pipeline.engine import Engine, Windows, scoring
from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.figures import Figure
from pipeline.learned import REPORT, Learned
from pipeline.running import text_stream
from pipeline.stage import NEUTRAL, Checkpoint, Context, Prediction, Table
from stages.calibrate import in_both, rows_of
from stages.quantize import Quantize, coded

BLOCK = 13  # numbers in fp32 for each weight of a block that is trained: of it, its gradient, Adam and what is tried


@dataclass(frozen=True)
class Reconstruct:
    """Begin with what `quantize` makes of each tensor, and train that, block by block, in the order of the model.

    What it learns belongs to its key. Whoever was killed goes on with the block that was not finished.

    Attributes:
        reconstructor: trains a block.
        engine: whose families and operations run the model, in fp32.
        quantize: the stage after this one, which says what tensors begin with.
        texts: files, UTF-8.
        windows: how they are cut; the last tokens of a text, which fill none, are left out.
        seed: of the order of rows.
    """

    reconstructor: Reconstructor
    engine: Engine
    quantize: Quantize
    texts: tuple[str, ...] = field(metadata=NEUTRAL)  # their content counts, which is read
    windows: Windows
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.texts:
            raise ConfigError("calibrate.texts: at least one text file is needed")
        for text in self.texts:
            texts.check(text, "calibrate.texts")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        """
        Raises:
            PlanError: a scheme that nothing can be learned of, inputs that are rotated, more rows at once than texts
                can have; as `quantize`.
        """
        begun = coded(self.quantize, checkpoint)
        names = self._learned(checkpoint, begun)
        files = [texts.input_file(text) for text in self.texts]
        self._check_batch(files)
        usage = scoring([f.nbytes for f in files], self.windows)
        takes = self.engine.plan(checkpoint, plain=True, usage=usage)
        values = Counter[str]()
        for name, spec in checkpoint.store.specs.items():
            values[".".join(name.split(".")[:3])] += spec.size
        largest = 4 * BLOCK * max(values.values(), default=0)
        norms = [s.shape[0] for n, s in checkpoint.store.specs.items() if n.endswith("layernorm.weight")]
        states = 4 * max(norms, default=0) * usage.tokens  # of the unquantized and the quantized, before and behind
        again = self.reconstructor.rows * self.windows.window / max(1, usage.tokens)
        takes = replace(
            takes,
            inputs=(*takes.inputs, *files),
            device_nbytes=largest,
            host_nbytes=takes.host_nbytes - takes.device_nbytes + largest + 4 * states,
            cache_nbytes=0,
            disk_nbytes=4 * states + sum(begun.store.specs[n].nbytes for n in names),
            moved_nbytes=round((3 * again + 2) * takes.moved_nbytes),
            rate=f"{takes.rate} reconstruct",
        )
        return Prediction(replace(checkpoint, learned=Learned(None, dict.fromkeys(names, ""))), takes)

    def _check_batch(self, files: Sequence[InputFile]) -> None:
        """Raises PlanError when the texts cannot have the rows of an update, which one is left of to judge by."""
        limit = inf if self.windows.limit is None else self.windows.limit
        most = [min(limit, inf if f.path.suffix == ".gz" else f.nbytes) for f in files]  # a token has one byte at least
        rows = sum(n // self.windows.window for n in most)
        if self.reconstructor.batch >= rows:
            text = f"{self.reconstructor.batch:,} rows at once; calibrate.windows leaves {rows:,.0f} at most"
            text += ", one of them to judge by"
            raise PlanError([Problem("calibrate.reconstruct.batch", text)])

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            ConfigError: no text fills two windows.
            SourceError: no tokenizer; a text that is not UTF-8.
        """
        assert ctx.folder is not None
        assert ctx.unfinished is not None
        begun = coded(self.quantize, checkpoint)
        self._learned(checkpoint, begun)
        rows = rows_of(self.engine, checkpoint, self.texts, self.windows)
        text_stream.write(f"reconstructing blocks on {len(rows) * self.windows.window:,} tokens\n")
        self.reconstructor.learn(self.engine, checkpoint, begun, rows, self.windows.batch, ctx.unfinished, self.seed)
        for path in sorted(ctx.unfinished.glob("blocks.*.npz")):
            meter.wrote(path.stat().st_size)
            in_both(path, ctx.folder / path.name)
        return self.reopen(ctx.folder, checkpoint)

    def reopen(self, folder: Path, checkpoint: Checkpoint) -> Checkpoint:
        """See `pipeline.stage.StageHooks`."""
        said = dict[int, Any]()
        for path in folder.glob("blocks.*.npz"):
            with np.load(path) as kept:
                for key in kept.files:
                    name, _, what = key.rpartition("/")
                    if what == REPORT:
                        said[int(name.rpartition(".")[2])] = json.loads(str(kept[key]))
        blocks = {f"model.layers.{i}": said[i] for i in sorted(said) if said[i]}
        return replace(checkpoint, learned=Learned.of(folder), report={"blocks": blocks, "tables": (_table(blocks),)})

    def _learned(self, checkpoint: Checkpoint, begun: Checkpoint) -> list[str]:
        """The tensors of blocks that are to be quantized.

        Raises:
            PlanError: one that nothing can be learned of.
        """
        if begun.turned is not None:
            text = "rotates inputs of packed weights, and blocks are trained without; activations_rotate=null"
            raise PlanError([Problem("activations_rotate", text)])
        before, after = checkpoint.store.specs, begun.store.specs
        names = [n for n, s in after.items() if ".layers." in f".{n}" and s.scheme not in (None, before[n].scheme)]
        schemes = {s: n for n in names if (s := after[n].scheme) is not None}
        problems = [
            Problem("calibrate.reconstruct", f"{name}: {why}")
            for scheme, name in schemes.items()
            if (why := self.reconstructor.problem(scheme)) is not None
        ]
        if problems:
            raise PlanError(problems)
        return names


def _table(blocks: Mapping[str, Any]) -> Table:
    """For people."""
    rows = tuple(
        (
            name, Figure(100 * of["before"], "%", ".3g", "lower"), Figure(100 * of["after"], "%", ".3g", "lower"),
            Figure(100 * (of["after"] / of["before"] - 1) if of["before"] else 0.0, "%", "+z.1f", "lower"),
            Figure(100 * of["changed"], "%", ".2f"),
        )
        for name, of in blocks.items()
    )  # fmt: skip
    columns = ("block", "lost before", "after", "change", "codes changed, bytes")
    return Table("Blocks reconstructed, of rows that were held out", columns, rows)
