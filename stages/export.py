"""Export: lay a checkpoint out on disk, fill it chunk by chunk, and move it into place in one rename."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import xxhash

from pipeline import meter
from pipeline.digest import Digested, InputFile, digest_file, identity, unchanged
from pipeline.errors import ConfigError, Problem, SourceError, StorageError, ValueRangeError, did_you_mean
from pipeline.files import read_whole, spoken
from pipeline.formats import Container, Dialect, DialectHooks, Layout
from pipeline.hooks import optional
from pipeline.ops import Kernel
from pipeline.places import nearest_folder, reason
from pipeline.planning.holding import Option, choose, hold
from pipeline.running.target import MARKER, Target
from pipeline.stage import Checkpoint, Chunk, Context, Exported, OutputFile, Work
from pipeline.strictjson import parse_object
from pipeline.tensors.binding import Binding
from pipeline.tensors.blocks import common, grain_of, scratch_of
from pipeline.tensors.chunks import pack
from pipeline.tensors.pieces import Piece
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.slabs import slabs
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, TensorStore
from pipeline.tensors.views import MappedStore, grain, leaf_boxes, split
from pipeline.units import parse_bytes, show_bytes

DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
TASK_SCRATCH_NBYTES = 12 << 20  # tiles of the codec, staging of strided reads, slabs of transposed writes


@dataclass(frozen=True)
class Export:
    """Write a checkpoint.

    Attributes:
        dialect: naming and packing; None: of the first of `prefer` that can hold everything.
        container: bytes in files; None, with the dialect: that option's.
        path: target folder; None for `model` in the run's folder.
        max_shard_size: largest file, such as `5GB`; None for a single file; `auto`, without a dialect: that option's.
        dtype: `keep` writes quantized tensors packed and the rest as they come; `bf16`, `fp16` and `fp32` write
            plain values only.
        overflow: what happens to a finite value beyond fp16's range: `error`, or `clamp` to ±65504. Never infinity.
        unpack: turns packed tensors into values.
        cast: the cast kernel.
        options: name → what else could be written.
        prefer: names of `options`, in the order in which they are asked.
    """

    dialect: Dialect | None
    container: Container | None
    unpack: Kernel
    cast: Kernel
    path: str | None = None
    max_shard_size: str | None = "5GB"
    dtype: Literal["keep", "bf16", "fp16", "fp32"] = "keep"
    overflow: Literal["error", "clamp"] = "error"
    options: Mapping[str, Option] = field(default_factory=dict)
    prefer: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.dialect is None) != (self.container is None):
            raise ConfigError("dialect and container are chosen together: both or neither is null")
        if self.dialect is None and not self.prefer:
            raise ConfigError("without a dialect, prefer says which options are asked")
        if unknown := [name for name in self.prefer if name not in self.options]:
            raise ConfigError(f"prefer names {unknown[0]!r}{did_you_mean(unknown[0], self.options)}")

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Exported]:
        """
        Raises:
            PlanError: the dialect cannot express a tensor, a scheme or the mixture.
        """
        store = checkpoint.store
        if self.dtype != "keep":
            store = MappedStore(store, AsValues(DTYPES[self.dtype], self.unpack, self.cast, self.overflow))

        def encode(dialect: Dialect) -> Binding:
            return dialect.encode(store.specs, {**checkpoint.config, **_taken(dialect, checkpoint.files)})

        container, shard_size, chosen = self.container, self.max_shard_size, ""
        if self.dialect is None or container is None:
            name, binding, chosen = choose(self.prefer, self.options, store.specs, encode)
            container = self.options[name].container
            shard_size = self.options[name].max_shard_size if shard_size == "auto" else shard_size
        else:
            binding = hold(self.dialect, self.options, encode)
        max_shard = parse_bytes(shard_size, "export.max_shard_size") if shard_size else None
        layout = container.layout(binding.leaves, {"format": "pt", **binding.metadata}, max_shard)
        files = {n: p for n, p in checkpoint.files.items() if n not in (*binding.drop, *binding.files, MARKER)}
        return ExportWork(
            store=store,
            binding=binding,
            container=container,
            layout=layout,
            target=Path(os.path.abspath(os.path.expanduser(self.path))) if self.path else ctx.run_dir / "model",
            companions=files,
            inputs=checkpoint.inputs,
            stored=checkpoint.stored,
            chunk_nbytes=ctx.chunk_nbytes,
            key=identity([ctx.recipes, ctx.seed, [f.identity for f in checkpoint.inputs]]),
            run_dir=ctx.run_dir,
            overwrite=ctx.overwrite,
            chosen=chosen,
        )


@dataclass(frozen=True, slots=True)
class AsValues:
    """The lazy transform behind `export.dtype`."""

    dtype: str
    unpack: Kernel
    cast: Kernel
    overflow: str

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        if spec.scheme is None and spec.dtype not in FLOAT_DTYPES:
            return spec
        return replace(spec, dtype=self.dtype, scheme=None)

    def apply(self, name: str, value: Any, index: Index) -> Any:
        if isinstance(value, QTensor):
            value = self.unpack(value, "F32" if self.dtype == "F16" else self.dtype)
        elif value.dtype.kind in "iub":
            return value
        try:
            return self.cast(value, self.dtype, overflow=self.overflow)
        except ValueRangeError as why:
            raise ValueRangeError(f"{name}: {why}; export.overflow=clamp writes the nearest finite value") from None


@dataclass(frozen=True)
class ExportWork:
    """The tasks of an export. Files are written beside the target until all are whole (`pipeline.running.target`).

    Attributes:
        companions: files to carry along, name → path or content.
        stored: bytes that each tensor takes where it is read.
        inputs: every file behind the store and the companions.
        key: identity of what is written.
        chosen: for people: which option of `export=` was taken, and why; empty when it was asked for.
    """

    store: TensorStore
    binding: Binding
    container: Container
    layout: Layout
    target: Path
    companions: Mapping[str, Path | bytes]
    inputs: tuple[InputFile, ...]
    stored: Mapping[str, int]
    chunk_nbytes: int
    key: str
    run_dir: Path
    overwrite: bool
    chosen: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """For people: what to know of what is written."""
        return self.binding.notes

    @property
    def nbytes(self) -> int:
        """Of all tensors as written: some dialects widen vectors, or write a scale for each of what shares one."""
        return sum(leaf.nbytes for leaf in self.binding.leaves.values())

    @cached_property
    def place(self) -> Target:
        names = dict.fromkeys([f.name for f in self.layout.files] + [*self._texts, *self.companions, MARKER])
        return Target(self.target, self.key, self.run_dir, tuple(names), self.overwrite)

    @property
    def ignored(self) -> Mapping[str, str]:
        """Tensors that are not written, with the reason."""
        return self.binding.ignored

    @property
    def partial(self) -> Path:
        return self.place.partial

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        """Files written whole: index, config.json and what the dialect adds."""
        config = {"config.json": _json(self.binding.config)} if self.binding.config else {}
        return {**self.layout.extra, **config, **self.binding.files}

    @property
    def small_files(self) -> dict[str, bytes]:
        return {**self._texts, MARKER: self.place.marker}

    @cached_property
    def chunks(self) -> Sequence[Chunk]:
        grains = {name: self._grain(name) for name in self.binding.tensors}
        written = {name: spec for name, spec in self.store.specs.items() if name not in self.ignored}
        return tuple(self._chunk(pieces) for pieces in pack(written, self.chunk_nbytes // 2, grains))

    def _grain(self, name: str) -> tuple[int, ...]:
        """What a box of this tensor is multiples of, to be read and to be written without looking at more than it."""
        bound = self.binding.tensors[name]
        found = common(grain(bound), grain_of(self.store, name))
        if any(part.transpose for part in bound.parts):
            rows, n = bound.spec.shape[-2:]
            if n > self.chunk_nbytes // 2 >= rows * found[-1]:  # its columns are rows of the leaf, its rows are crumbs
                found = (*found[:-2], rows, found[-1])
        return found

    @property
    def outputs(self) -> Sequence[OutputFile]:
        files = [OutputFile(self.target / f.name, f.nbytes) for f in self.layout.files]
        files += [OutputFile(self.target / n, len(b)) for n, b in self.small_files.items()]
        return files + [OutputFile(self.target / n, _nbytes(p)) for n, p in self.companions.items()]

    def _chunk(self, pieces: tuple[Piece, ...]) -> Chunk:
        nbytes_in = nbytes_out = peak = 0
        for piece in pieces:
            spec = self.store.specs[piece.tensor]
            elems = prod(s.stop - s.start for s in piece.index)
            share = elems / spec.size if spec.size else 0.0
            taken = round(self.stored.get(piece.tensor, spec.nbytes) * share)
            given = round(spec.nbytes * share)
            nbytes_in += taken
            nbytes_out += given
            scratch = scratch_of(self.store, piece.tensor)
            peak = max(peak, taken + _between(spec, elems, taken) + given + scratch)
        return Chunk(pieces, nbytes_in, nbytes_out, peak + TASK_SCRATCH_NBYTES)

    def lock(self) -> AbstractContextManager[None]:
        return self.place.lock()

    def obstacles(self, *, finished: bool) -> list[Problem]:
        """What stands in the way on disk: an existing target, too little space.

        Args:
            finished: every chunk was done before, so that a target without a partial folder is this export's own.
        """
        found = list(self.place.obstacles(finished=finished))
        if not found:
            needed = 0 if self.place.own(finished=finished) else sum(f.nbytes for f in self.outputs)
            needed -= self.place.nbytes_there()
            there = nearest_folder(self.target)
            if needed > (free := shutil.disk_usage(there).free):
                found.append(f"{there} has {show_bytes(free)} free, the output needs {show_bytes(needed)}")
        return [Problem("export.path", why) for why in found]

    def begin(self, *, fresh: bool) -> None:
        self.place.begin(fresh=fresh)
        self.container.begin(self.partial, self.layout)
        for leaf, content in self.binding.constants.items():
            spec = self.binding.leaves[leaf]
            array = np.frombuffer(content, numpy_dtype(spec.dtype)).reshape(spec.shape)
            self.container.write(self.partial, self.layout, leaf, (), array)

    def do(self, chunk: Chunk) -> str:
        hasher = xxhash.xxh3_128()
        for piece in chunk.pieces:
            with meter.stage("export") as gave:
                value = self.store.read(piece.tensor, piece.index)
                for leaf, box, part in split(self.binding.tensors[piece.tensor], piece.index, value):
                    for index, array in slabs(part, box):
                        self.container.write(self.partial, self.layout, leaf, index, array)
                        gave[0] += array.nbytes
                        hasher.update(array.reshape(-1).view(np.uint8))
                del value, part, array  # the next piece must not find them still in memory
        return hasher.hexdigest()

    def digest(self, chunk: Chunk) -> str:
        hasher = xxhash.xxh3_128()
        for piece in chunk.pieces:
            bound = self.binding.tensors[piece.tensor]
            for part, box in leaf_boxes(bound, piece.index):
                array = self.container.read_back(self.partial, self.layout, part.leaf, box)
                hasher.update(array.reshape(-1).view(np.uint8))
        return hasher.hexdigest()

    def finish(self, records: Sequence[Mapping[str, Any]]) -> Exported:
        """
        Raises:
            StorageError: what lies in the partial folder is not what was written, or something came in its way.
            SourceError: an input changed meanwhile.
        """
        if self.place.own(finished=True):  # put in place by a worker that died before it could say so
            self.place.begin(fresh=False)
        replaces = self.place.check()
        try:
            for name, source in self.companions.items():
                if isinstance(source, bytes):
                    (self.partial / name).write_bytes(source)
                else:
                    shutil.copyfile(source, self.partial / name)
            for name, content in self.small_files.items():
                (self.partial / name).write_bytes(content)
        except OSError as why:
            raise StorageError(f"{self.target}: cannot be finished: {reason(why)} ({why.filename})") from None
        self.container.verify(self.partial, self.layout)
        files = self._digested(records)
        unchanged(*self.inputs)  # companions were copied just now, and nothing that mixes two versions may look whole
        self.place.put_in_place(replaces)
        return Exported(
            self.target, tuple(replace(f, path=self.target / f.path.relative_to(self.partial)) for f in files)
        )

    def _digested(self, records: Sequence[Mapping[str, Any]]) -> list[Digested]:
        """Every file's digest, made durable; before it those of the chunks in it, which must be as they were written.

        File by file, so that a file that fits into the page cache comes from the disk once.

        Raises:
            StorageError: a chunk's bytes, or a constant's, are no longer what was written.
        """
        due: dict[str, list[tuple[Chunk, str]]] = {}
        for chunk, record in zip(self.chunks, records, strict=True):
            first = self.binding.tensors[chunk.pieces[0].tensor].parts[0].leaf
            due.setdefault(self.layout.places[first].file, []).append((chunk, record["digest"]))
        found = []
        for name in sorted(self.place.files):
            for chunk, digest in due.pop(name, ()):
                if self.digest(chunk) != digest:
                    self._changed(str(chunk))
            for leaf, content in self.binding.constants.items():
                if self.layout.places[leaf].file == name:
                    back = self.container.read_back(self.partial, self.layout, leaf, ())
                    if back.tobytes() != content:
                        self._changed(leaf)
            try:
                found.append(digest_file(self.partial / name, sync=True))
            except SourceError as why:  # to the user this is the output, not a source
                raise StorageError(str(why)) from None
        return found

    def _changed(self, what: str) -> NoReturn:
        raise StorageError(
            f"{self.partial}: {what} is no longer what was written there: another program's doing, or the disk's; "
            "the same command writes it again"
        )


def _between(spec: TensorSpec, elems: int, taken: int) -> int:
    """Bytes that `elems` values take between how they are read, in `taken` bytes, and how they are written.

    Packed values are fp32 on the way to anything but themselves, or what they are decoded to in one step; wide ones
    bf16, unless bf16 is what is read.
    """
    if taken < 2 * elems:
        return 0 if spec.scheme is None and spec.dtype in ("BF16", "F32") else 4 * elems
    return 0 if taken == 2 * elems else 2 * elems


def _taken(dialect: Dialect, files: Mapping[str, Path | bytes]) -> dict[str, Any]:
    """The companion files that the dialect's `takes` names, JSON parsed, the rest as text."""
    found: dict[str, Any] = {}
    for name in optional(dialect, DialectHooks, "takes"):
        if (file := files.get(name)) is not None:
            content, where = (file, name) if isinstance(file, bytes) else (read_whole(file), spoken(file))
            try:
                found[name] = parse_object(content, where) if name.endswith(".json") else content.decode()
            except UnicodeDecodeError as why:
                raise SourceError(f"{where}: not UTF-8: {why.reason} at byte {why.start}") from None
    return found


def _nbytes(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _json(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
