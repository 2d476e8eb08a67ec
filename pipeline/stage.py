"""What a stage is, what it is handed, and the artefacts that flow between stages.

A stage is a verb: a frozen dataclass whose fields are its config, with one method `run(ctx, *inputs)`. No base class,
no decorator, no registration. The annotations of `run` declare the edges: each parameter takes the artefact of the
latest earlier stage whose result has that type, or, when it is named like an earlier stage, that stage's result. One
that may be None by default (`exported: Exported | None = None`) is left out where no stage before gives its type.

`run` is called while planning, with real handles and a guard under which reading data is an error: it should build
views and return. Three kinds of stage follow from what it returns:

* a view (a `Checkpoint` over a lazy store): nothing more happens until somebody reads;
* `Work[T]`: chunks that become tasks, and a last step that yields the T that later stages see;
* a stage that has to compute in one piece also defines `plan(*inputs)`, which predicts its result from the inputs'
  specs; then `run` is called only when the graph runs. What it gives, unless that is a handle, is kept under its key
  with the files that its class variable `writes` names, and is not computed again by whatever run needs the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from pipeline.digest import Digested, InputFile
from pipeline.errors import ConfigError, StageError, did_you_mean
from pipeline.figures import Cell
from pipeline.model_slot import ModelSlot
from pipeline.tensors.pieces import Piece
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore
from pipeline.tensors.views import MappedStore

T = TypeVar("T", covariant=True)

NEUTRAL: Final = {"identity": "neutral"}
"""`field(metadata=NEUTRAL)`: whatever this field says, the result is the same. It is no part of a key: where something
is written or kept, where the files come from whose content counts, what only raises."""

CHOSEN: Final = {"identity": "chosen"}
"""`field(metadata=CHOSEN)`: alternatives. What was taken of them stands in the result's `made_by`, and counts alone."""


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
class Footprint:
    """What a stage that computes in one piece will take, as its `plan` may say; such stages run one after another.

    Attributes:
        device_nbytes: weights on the device.
        host_nbytes: memory of the process at its worst, the device's too when that is the CPU.
        inputs: files that it reads beside those of the checkpoints it takes.
        ignored: tensors that the model does not read, with the reasons.
        reads: for people: whether it reads an export or the checkpoint, where there is a choice.
    """

    device_nbytes: int
    host_nbytes: int
    inputs: tuple[InputFile, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)
    reads: str = ""


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

    A result whose field `tables` holds some is shown by them, and not field by field; one that has `figures`, name →
    `Figure` or text, puts these beside each other when jobs of a sweep are compared.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one task handles: a slice of a large tensor, or several small tensors.

    Attributes:
        pieces: boxes, in order.
        nbytes_in: stored bytes read; the unit of the progress bar.
        nbytes_out: bytes written.
        peak_nbytes: memory the task takes at its worst.
    """

    pieces: tuple[Piece, ...]
    nbytes_in: int
    nbytes_out: int
    peak_nbytes: int

    def __str__(self) -> str:
        more = f" +{len(self.pieces) - 1}" if len(self.pieces) > 1 else ""
        return f"{self.pieces[0]}{more}"


class Work(Protocol, Generic[T]):
    """A stage's work in many tasks. Must pickle; chunks may run in any order, in any process, more than once.

    Work with a `store`, a `grain(name)` (what bounds of its chunks are multiples of, for each dimension), and perhaps
    `ignored` (names of that store that it does not read) is cut like that of the other jobs of a sweep.
    """

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
