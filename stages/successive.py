"""Successive: each block is quantized by what the quantized blocks before it give, and not by what the model gave."""

from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline import meter, texts
from pipeline.arrays import save
from pipeline.engine import Engine, Windows, observer
from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.learned import Learned, arrays_of
from pipeline.running import text_stream
from pipeline.running.progress import Progress
from pipeline.stage import NEUTRAL, Checkpoint, Context, Gang, Prediction
from pipeline.tensors.blocks import scratch_of
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.store import TensorStore
from stages.calibrate import Calibrate, Folder, in_both, likely, observing_gang, rows_of, say_few
from stages.quantize import Quantize, coded

STEM = "successive"


@dataclass(frozen=True)
class Successive:
    """Make the codes of a block's tensors as `quantize` would, of statistics that the quantized blocks before it give.

    Its codes belong to its key. Whoever was killed goes on with the block that was not finished.

    Attributes:
        engine: runs the model, a block's weights on the device at a time.
        quantize: the stage after this one, which says what methods tensors take.
        texts: files, UTF-8.
        windows: how they are cut; the last tokens of a text, which fill none, are left out.
        inputs: `blocks`: of all of a block, as they are before any of it is quantized; `matrices`: of each matrix, as
            they are when those before it in the block are.
    """

    engine: Engine
    quantize: Quantize
    texts: tuple[str, ...] = field(metadata=NEUTRAL)  # their content counts, which is read
    windows: Windows
    inputs: Literal["blocks", "matrices"] = "blocks"

    def __post_init__(self) -> None:
        if self.quantize.calibrate is None:
            text = "has methods look at what quantized blocks give, and none looks at anything"
            raise ConfigError(f"calibrate.sequential={self.inputs}: {text}; calibrate=gptq or imatrix do")
        if not self.texts:
            raise ConfigError("calibrate.texts: at least one text file is needed")
        for text in self.texts:
            texts.check(text, "calibrate.texts")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`: of several processes one does it, so that sums have one order."""
        return observing_gang(self.engine)

    @property
    def _hessian(self) -> bool:
        assert self.quantize.calibrate is not None
        return self.quantize.calibrate.needs_hessian

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        """
        Raises:
            PlanError: inputs that are rotated; as `quantize`.
        """
        begun = self._coded(checkpoint, Folder(None, likely(checkpoint), self._hessian))
        names = self._names(checkpoint, begun)
        looks = Calibrate(self.engine, self.texts, self.windows, self._hessian)
        takes = looks.plan(checkpoint).takes
        assert takes is not None
        specs = checkpoint.store.specs
        blocks: dict[str, int] = {}  # XᵀX of one lie there at once, and go when its codes are made
        for name in names if self._hessian else ():
            block = ".".join(name.split(".")[:3])
            shape = specs[name].shape
            blocks[block] = blocks.get(block, 0) + 4 * prod(shape[:-2]) * shape[-1] ** 2
        states = takes.disk_nbytes - (_hessians(checkpoint) if self._hessian else 0)
        # Of a matrix the method's own; of the largest tensor what was made, beside what it is read into.
        own = max((scratch_of(begun.store, n) for n in names), default=0)
        own += 2 * max((begun.store.specs[n].nbytes for n in names), default=0)
        takes = replace(
            takes,
            host_nbytes=takes.host_nbytes + own,
            disk_nbytes=states + max(blocks.values(), default=0) + sum(begun.store.specs[n].nbytes for n in names),
            moved_nbytes=(2 if self.inputs == "blocks" else 6) * takes.moved_nbytes,
            rate=f"{takes.rate} successive",
        )
        return Prediction(replace(checkpoint, learned=Learned(None, dict.fromkeys(names, ""))), takes)

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            ConfigError: no text fills a window.
            SourceError: no tokenizer; a text that is not UTF-8.
        """
        assert ctx.folder is not None
        folder = ctx.unfinished
        assert folder is not None
        will_be = self._coded(checkpoint, Folder(None, likely(checkpoint), self._hessian))
        names = self._names(checkpoint, will_be)
        rows = rows_of(self.engine, checkpoint, self.texts, self.windows)
        text_stream.write(f"quantizing block after block, on {len(rows) * self.windows.window:,} tokens\n")
        going = Progress("quantizing blocks", sum(checkpoint.store.specs[n].size for n in names), "values")

        def rounded(block: int, part: int, group: frozenset[str]) -> Checkpoint:
            assert folder is not None
            found = Folder(folder, dict.fromkeys(group, f"{STEM}.npz"), self._hessian)
            say_few(found)
            by = self._coded(checkpoint, found)
            arrays: dict[str, Any] = {}
            for name in sorted(group):
                with meter.metered() as of:  # what was lost is said by whoever reads the codes
                    q = _read(by.store, name, going)
                arrays |= arrays_of(name, q, of.gains.get(name))
            file = f"blocks.{block}.{part}.npz"
            save(folder / file, arrays)
            return self._coded(replace(checkpoint, learned=Learned(folder, dict.fromkeys(group, file))), found)

        observer(self.engine)(
            checkpoint, rows, self.windows.batch, folder, hessian=self._hessian, coded=will_be,
            names=frozenset(names), within=self.inputs == "matrices", rounded=rounded,
        )  # fmt: skip
        for path in sorted(folder.glob("blocks.*.npz")):
            meter.wrote(path.stat().st_size)
            in_both(path, ctx.folder / path.name)
        return self.reopen(ctx.folder, checkpoint)

    def reopen(self, folder: Path, checkpoint: Checkpoint) -> Checkpoint:
        """See `pipeline.stage.StageHooks`."""
        return replace(checkpoint, learned=Learned.of(folder))

    def _coded(self, checkpoint: Checkpoint, found: Folder) -> Checkpoint:
        return coded(self.quantize, replace(checkpoint, statistics=found))

    def _names(self, checkpoint: Checkpoint, begun: Checkpoint) -> list[str]:
        """The tensors of blocks that are to be quantized."""
        if begun.turned is not None:
            text = "rotates inputs of packed weights, and blocks run without; activations_rotate=null"
            raise PlanError([Problem("activations_rotate", text)])
        before, after = checkpoint.store.specs, begun.store.specs
        return [n for n in likely(checkpoint) if after[n].scheme not in (None, before[n].scheme)]


def _hessians(checkpoint: Checkpoint) -> int:
    """Bytes of XᵀX of all matrices."""
    specs = checkpoint.store.specs
    return sum(4 * prod((s := specs[n].shape)[:-2]) * s[-1] ** 2 for n in likely(checkpoint))


def _read(store: TensorStore, name: str, going: Progress) -> QTensor:
    """A tensor, a matrix of it at a time."""
    shape = store.specs[name].shape
    parts = []
    for box in [(slice(e, e + 1),) for e in range(shape[0])] if len(shape) > 2 else [()]:
        parts.append(store.read(name, box))
        going.add(prod(parts[-1].shape))
    whole = {c: np.concatenate([part.components[c] for part in parts]) for c in parts[0].components}
    return parts[0] if len(parts) == 1 else QTensor(scheme=parts[0].scheme, **whole)
