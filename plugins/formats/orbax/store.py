"""Arrays as Orbax itself saves them: zarr version 2 or 3, compressed, in folders or in one OCDBT database.

Read by tensorstore, the library that Orbax writes them with. A chunk is read and decoded whole, whatever box of it is
asked for, and Orbax makes one chunk of every shard unless told otherwise (`chunk_byte_size`): a box of such an array
takes the memory of all of it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import SourceError, did_you_mean
from pipeline.files import opened
from pipeline.planning.budget import limits
from pipeline.tensors.blocks import box_nbytes, outward
from pipeline.tensors.spec import TensorSpec, dtype_name, numpy_dtype
from pipeline.tensors.store import Index, normalize
from plugins.formats.common.filestore import Stamp
from plugins.formats.orbax.metadata import CHECKPOINT, OCDBT, TREE, Tree

# What tensorstore raises, by its status codes.
FAILURES = (ValueError, OSError, RuntimeError, NotImplementedError, IndexError, OverflowError)


@dataclass(frozen=True)
class TensorStoreLeaves:
    """Arrays that tensorstore reads: a `pipeline.formats.Leaves`. Holds no open file; pickles.

    Attributes:
        folder: of the tree, absolute.
        specs: name → shape and dtype.
        driver: `zarr` or `zarr3`.
        ocdbt: whether the arrays are in a database.
        complete: whether a missing chunk is an error; otherwise it is zeros.
        stamps: every file of the checkpoint and what it was when it was opened.
        metadata: JSON-able facts the container found.
        described: what `config` gives.
        metadata_paths: the small files that were read, absolute.
        chunks: name → shape of what is read whole.
    """

    folder: Path
    specs: Mapping[str, TensorSpec]
    driver: str
    ocdbt: bool
    complete: bool
    stamps: Mapping[str, Stamp]
    metadata: Mapping[str, Any]
    described: Mapping[str, Any]
    metadata_paths: tuple[Path, ...] = ()
    chunks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(self.folder / name for name in self.stamps)

    def config(self) -> Mapping[str, Any]:
        return self.described

    def read(self, name: str, index: Index = ()) -> Any:
        """The box as a fresh C-contiguous array.

        Raises:
            SourceError: no such array; its files are gone, damaged, or changed since the store was opened.
            IndexError: not a box of the array.
        """
        if name not in self.specs:
            raise SourceError(f"{self.folder}: no tensor {name!r}{did_you_mean(name, self.specs)}")
        spec = self.specs[name]
        box = normalize(index, spec.shape)
        self._check(name)
        try:
            stored = _opening(self, name).result()
            if (tuple(stored.shape), dtype_name(stored.dtype.numpy_dtype)) != (spec.shape, spec.dtype):
                raise SourceError(f"{self.folder}: tensor {name!r}: changed since it was opened")
            # Into an array of our own: when memory runs out, NumPy raises and tensorstore ends the process.
            out = np.empty([s.stop - s.start for s in box], numpy_dtype(spec.dtype))
            _tensorstore().array(out).write(stored[box] if box else stored).result()
        except (MemoryError, *FAILURES) as why:
            raise _source_error(self.folder, name, why) from None
        self._check(name)
        return out

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        """What the chunks decode to that the boxes touch: each of them is read for every box that does."""
        spec, found = self.specs[name], 0
        for index in boxes:
            box = outward(normalize(index, spec.shape), spec.shape, self.chunks.get(name, (1,) * len(spec.shape)))
            found += box_nbytes(spec, box)
        return found

    def _check(self, name: str) -> None:
        """The files that hold `name` must be what they were: in a database, all of them."""
        for file, then in self.stamps.items():
            if (self.ocdbt or file.startswith(f"{name}/")) and _stamp(self.folder / file) != then:
                raise SourceError(f"{self.folder / file}: changed since it was opened")


def open_stored(
    folder: Path, tree: Tree, metadata: Mapping[str, Any], described: Mapping[str, Any]
) -> TensorStoreLeaves:
    """Reads the metadata of every array, no data.

    Raises:
        SourceError: an array is missing, malformed, or of a dtype that has no name here.
    """
    names = [node.name for node in tree.arrays]
    ocdbt = (folder / OCDBT).exists()
    stamps = {p.relative_to(folder).as_posix(): _stamp(p) for p in _files(folder, names, ocdbt)}
    found = TensorStoreLeaves(
        folder, {}, "zarr3" if tree.zarr3 else "zarr", ocdbt, tree.complete, stamps, metadata, described
    )
    keys = _keys(found)
    memory, whose = min(limits())  # a library that cannot have more ends the process
    specs: dict[str, TensorSpec] = {}
    read_whole: dict[str, tuple[int, ...]] = {}
    for name, opening in [(name, _opening(found, name)) for name in names]:
        try:
            stored = opening.result()
            specs[name] = TensorSpec(tuple(stored.shape), dtype_name(stored.dtype.numpy_dtype))
        except (SourceError, TypeError, *FAILURES) as why:
            raise _source_error(folder, name, why) from None
        chunk = stored.chunk_layout.write_chunk.shape or ()
        chunks = math.prod(-(-n // c) for n, c in zip(stored.shape, chunk, strict=True))
        have = keys[name] - 1  # the other one describes it
        if tree.complete and have < chunks:
            text = f"{list(stored.shape)} in chunks of {list(chunk)} is {chunks:,} of them, {max(0, have):,} are there"
            raise SourceError(f"{folder}: tensor {name!r}: {text}")
        read_whole[name] = tuple(stored.chunk_layout.read_chunk.shape or ())
        decoded = math.prod(read_whole[name]) * stored.dtype.numpy_dtype.itemsize
        if decoded > memory:
            text = f"its chunks decode to {decoded:,} bytes each and are read whole; {memory:,} are there ({whose})"
            raise SourceError(f"{folder}: tensor {name!r}: {text}")
    return replace(found, specs=specs, chunks=read_whole)


def _keys(leaves: TensorStoreLeaves) -> Counter[str]:
    """How many things are stored for each array.

    Raises:
        SourceError: the database cannot be read.
    """
    listed: Iterable[str] = leaves.stamps
    spec = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{leaves.folder}/"}}
    if leaves.ocdbt:
        try:
            kvstore = _tensorstore().KvStore.open(spec, context=_context()).result()
            listed = [key.decode(errors="replace") for key in kvstore.list().result()]
        except FAILURES as why:
            raise SourceError(f"{leaves.folder / OCDBT}: cannot be read: {_said(why)}") from None
    found: Counter[str] = Counter()
    for key in listed:
        parts = key.split("/")
        found.update("/".join(parts[:n]) for n in range(1, len(parts)))
    return found


def _opening(leaves: TensorStoreLeaves, name: str) -> Any:
    """A future of the opened array."""
    files = {"driver": "file", "path": f"{leaves.folder}/"}
    kvstore: dict[str, Any] = {"driver": "ocdbt", "base": files, "path": f"{name}/"}
    if not leaves.ocdbt:
        kvstore = {"driver": "file", "path": f"{leaves.folder}/{name}/"}
    spec = {"driver": leaves.driver, "kvstore": kvstore, "fill_missing_data_reads": not leaves.complete}
    return _tensorstore().open(spec, open=True, read=True, context=_context())


@cache
def _context() -> Any:
    """Without a cache: `dask.memory` does not know of one, and it would hide that a file has changed."""
    return _tensorstore().Context({"cache_pool": {"total_bytes_limit": 0}})


def _tensorstore() -> Any:
    """The module, imported when it is needed: nothing else here takes as long."""
    import tensorstore

    return tensorstore


def _files(folder: Path, names: list[str], ocdbt: bool) -> Iterator[Path]:
    yield from (p for p in (folder / TREE, folder / CHECKPOINT) if p.is_file())
    roots = [folder / n for n in names]
    if ocdbt:
        yield folder / OCDBT
        roots = [folder / "d", *sorted(folder.glob("ocdbt.process_*"))]
    for root in roots:
        yield from sorted(p for p in root.rglob("*") if p.is_file())


def _stamp(path: Path) -> Stamp:
    with opened(path) as fd:
        return Stamp.of(fd)


def _source_error(folder: Path, name: str, why: Exception) -> SourceError:
    return SourceError(f"{folder}: tensor {name!r:.200}: cannot be read: {_said(why)}")


def _said(why: Exception) -> str:
    """The first line of what tensorstore says, without its sources' line numbers."""
    return str(why).split(" [source locations=")[0].partition("\n")[0][:400] or type(why).__name__
