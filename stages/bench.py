"""Bench: engines on the same weights, in turn, each in a process of its own: how quick, and how right."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline import texts
from pipeline.bench import picture
from pipeline.bench.limits import Limits, reached
from pipeline.bench.measuring import WRITES, Benched, Measuring
from pipeline.bench.tables import figures, tables
from pipeline.bench.turns import Turns
from pipeline.bench.workload import Workload
from pipeline.contender import Contender
from pipeline.digest import digest
from pipeline.errors import ConfigError
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from stages.bench_work import EXPORTS, Tokenizers, Work, cases, vocabulary

HOST_NBYTES = 64 << 20  # of this process, with a tokenizer, beside those that measure
PROCESS_NBYTES = 1 << 30  # of one of these, beside weights: torch or JAX, and what it compiles
BENCHMARK = "engines"


@dataclass(frozen=True)
class Bench:
    """Measure every engine with every quant.

    A figure is the median of rounds, in each of which every cell has its turn, so that a busy machine slows all alike.
    What a round measured is noted when its process ends, and measured once: a benchmark that was killed goes on.

    Attributes:
        engines: by name.
        reference: whose predictions, of weights that are not quantized, are what is right.
        quants: options of `quant`.
        tokenizer: of the text.
        text: a file, UTF-8, that is predicted.
        workload: what is asked of each.
        limits: what the machine can do.
        measuring: how often, on how many cores, against what.
        overrides: of the model, for the exports.
        keep_exports: what engines read stays when all is measured; otherwise an interrupted benchmark alone has it.
    """

    engines: Mapping[str, Contender]
    reference: Contender
    quants: tuple[str, ...]
    tokenizer: Tokenizers
    text: str
    workload: Workload
    limits: Limits
    measuring: Measuring
    overrides: tuple[str, ...]
    keep_exports: bool = False

    writes: ClassVar[tuple[str, ...]] = (*WRITES, picture.NAME)

    def __post_init__(self) -> None:
        texts.check(self.text, "bench.text")
        for name, given in (("engines", self.engines), ("quants", self.quants)):
            if not given:
                raise ConfigError(f"{name}=[]: at least one is needed")
        if twice := [q for i, q in enumerate(self.quants) if q in self.quants[:i]]:
            raise ConfigError(f"quants: {twice[0]} is named twice")

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        vocab = vocabulary(checkpoint)
        self.measuring.baseline(BENCHMARK, self._asked)
        nbytes = sum(checkpoint.stored.values())
        forms = [c.form for c in cases(self.engines, self.quants, checkpoint.config) if c.state == "measured"]
        exports, own = {(form.quant, form.export) for form in forms}, sum(form.own != "" for form in forms)
        logits = 4 * self.workload.tokens * vocab
        values = sum(spec.size for spec in checkpoint.store.specs.values())
        inputs = (texts.input_file(self.text),)
        disk = (len(exports) + 1) * 2 * values + own * 4 * values + logits  # what is its own may be in float32
        tokens = self.measuring.rounds * self.workload.asked * len(forms)
        return Prediction(None, Footprint(
            host_nbytes=HOST_NBYTES + PROCESS_NBYTES + 4 * values + nbytes, disk_nbytes=disk, inputs=inputs,
            moved_nbytes=nbytes * tokens, rate=" ".join(self.engines),
        ))  # fmt: skip

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Benched:
        """
        Raises:
            ConfigError: the baseline asked something else.
            StageError: the reference failed, or no cell could be measured.
        """
        self.measuring.baseline(BENCHMARK, self._asked, ctx.run_dir)
        turns = Turns(ctx.run_dir, ctx.key, self.measuring.cores)
        work = Work(
            tuple(cases(self.engines, self.quants, checkpoint.config)), self.reference, self.tokenizer, self.text,
            self.workload, self.limits, self.overrides, self.measuring.rounds, checkpoint, turns,
        )  # fmt: skip
        found = work.rows()
        picture.draw(found, ctx.run_dir, f"{len(self.engines)} engines, {', '.join(self.quants)}")
        if not self.keep_exports:
            shutil.rmtree(ctx.run_dir / EXPORTS, ignore_errors=True)
        return self.measuring.record(
            ctx.run_dir, BENCHMARK, found, tables, figures(found), **turns.took,
            limits=reached(turns), workload=self._asked,
        )  # fmt: skip

    @property
    def _asked(self) -> dict[str, Any]:
        """What makes figures comparable: the workload, and of the text what it says, wherever it lies."""
        return {**asdict(self.workload), "text": f"{Path(self.text).name}, {digest(texts.read(self.text).encode())}"}
