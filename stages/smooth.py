"""Smooth: factors of channels go from norms and projections into what multiplies these, before that is quantized.

The model stays the function that it was; its weights round better.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import meter
from pipeline.arrays import save
from pipeline.calibration import LinearStatistics, Multiplied, Smoother
from pipeline.errors import PlanError, Problem, StageError
from pipeline.files import read_whole, write_json
from pipeline.folded import Scaled, ScaledStatistics, settled
from pipeline.hooks import optional
from pipeline.method import Method
from pipeline.ops import Kernel
from pipeline.running.progress import Progress
from pipeline.stage import Checkpoint, Context, Footprint, Prediction, Table
from pipeline.tensors.folds import Fold
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import MappedStore
from pipeline.topology import Channels, channels
from stages.outline import Family, FamilyHooks
from stages.quantize import Quantize, to_be

FACTORS, REPORT = "factors.npz", "smooth.json"


@dataclass(frozen=True)
class Smooth:
    """Search for factors with the methods that `quantize` is going to take, and fold them into the weights.

    What it finds belongs to its key. Whoever was killed goes on with the channels that were not finished.

    Attributes:
        smoother: finds them.
        quantize: the stage after this one, which knows what tensors are to take.
        families: what knows which tensors multiply what others scale.
        unpack: decodes what is packed.
    """

    smoother: Smoother
    quantize: Quantize
    families: tuple[Family, ...]
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        """
        Raises:
            PlanError: no statistics; a family that does not say what multiplies what; as `quantize`.
        """
        todo, found = self._found(checkpoint)
        specs = checkpoint.store.specs
        looked = [s for c in found for n in c.consumers if n in todo for s in [specs[n]]]
        most = max((self._seen_nbytes(c, specs) for c in found), default=0)
        moved = sum(4 * self.smoother.passes * _sampled(s, self.smoother.rows) for s in looked)
        disk = sum(12 * c.count for c in found)
        takes = Footprint(host_nbytes=most, moved_nbytes=moved, disk_nbytes=disk, rate="search")
        return Prediction(self._folded(checkpoint, found, None), takes)

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            StageError: nothing is known of a matrix's inputs.
        """
        assert ctx.folder is not None
        assert ctx.unfinished is not None
        todo, found = self._found(checkpoint)
        specs = checkpoint.store.specs
        sizes = [sum(specs[n].size for n in c.consumers if n in todo) for c in found]
        going = Progress("smoothing", sum(sizes), "weights")
        arrays, report = dict[str, Any](), dict[str, Any]()
        for i, (one, size) in enumerate(zip(found, sizes, strict=True)):
            kept = ctx.unfinished / f"channels.{i}.npz"
            if not kept.is_file():
                self._search(checkpoint, todo, one, kept)
            with np.load(kept) as of:
                arrays |= {f"{one.source}/{what}": of[what] for what in of.files if what != "report"}
                report[one.source] = json.loads(str(of["report"]))
            going.add(size)
        save(ctx.folder / FACTORS, arrays)
        meter.wrote((ctx.folder / FACTORS).stat().st_size)
        write_json(ctx.folder / REPORT, report)
        return self.reopen(ctx.folder, checkpoint)

    def reopen(self, folder: Path, checkpoint: Checkpoint) -> Checkpoint:
        """See `pipeline.stage.StageHooks`."""
        _, found = self._found(checkpoint)
        report = json.loads(read_whole(folder / REPORT))
        folded = self._folded(checkpoint, found, folder / FACTORS)
        return replace(folded, report={"channels": report, "tables": (_table(report),)})

    def _found(self, checkpoint: Checkpoint) -> tuple[dict[str, Method], tuple[Channels, ...]]:
        """What each tensor is to take, and the channels that factors are for: those that something multiplies which is
        to be quantized, and of which nothing stays packed."""
        if checkpoint.statistics is None:
            text = "has no statistics to look at; the stage calibrate, before smooth, makes them"
            raise PlanError([Problem("calibrate", text)])
        todo, specs = to_be(self.quantize, checkpoint), checkpoint.store.specs
        kind = checkpoint.config.get("model_type")
        family = next((f for f in self.families if kind in f.model_types), None)
        feeds = () if family is None else optional(family, FamilyHooks, "feeds")
        if family is None or not feeds:
            text = f"knows nothing that scales what matrices multiply in a model of model_type {kind!r}: its family's "
            raise PlanError([Problem("calibrate.smooth", f"{text}`feeds` say so")])
        coded = {n: m for n, m in todo.items() if m.scheme is not None and n in checkpoint.statistics}
        fixed = {n for n, s in specs.items() if s.scheme is not None and n not in todo}
        found = channels(feeds, specs, family.parameters(checkpoint.config))
        return coded, tuple(
            c for c in found if any(n in coded for n in c.consumers) and not fixed & {c.source, *c.consumers}
        )

    def _folded(self, checkpoint: Checkpoint, found: tuple[Channels, ...], place: Path | None) -> Checkpoint:
        assert checkpoint.statistics is not None
        scaled = Scaled(found, place, self.unpack)
        names = frozenset(n for c in found for n in (c.source, c.bias, *c.consumers) if n is not None)
        called = type(self.smoother).__name__.lower()
        fold = Fold(names, called, checkpoint.store, partial(MappedStore, transform=scaled))
        return replace(
            checkpoint,
            store=MappedStore(checkpoint.store, scaled),
            statistics=ScaledStatistics(checkpoint.statistics, scaled),
            folded={**checkpoint.folded, "smooth": fold},
        )

    def _search(self, checkpoint: Checkpoint, todo: Mapping[str, Method], one: Channels, kept: Path) -> None:
        """Write the factors of some channels."""
        seen = [part for n in one.consumers if n in todo for part in self._multiplied(checkpoint, n, todo[n])]
        said = self.smoother.factors(seen, one)
        arrays = {"factors": said.factors}
        spec = checkpoint.store.specs[one.source]
        if len(spec.shape) == 1:
            norm, arrays["factors"] = settled(said.factors, self._values(checkpoint, one.source), plus_one=one.plus_one)
            arrays["norm"] = norm.astype(np.float32)
        save(kept, {"report": json.dumps({"loss": said.loss, **said.said}), **arrays})

    def _multiplied(self, checkpoint: Checkpoint, name: str, method: Method) -> Iterator[Multiplied]:
        """A matrix, or of a tensor of experts each."""
        assert checkpoint.statistics is not None
        found, shape = checkpoint.statistics.of(name), checkpoint.store.specs[name].shape
        if found is None:
            raise StageError(f"{name}: was to be scaled by what it is multiplied by, of which nothing is known")
        for lead in np.ndindex(*shape[:-2]):
            matrix = self._values(checkpoint, name, tuple(slice(i, i + 1) for i in lead)).reshape(shape[-2:])
            assert method.scheme is not None
            largest = np.abs(matrix).max(0).astype(np.float32)
            if self.smoother.rows is not None and method.scheme.block_rows == 1 and len(matrix) > self.smoother.rows:
                matrix = matrix[np.linspace(0, len(matrix) - 1, self.smoother.rows).astype(int)]
            whole, rows = found.hessian, found.sample
            own = LinearStatistics(
                np.asarray(found.tokens)[lead], found.mean_square[lead], found.absmax[lead],
                None if whole is None else partial(whole, *lead), None if rows is None else partial(rows, *lead),
            )  # fmt: skip
            yield Multiplied(np.array(matrix, np.float32, order="C"), method, own, largest)

    def _values(self, checkpoint: Checkpoint, name: str, index: tuple[slice, ...] = ()) -> Any:
        value = checkpoint.store.read(name, index)
        return self.unpack(value, "F32") if isinstance(value, QTensor) else value

    def _seen_nbytes(self, one: Channels, specs: Mapping[str, TensorSpec]) -> int:
        """Memory that a search takes: rows of all matrices, one matrix as it is read, and its XᵀX."""
        of = [specs[n] for n in one.consumers]
        whole = max(4 * s.shape[-2] * s.shape[-1] for s in of)
        return 4 * sum(_sampled(s, self.smoother.rows) for s in of) + 4 * whole + 3 * 4 * one.columns**2


def _sampled(spec: TensorSpec, rows: int | None) -> int:
    """Weights of a tensor that are looked at."""
    return spec.size if rows is None else spec.size // spec.shape[-2] * min(rows, spec.shape[-2])


def _table(report: Mapping[str, Any]) -> Table:
    """For people."""
    rows = tuple((name, *(of[k] for k in of if k != "loss"), round(of["loss"], 3)) for name, of in report.items())
    names = next(([k for k in of if k != "loss"] for of in report.values()), [])
    return Table("Channels scaled", ("scaled by", *names, "loss, of rounding alone"), rows)
