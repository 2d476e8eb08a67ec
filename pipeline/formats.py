"""What a container and a dialect are: the two small things that stand in for N×M converters.

A container is bytes in files: it opens a folder as a store of *leaves* (stored arrays) and lays leaves out in new
files. A dialect is naming and packing inside a container: a table that joins leaves into logical tensors and splits
them back. Logical tensors carry Hugging Face names, and matrices are `[..., out, in]`: the last axis is the one that is
contracted and cut into blocks, whatever a file does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pipeline.errors import SourceError
from pipeline.hooks import hooks_of
from pipeline.tensors.binding import Binding
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore

PEEKED = "<leaves>"
"""Key of `config` under which `Dialect.decode` finds the content of the leaves that the dialect's `peeks` match."""

INPUTS = "<inputs>"
"""Key of `config` under which `Dialect.encode` finds the `pipeline.tensors.inputs.InputScales` of the checkpoint, where
it has any and the dialect `writes_inputs`; in a plan their values are NaN."""


class Dialect(Protocol):
    """Naming and packing. Stateless; its fields are its options.

    `companions` names JSON files that `decode` wants to see beside config.json. Those that a source has are handed
    to `recognizes` and `decode` inside `config`, each parsed, under its file name.
    """

    companions: ClassVar[tuple[str, ...]]

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """Whether a source with these leaves and this config.json is written in this dialect."""
        ...

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """Bind the leaves of a source.

        Raises:
            PlanError: leaves missing, of a wrong shape or dtype, or not accounted for; all of them at once.
        """
        ...

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """Bind logical tensors to the leaves to be written; `config` is as `decode` gives it.

        Raises:
            PlanError: a tensor, scheme or mixture that the dialect cannot express; all of them at once.
        """
        ...


@hooks_of(Dialect)
class DialectHooks:
    """What a dialect may have beside that, as class variables."""

    takes: tuple[str, ...] = ()
    """Companion files, carried by the checkpoint, that `encode` wants to see: it finds them in `config` under their
    names, JSON parsed, the rest as text."""

    own: tuple[Scheme, ...] = ()
    """Schemes that its format brought into the world: of all dialects that could hold them it is then the first to be
    asked (`pipeline.planning.holding`)."""

    writes_inputs: bool = False
    """It may write scales of inputs, and `encode` finds those of the checkpoint in `config` under the key `INPUTS`."""

    peeks: tuple[str, ...] = ()
    """Small leaves that say what the others mean (a shape, a code book), patterns as of `fnmatch`: `decode` finds their
    arrays in `config` under the key `PEEKED`, leaf → array."""

    outline: Callable[[Mapping[str, tuple[int, ...]], Mapping[str, Any]], Mapping[str, TensorSpec] | None] | None = None
    """`outline(shapes, config)`: the logical tensors of a checkpoint with this config.json, given their shapes, as they
    would be decoded; for plans, where there are no weights. None: that config.json is not of this dialect, or does not
    tell. Raises PlanError: it contradicts itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a leaf lies: C-order, little-endian bytes at `offset` of `file` (relative to the folder)."""

    file: str
    offset: int
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class FilePlan:
    """One file that is laid out ahead: `prefix` (its header), then leaf data up to `nbytes` in all."""

    name: str
    prefix: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where every byte of an output will lie. Pure data; a function of specs and options only.

    `files` are big and written in place; `extra` are small files written whole (an index.json).
    """

    files: tuple[FilePlan, ...]
    places: Mapping[str, Place]
    extra: Mapping[str, bytes]

    @property
    def nbytes(self) -> int:
        return sum(f.nbytes for f in self.files) + sum(len(b) for b in self.extra.values())


class Leaves(TensorStore, Protocol):
    """A container's store: plain arrays as they lie in the files."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The data files, absolute."""
        ...

    @property
    def metadata_paths(self) -> tuple[Path, ...]:
        """The small files that were read for what the data files do not say (an index, shapes, config.json), absolute.

        Some of them may be among `paths` too.
        """
        ...

    def config(self) -> Mapping[str, Any]:
        """What stands in for config.json when the files themselves describe the model; {} for most containers."""
        ...


class Container(Protocol):
    """Bytes in files. Stateless; its fields are its options."""

    def recognizes(self, source: Path) -> bool:
        """Whether `source` (a folder or a file) looks like this container. Cheap; reads no data."""
        ...

    def open(self, source: Path) -> Leaves:
        """The leaves of `source`; reads headers only.

        Raises:
            SourceError: missing, malformed, or outside its folder; says the file and the byte.
        """
        ...

    def layout(
        self, leaves: Mapping[str, TensorSpec], metadata: Mapping[str, Any], max_shard_bytes: int | None
    ) -> Layout:
        """Lay `leaves` out in files of at most `max_shard_bytes` each (a larger leaf gets a file of its own)."""
        ...

    def begin(self, folder: Path, layout: Layout) -> None:
        """Create and preallocate the files under `folder`; keeps bytes of a file that already has its full size.

        Raises:
            StorageError: not enough space, or the folder cannot be written.
        """
        ...

    def write(self, folder: Path, layout: Layout, leaf: str, index: Index, array: Any) -> None:
        """Write the box `index` of `leaf` in place. Boxes may be written in any order, by any process.

        Raises:
            StorageError: the write failed.
        """
        ...

    def read_back(self, folder: Path, layout: Layout, leaf: str, index: Index) -> Any:
        """The bytes of the box as they now lie in the file, as an array like the one `write` took."""
        ...

    def verify(self, folder: Path, layout: Layout) -> None:
        """Look at the finished files as their readers will, headers only, before they are put in place.

        Raises:
            StorageError: they are not what `layout` says; names the file and what differs.
        """
        ...


@hooks_of(Container)
class ContainerHooks:
    """What a container may have beside that."""

    reads: str = ""
    """What it opens, for people: `a .gguf file`."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A source that lay elsewhere, now on this machine.

    Attributes:
        path: its folder or file.
        origin: for people and records: where it came from, to the version.
        whole: all of it; otherwise an outline for planning, with names and sizes and headers, and no values.
    """

    path: Path
    origin: str
    whole: bool = True


class UnreachableError(SourceError):
    """Nobody could be asked for a source, or nobody let us in: whether it exists, and as what, is not known."""


class Remote(Protocol):
    """A place that sources are fetched from, by addresses that begin with `scheme`. Its fields are its options.

    They are no part of what a run is: the same files from elsewhere make the same run.
    """

    scheme: ClassVar[str]

    def fetch(self, source: str, *, whole: bool) -> Fetched:
        """The source as files. Called more than once with the same arguments, which must be cheap and give the same.

        Args:
            source: the address.
            whole: False: an outline is enough, if it is cheaper.

        Raises:
            SourceError: no such thing; says what to do.
            UnreachableError: no connection, no permission, or offline and not kept.
        """
        ...
