"""What a stage is, what it is handed, and the artefacts that flow between stages.

A stage is a verb: a frozen dataclass whose fields are its config, with one method `run(ctx, *inputs)`. No base class,
no decorator, no registration. The annotations of `run` declare the edges: each parameter takes the artefact of the
latest earlier stage whose result has that type, or, when it is named like an earlier stage, that stage's result. Of
several parameters of one type all but one are named so: which of several artefacts is meant is never guessed. One that
may be None by default (`exported: Exported | None = None`) is left out where no stage before gives its type.

`run` is called while planning, with real handles and a guard under which reading data is an error: it should build
views and return. Three kinds of stage follow from what it returns:

* a view (a `Checkpoint` over a lazy store): nothing more happens until somebody reads;
* `Work[T]`: chunks that become tasks, and a last step that yields the T that later stages see;
* a stage that has to compute in one piece also defines `plan(*inputs)`, which predicts from the inputs' specs what it
  will give and what that takes (`Prediction`); then `run` is called only when the graph runs. What it gives, unless
  that is a handle which it cannot `reopen`, is kept under its key with the files that its `writes` names, and is not
  computed again by whatever run needs the same.

What a stage, its work and its result may have beside what they must is declared here too: `StageHooks`, `WorkHooks`,
`ResultHooks`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from pipeline.calibration import Statistics
from pipeline.digest import Digested, InputFile
from pipeline.errors import ConfigError, Problem, StageError, did_you_mean
from pipeline.fields import CHOSEN as CHOSEN
from pipeline.fields import NEUTRAL as NEUTRAL
from pipeline.figures import Cell, Figure
from pipeline.hooks import hooks_of
from pipeline.learned import Learned
from pipeline.mesh import Placement, Step
from pipeline.model_slot import ModelSlot
from pipeline.tensors.folds import Fold
from pipeline.tensors.inputs import InputScales
from pipeline.tensors.pieces import Piece
from pipeline.tensors.rotation import Turned
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore
from pipeline.tensors.views import MappedStore

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Context:
    """What every stage may know of the run it is part of.

    Attributes:
        run_dir: folder of this run; created before the first task runs.
        seed: the run's seed.
        chunk_nbytes: how much of a tensor one task should handle, in bytes of its bf16 values.
        overwrite: replace an output that stands in the way.
        fetch: get sources that lie elsewhere; False: this is only to be planned, so an outline of them is enough.
        key: what the result of this stage is known by; empty while planning (see `pipeline.planning.identity`).
        takes: parameter of `run` → key of what the stage is given.
        recipe: how the stage works, whatever it is given: identity of its config, its code, and what was resolved.
        results: what earlier runs have found; None: nothing is kept.
        models: where models are loaded, and held for the stages after.
        folder: of a stage that can reopen what it gives, where it writes that; it is kept when `run` is done.
        unfinished: of such a stage, what it has to go on from when it is killed or fails: found again by whoever makes
            the same, and gone when that is done.
        monitor: seconds between two looks at what each process of a stage in several takes; None: nobody looks.
    """

    run_dir: Path
    seed: int = 0
    chunk_nbytes: int = 32 << 20
    overwrite: bool = False
    fetch: bool = True
    key: str = ""
    takes: Mapping[str, str] = field(default_factory=dict)
    recipe: str = ""
    results: "Results | None" = None
    models: ModelSlot = field(default_factory=ModelSlot, compare=False, repr=False)
    folder: Path | None = None
    unfinished: Path | None = None
    monitor: float | None = field(default=None, compare=False)


class Results(Protocol):
    """What is kept under keys (`pipeline.running.results`)."""

    def once(
        self,
        key: str,
        make: Callable[[Path], Any],
        *,
        files: Sequence[str] = (),
        parts: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Path]:
        """What `make(folder)` gave, as JSON holds it, and the folder, into which it may have written files: made now,
        or earlier by whatever run needed the same.

        Args:
            key: all that it depends on.
            files: of those in the folder, the ones that are needed.
            parts: what the key is made of, for people.

        Raises:
            StorageError: it cannot be kept.
        """
        ...


@runtime_checkable
class Stage(Protocol):
    run: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Gang:
    """Processes that run a stage together, each on its part of the devices (`pipeline.running.gang`).

    Attributes:
        processes: how many.
        coordinator: HOST:PORT at which the first of them listens for the others; port 0: a free one; `auto`: its own
            address and a free port.
        join: `join(rank, address, alone=…)` makes the process in which it is called one of them. `alone`: it takes all
            devices that it sees, else its share of those of the machine. It must pickle.
    """

    processes: int
    coordinator: str
    join: Callable[..., None]


@hooks_of(Stage, closed=True)
class StageHooks:
    """What a stage may have beside its fields and `run`. Any other public member is a problem of the plan."""

    plan: Callable[..., "Prediction"] | None = None
    """`plan(*inputs)`, of a stage that computes: what `run` takes after `ctx`, with specs and no data. It raises
    PlanError or ConfigError for what cannot be."""

    resources: Mapping[str, float] = MappingProxyType({})
    """How much of which resource tags of `dask.resources` each of its tasks takes."""

    writes: tuple[str, ...] = ()
    """Names of files that it writes into the run's folder, beside those that every run does."""

    reopen: "Callable[..., Checkpoint] | None" = None
    """`reopen(folder, *inputs)`, of a stage that computes a checkpoint: that one, from the files that `run` wrote into
    `Context.folder`, wherever that lies now. It is kept under the stage's key then, like other results."""

    gang: Gang | None = None
    """Processes in each of which `run` is called alike; the first one's result counts. None: the one that runs it."""

    calls: Callable[..., Iterable[Any]] | None = None
    """`calls(checkpoint)`: the kernel calls (`pipeline.ops.Call`) that its store will make, of which the plan says what
    runs them."""


@dataclass(frozen=True)
class Checkpoint:
    """A handle on a model's weights: everything is known of them, none of them is in memory.

    Attributes:
        store: logical tensors (Hugging Face names; matrices `[..., out, in]`).
        config: config.json as Hugging Face spells it.
        files: companion files to carry along (tokenizer.json, …): name → path, or the content itself.
        inputs: every file that was read for it or will be: those behind the store first, then settings and companions.
        stored: bytes that each tensor takes in those files.
        ignored: what the source holds and `store` does not, with the reason.
        origin: for people: where and what it was read from.
        source: the folder or file that was opened.
        opener: opens another folder as this one was opened, an export of it for instance; None: nothing does.
        made_by: name → plugin: what was taken of a stage's fields that are `CHOSEN`.
        outline: no weights are here: this is what config.json alone says of them, for a plan. Nothing can be read.
        placement: how it will lie on devices; None: no stage has said so yet.
        report: what making it has found, as JSON holds it; with what `ResultHooks` may have, for people.
        may_unpack: packed tensors that nobody asked to be so: an export that cannot hold them writes their values.
        rounded: matrices that have fewer digits than in the source, and which dtype they have there; and packed ones
            that have where they are unpacked, with their encoding and the dtype that the source states for them.
        keeping: names of tensors → the setting to type so that they are not quantized; None: none was.
        statistics: of what its matrices are multiplied by; None: no stage has looked.
        nearest: its tensors as rounding to the nearest alone makes them, where methods look at what they are multiplied
            by; None: they do not.
        learned: codes and scales that its tensors are to take, where a stage has trained them; None: none has.
        folded: stage → the tensors that it changed so that only together they are what they were, and how.
        input_scales: of what its matrices are multiplied by, made before any is seen; None: there are none.
        turned: matrices that are rotated, and whose inputs models are to rotate, too; None: there are none.
    """

    store: TensorStore
    config: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Path | bytes] = field(default_factory=dict)
    inputs: tuple[InputFile, ...] = ()
    stored: Mapping[str, int] = field(default_factory=dict)
    origin: str = ""
    source: Path | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    opener: "Callable[[Path], Checkpoint] | None" = field(default=None, compare=False, repr=False)
    made_by: Mapping[str, Any] | None = None
    outline: bool = False
    placement: Placement | None = None
    report: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    may_unpack: frozenset[str] = frozenset()
    rounded: Mapping[str, str] = field(default_factory=dict)
    keeping: Callable[[Sequence[str]], str] | None = field(default=None, compare=False, repr=False)
    statistics: Statistics | None = field(default=None, repr=False)
    nearest: TensorStore | None = field(default=None, repr=False)
    learned: Learned | None = field(default=None, repr=False)
    folded: Mapping[str, Fold] = field(default_factory=dict, repr=False)
    input_scales: InputScales | None = field(default=None, repr=False)
    turned: Turned | None = field(default=None, repr=False)

    def map(self, fn: Callable[[Any], Any], select: str = "*") -> "Checkpoint":
        """Apply `fn(array) -> array` (same shape and dtype) to every tensor whose name matches `select`.

        Lazy: `fn` sees one box at a time, so it must work element by element. It must pickle to run on a cluster.

        Raises:
            ConfigError: `select` matches no tensor, or a packed one, which has no values to work on.
        """
        specs = self.store.specs
        names = frozenset(n for n in specs if fnmatchcase(n, select))
        if not names:
            raise ConfigError(f"pattern {select!r} matches no tensor{did_you_mean(select, specs)}")
        if packed := [n for n in specs if n in names and specs[n].scheme is not None]:
            raise ConfigError(
                f"pattern {select!r} matches {len(packed)} packed tensors, such as {packed[0]} "
                f"({specs[packed[0]].encoding}); choose others, or put a stage before this one that unpacks them"
            )
        return replace(self, store=MappedStore(self.store, Elementwise(fn, names)))


@dataclass(frozen=True, slots=True)
class Elementwise:
    """The transform behind `Checkpoint.map`."""

    fn: Callable[[Any], Any]
    names: frozenset[str]

    def spec(self, name: str, spec: Any) -> Any:
        return spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        if name not in self.names:
            return value
        given = value.shape, value.dtype
        made = np.asarray(self.fn(value))  # arithmetic turns an array of no dimensions into a scalar
        if (made.shape, made.dtype) != given:
            raise StageError(
                f"{name}: the function given to `map` turned {given[1]} {given[0]} into {made.dtype} {made.shape}; "
                "it must keep shape and dtype"
            )
        return made


@dataclass(frozen=True, slots=True)
class Saves:
    """States that a stage saves as it goes, from which the next try goes on.

    Attributes:
        nbytes: of each.
        most: that lie there at once.
        sure: of these, those that there will be however long it takes.
        seconds: in which there is another one; None: time makes none.
    """

    nbytes: int
    most: int
    sure: int
    seconds: float | None

    def kept(self, seconds: float | None) -> int:
        """How many there will be, of a stage that takes so long; None: not known."""
        if seconds is None or self.seconds is None:
            return self.most
        return min(self.most, self.sure + int(seconds // self.seconds))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What computing a stage's result takes. Stages that compute run one after another.

    Attributes:
        device_nbytes: on the device, or on each of several: weights, and the KV cache.
        cache_nbytes: of these, the KV cache.
        host_nbytes: memory of the process at its worst, the device's too when that is the CPU.
        kept_nbytes: of these, what its result holds on to until the run ends (tensors in memory).
        disk_nbytes: written at most, beside `saves` and what the work of later stages writes.
        saves: states of it on disk, too.
        moved_nbytes: bytes that its computing goes through in all (weights, once for each token that they are applied
            to): with the rate at which this machine has done so before, its time. 0: it takes none worth saying.
        times: of a stage that does one thing again and again, how often: `moved_nbytes` is what it goes through once,
            and what it does beside that has a time of its own (1: it only loads and compiles before). It says what it
            measured (`pipeline.meter.repeated`).
            0: all of it goes by `moved_nbytes`.
        rate: what that rate depends on beside the stage's class: device, dtypes, encodings.
        inputs: files that it reads beside those of the checkpoints it takes.
        ignored: tensors that the model does not read, with the reasons.
        reads: for people: whether it reads an export or the checkpoint, where there is a choice.
        devices: how many there are.
        temporary_nbytes: on each of several beside `device_nbytes` while a step runs: weights gathered for use,
            activations, logits. An estimate.
        steps: on several, what they exchange.
        host_reads: bytes of weights that each host reads for its own of several devices, every part once.
    """

    device_nbytes: int = 0
    host_nbytes: int = 0
    inputs: tuple[InputFile, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    reads: str = ""
    cache_nbytes: int = 0
    kept_nbytes: int = 0
    disk_nbytes: int = 0
    saves: Saves | None = None
    moved_nbytes: int = 0
    times: float = 0.0
    rate: str = ""
    devices: int = 1
    temporary_nbytes: int = 0
    steps: tuple[Step, ...] = ()
    host_reads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """What `plan` of a stage says, both halves of it.

    Attributes:
        result: a stand-in for what `run` will give, of which nothing is read: a `Checkpoint` with the specs that it
            will have. None: nothing is known of it before, and no stage that is planned by its `run` can take it.
        takes: what computing it takes.
    """

    result: Any
    takes: Footprint


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that a stage writes."""

    path: Path
    nbytes: int


@dataclass(frozen=True, slots=True)
class ReadBack:
    """How an export is read in place of the checkpoint that was exported (`pipeline.read_back`).

    Attributes:
        of: what was exported.
        specs: of the tensors that it holds.
        opener: opens its folder.
        why_not: why it does not stand for the checkpoint; empty when it does.
    """

    of: TensorStore = field(repr=False)
    specs: Mapping[str, TensorSpec]
    opener: Callable[[Path], Checkpoint] | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished checkpoint on disk.

    Attributes:
        path: its folder, complete and in place.
        files: every file in it with its xxh3-128 digest.
        read_back: how it is read in place of the checkpoint; None: it is not.
    """

    path: Path
    files: tuple["Digested", ...]
    read_back: ReadBack | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people, in a stage's result: shown on the console as it is.

    Attributes:
        columns: their names; without any, rows are lines of text.
        streamed: the stage has shown what is in it as it came (`pipeline.running.text_stream`), so that a terminal that
            has that needs it no second time.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    streamed: bool = False


@hooks_of(None)
class ResultHooks:
    """What a stage's result, that is no checkpoint, may have."""

    exit_code: int = 0
    """What the process is to exit with."""

    tables: tuple[Table, ...] = ()
    """What it is shown by, instead of field by field."""

    figures: Mapping[str, Figure | str] = MappingProxyType({})
    """What is put beside each other when jobs of a sweep are compared; by name a number with its unit, or a text."""

    before: Mapping[str, Figure | str] = MappingProxyType({})
    """The same of what was compared with, the model before it was quantized: a row of its own in a sweep."""

    summary: str = ""
    """One line that says it all, and ends what is shown."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one task handles: a slice of a large tensor, or several small tensors.

    Attributes:
        pieces: boxes, in order.
        nbytes_in: stored bytes read; the unit of the progress bar.
        nbytes_out: bytes written.
        peak_nbytes: memory the task takes at its worst.
        process: which of several processes is to do it, as what it reads lies there; None: any can.
    """

    pieces: tuple[Piece, ...]
    nbytes_in: int
    nbytes_out: int
    peak_nbytes: int
    process: int | None = None

    def __str__(self) -> str:
        more = f" +{len(self.pieces) - 1}" if len(self.pieces) > 1 else ""
        return f"{self.pieces[0]}{more}"


class Work(Protocol, Generic[T]):
    """A stage's work in many tasks. Must pickle; chunks may run in any order, in any process, more than once."""

    @property
    def chunks(self) -> Sequence[Chunk]: ...

    @property
    def outputs(self) -> Sequence[OutputFile]:
        """Files as they will stand when finished."""
        ...

    def begin(self, *, fresh: bool) -> None:
        """Prepare once, before any chunk. `fresh` discards what an earlier run left."""
        ...

    def do(self, chunk: Chunk) -> str:
        """Do the chunk; returns a digest of what it wrote."""
        ...

    def digest(self, chunk: Chunk) -> str:
        """The same digest, of what is there now."""
        ...

    def finish(self, records: Sequence[Mapping[str, Any]]) -> T:
        """Put the result in place once every chunk is done; `records` are what the chunks measured, in order."""
        ...


@hooks_of(Work)
class WorkHooks:
    """What work may have beside that."""

    target: Path | None = None
    """The folder that it puts in place: it must hold nothing that the run reads, and nobody else's work."""

    store: TensorStore | None = None
    """The tensors that it writes, for tables and reports."""

    nbytes: int | None = None
    """What these take as written; None: what their specs say."""

    ignored: Mapping[str, str] = MappingProxyType({})
    """Tensors that it does not write, with the reasons."""

    chosen: str = ""
    """For people: what it chose where that was left to it, and why."""

    notes: tuple[str, ...] = ()
    """For people: what to know of what it writes."""

    lock: Callable[[], AbstractContextManager[None]] | None = None
    """Held from before the first task until after the last; raises StorageError when another run holds it."""

    obstacles: Callable[..., Sequence[Problem]] | None = None
    """`obstacles(*, finished)`: what stands in its way on disk; `finished`: an earlier try had done every chunk."""

    nbytes_needed: Callable[..., int] | None = None
    """`nbytes_needed(*, finished)`: what it still writes on the disk of its `target`, less what it removes before."""

    grain: Callable[[str], tuple[int, ...]] | None = None
    """`grain(name)`: what bounds of its chunks are multiples of, for each dimension of a tensor of its `store`: so it
    is cut like the work of the other jobs of a sweep."""

    key: str | None = None
    """A field for the key that it writes under; whoever plans it fills it in. None: it asks for none."""

    adopt: Callable[[Path, Mapping[str, str]], "Exported | None"] | None = None
    """`adopt(place, files)`: put into its `target` what another run has written at `place`, files with their digests;
    None: it is not that any more."""

    read_back: ReadBack | None = None
    """Whether, and how, later stages read what it writes in place of what it is made from."""

    made_by: Mapping[str, Any] | None = None
    """Name → plugin: what was taken of the stage's fields that are `CHOSEN`."""
