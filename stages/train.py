"""Train: from a checkpoint and data to another checkpoint, which all that follows takes like any."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline import meter
from pipeline.digest import InputFile
from pipeline.errors import PlanError, SourceError, WeightmillError
from pipeline.files import read_whole, write_json
from pipeline.formats import Container
from pipeline.records.points import METRICS
from pipeline.reporting.manifest import plain
from pipeline.running import member
from pipeline.running.results import FOLDER, RUNS, Results
from pipeline.stage import Checkpoint, Context, Gang, Prediction, Table
from pipeline.tensors.blocks import shares_of
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore
from pipeline.training import TRAINED, DataPlan, Dataset, Teacher, Trainer
from pipeline.units import parse_bytes

REPORT = "training.json"  # beside the weights
PICTURE = "loss.png"


@dataclass(frozen=True)
class Train:
    """Train a checkpoint's weights on data. What comes out are plain tensors of its names and shapes.

    The weights belong to the stage's key: whatever run needs the same training finds it, and the jobs of a sweep that
    differ in later stages only share one. One that was killed goes on where it last saved its state.

    Attributes:
        trainer: how.
        data: on what.
        container: of the weights' files.
        max_shard_size: largest of these, such as `5GB`.
    """

    trainer: Trainer
    data: Dataset
    container: Container
    max_shard_size: str = "5GB"

    @property
    def writes(self) -> tuple[str, ...]:
        """See `pipeline.stage.StageHooks`: metrics as they come, and a picture of the loss."""
        return METRICS, PICTURE

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return self.trainer.gang

    def plan(self, checkpoint: Checkpoint, teacher: Teacher | None = None) -> Prediction:
        """
        Raises:
            PlanError: all that is wrong with data and trainer.
        """
        problems = list(self.data.check(checkpoint))
        said = DataPlan(None, {})
        try:
            said = said if problems else self.data.plan(checkpoint)
            specs, takes = self.trainer.plan(checkpoint, said, _of(teacher))
        except PlanError as why:
            raise PlanError([*problems, *why.problems], exit_code=why.exit_code) from None
        if problems:  # with the data, and nothing else
            raise PlanError(problems, exit_code=SourceError.exit_code)
        written = sum(s.nbytes for s in specs.values())
        takes = replace(
            takes,
            host_nbytes=takes.host_nbytes + said.host_nbytes,
            disk_nbytes=takes.disk_nbytes + said.disk_nbytes + written,
            inputs=tuple(dict.fromkeys((*takes.inputs, *self._inputs(checkpoint, teacher)))),
        )
        return Prediction(_trained(checkpoint, _Promised(specs)), takes)

    def _inputs(self, checkpoint: Checkpoint, teacher: Teacher | None) -> Iterator[InputFile]:
        yield from self.trainer.inputs(checkpoint)
        yield from self.data.inputs()
        yield from () if teacher is None else teacher.checkpoint.inputs

    def run(self, ctx: Context, checkpoint: Checkpoint, teacher: Teacher | None = None) -> Checkpoint:
        """
        Raises:
            PlanError: data that only reading it finds to be wrong.
            StageError: a loss or gradient that is not finite.
            StorageError: what has to be kept cannot be.
        """
        assert ctx.folder is not None
        tokenizer = self.trainer.tokenizer(checkpoint)
        results = member.by_first(ctx.results or Results(ctx.run_dir / FOLDER))
        splits = self.data.open(results, tokenizer)
        found = self.trainer.train(ctx, checkpoint, splits, tokenizer, ctx.seed, _of(teacher))
        self._write(ctx.folder, found.store)
        if member.first():
            write_json(ctx.folder / REPORT, dict(found.report))
        member.agreed()  # all is written
        return self.reopen(ctx.folder, checkpoint)

    def reopen(self, folder: Path, checkpoint: Checkpoint, teacher: Teacher | None = None) -> Checkpoint:
        """See `pipeline.stage.StageHooks`."""
        report = json.loads(read_whole(folder / REPORT))
        places = [
            ("weights", folder),
            *((p.name, p) for p in sorted(folder.iterdir()) if p.is_dir() and p.name != RUNS),
        ]
        table = Table("Where it lies", ("", ""), tuple((name, str(path)) for name, path in places))
        report["tables"] = [*report.get("tables", ()), plain(table)]
        return replace(_trained(checkpoint, self.container.open(folder)), source=folder, report=report)

    def _write(self, folder: Path, store: TensorStore) -> None:
        """Each process of a gang what lies on its devices, the first one what is known to all."""
        layout = self.container.layout(
            store.specs, {}, parse_bytes(self.max_shard_size, "train.max_shard_size", bare=1 << 20)
        )
        if member.first():
            self.container.begin(folder, layout)
        member.agreed()  # there are files to write into
        for name in store.specs:
            for box in _own(store, name):
                self.container.write(folder, layout, name, box, store.read(name, box))
        member.agreed()  # all have written
        if member.first():
            self.container.verify(folder, layout)
        meter.wrote(layout.nbytes)


def _own(store: TensorStore, name: str) -> list[Index]:
    """The boxes of a tensor that this process is to write."""
    if (shares := shares_of(store, name)) is None:
        return [()] if member.first() else []
    return [box for box, process in shares if process == member.rank()]


@dataclass(frozen=True)
class _Promised:
    """Specs of what training will give."""

    specs: Mapping[str, TensorSpec]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def read(self, name: str, index: Any = ()) -> Any:
        raise WeightmillError(f"{name}: is not trained yet")


def _of(teacher: Teacher | None) -> Checkpoint | None:
    return None if teacher is None else teacher.checkpoint


def _trained(checkpoint: Checkpoint, store: TensorStore) -> Checkpoint:
    """The checkpoint with other weights, all of them plain."""
    return replace(
        checkpoint, store=store, stored={n: s.nbytes for n, s in store.specs.items()}, ignored={}, outline=False,
        origin=TRAINED, made_by=None,
    )  # fmt: skip
