"""Export: lay a checkpoint out on disk, fill it chunk by chunk, and move it into place in one rename."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from pipeline import meter
from pipeline.chunks import pack
from pipeline.digest import digest_file
from pipeline.errors import Problem, SourceError, StorageError, ValueRangeError
from pipeline.formats import Binding, Container, Dialect, Layout
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Chunk, Context, Exported, OutputFile, Piece, Work
from pipeline.tensors.blocks import common, grain_of
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
        dialect: naming and packing.
        container: bytes in files.
        path: target folder; None for `model` in the run's folder.
        max_shard_size: largest file, such as `5GB`; None for a single file.
        dtype: `keep` writes quantized tensors packed and the rest as they come; `bf16`, `fp16` and `fp32` write
            plain values only.
        overflow: what happens to a finite value beyond fp16's range: `error`, or `clamp` to ±65504. Never infinity.
        unpack: turns packed tensors into values.
        cast: the cast kernel.
    """

    dialect: Dialect
    container: Container
    unpack: Kernel
    cast: Kernel
    path: str | None = None
    max_shard_size: str | None = "5GB"
    dtype: Literal["keep", "bf16", "fp16", "fp32"] = "keep"
    overflow: Literal["error", "clamp"] = "error"

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Work[Exported]:
        """
        Raises:
            PlanError: the dialect cannot express a tensor, a scheme or the mixture.
        """
        store = checkpoint.store
        if self.dtype != "keep":
            store = MappedStore(store, AsValues(DTYPES[self.dtype], self.unpack, self.cast, self.overflow))
        binding = self.dialect.encode(store.specs, {**checkpoint.config, **_taken(self.dialect, checkpoint.files)})
        max_shard = parse_bytes(self.max_shard_size, "export.max_shard_size") if self.max_shard_size else None
        layout = self.container.layout(binding.leaves, {"format": "pt", **binding.metadata}, max_shard)
        target = Path(self.path).expanduser().absolute() if self.path else ctx.run_dir / "model"
        return ExportWork(
            store=store,
            binding=binding,
            container=self.container,
            layout=layout,
            target=target,
            companions={n: p for n, p in checkpoint.files.items() if n not in (*binding.drop, *binding.files)},
            stored=checkpoint.stored,
            chunk_nbytes=ctx.chunk_nbytes,
            overwrite=ctx.overwrite,
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
    """The tasks of an export. Files are written in a `.partial` folder beside the target until all are whole."""

    store: TensorStore
    binding: Binding
    container: Container
    layout: Layout
    target: Path
    companions: Mapping[str, Path | bytes]
    stored: Mapping[str, int]
    chunk_nbytes: int
    overwrite: bool

    @property
    def nbytes(self) -> int:
        """Of all tensors as written: some dialects widen vectors, or write a scale for each of what shares one."""
        return sum(leaf.nbytes for leaf in self.binding.leaves.values())

    @property
    def partial(self) -> Path:
        return self.target.with_name(self.target.name + ".partial")

    @cached_property
    def small_files(self) -> dict[str, bytes]:
        """Files written whole: index, config.json and what the dialect adds."""
        config = {"config.json": _json(self.binding.config)} if self.binding.config else {}
        return {**self.layout.extra, **config, **self.binding.files}

    @cached_property
    def chunks(self) -> Sequence[Chunk]:
        grains = {name: self._grain(name) for name in self.binding.tensors}
        return tuple(self._chunk(pieces) for pieces in pack(self.store.specs, self.chunk_nbytes // 2, grains))

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
            # On the way they are bf16, unless that is what is read, or what is written and decoded in one step.
            between = 0 if taken == 2 * elems or (spec.dtype == "BF16" and taken < 2 * elems) else 2 * elems
            peak = max(peak, taken + between + given)
        return Chunk(pieces, nbytes_in, nbytes_out, peak + TASK_SCRATCH_NBYTES)

    def obstacles(self, *, finished: bool) -> list[Problem]:
        """What stands in the way on disk: an existing target, too little space.

        Args:
            finished: every chunk was done before, so that a target without a partial folder is this export's own.
        """
        problems = []
        own = finished and not self.overwrite and not self.partial.exists() and self.target.exists()
        if self.target.exists() and not own and not self.overwrite:
            problems.append(
                Problem("export.path", f"{self.target} exists already; choose another, or overwrite=true to replace it")
            )
        there = self.target.parent
        while not there.exists():
            there = there.parent
        if not os.access(there, os.W_OK):
            problems.append(Problem("export.path", f"{there} is not writable"))
        needed = 0 if own else sum(f.nbytes for f in self.outputs)
        if self.partial.exists():
            needed -= sum(p.stat().st_blocks * 512 for p in _files(self.partial))
        free = shutil.disk_usage(there).free
        if needed > free:
            problems.append(
                Problem("export.path", f"{there} has {show_bytes(free)} free, the output needs {show_bytes(needed)}")
            )
        return problems

    def begin(self, *, fresh: bool) -> None:
        try:
            if fresh and self.partial.exists():
                shutil.rmtree(self.partial)
            if not fresh and not self.overwrite and not self.partial.exists() and self.target.exists():
                # Killed between the rename and the manifest (see `obstacles`): open it again, its digests will tell.
                self.target.rename(self.partial)
            self.partial.mkdir(parents=True, exist_ok=True)
        except OSError as why:
            raise StorageError(f"cannot prepare {self.partial}: {why.strerror}") from None
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
        try:
            for name, source in self.companions.items():
                if isinstance(source, bytes):
                    (self.partial / name).write_bytes(source)
                else:
                    shutil.copyfile(source, self.partial / name)
            for name, content in self.small_files.items():
                (self.partial / name).write_bytes(content)
            files = [digest_file(path, sync=True) for path in _files(self.partial)]
            for folder in (self.partial, *(p for p in self.partial.rglob("*") if p.is_dir())):
                _sync(folder)
            if self.target.exists():
                old = self.target.with_name(self.target.name + ".replaced")
                if old.exists():  # killed while replacing
                    shutil.rmtree(old)
                self.target.rename(old)
                self.partial.rename(self.target)
                shutil.rmtree(old)
            else:
                self.partial.rename(self.target)
            _sync(self.target.parent)
        except OSError as why:
            raise StorageError(f"cannot finish {self.target}: {why.strerror} ({why.filename})") from None
        moved = (replace(f, path=self.target / f.path.relative_to(self.partial)) for f in files)
        return Exported(self.target, tuple(moved))


def _taken(dialect: Dialect, files: Mapping[str, Path | bytes]) -> dict[str, Any]:
    """The companion files that the dialect's `takes` names, JSON parsed, the rest as text."""
    found: dict[str, Any] = {}
    for name in getattr(dialect, "takes", ()):
        if (file := files.get(name)) is not None:
            content = file if isinstance(file, bytes) else file.read_bytes()
            try:
                found[name] = json.loads(content) if name.endswith(".json") else content.decode()
            except ValueError as why:
                raise SourceError(f"{name if isinstance(file, bytes) else file}: cannot be read: {why}") from None
    return found


def _nbytes(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _json(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
