"""The work of an export: lay a checkpoint out on disk, fill it chunk by chunk, and move it into place in one rename."""

import json
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash

from pipeline import meter
from pipeline.digest import Digested, InputFile, digest_file, unchanged
from pipeline.errors import PlanError, Problem, SourceError, StorageError
from pipeline.files import clone
from pipeline.formats import Container, Layout
from pipeline.places import nearest_folder, reason, sync, unlisted
from pipeline.running.target import MARKER, Target
from pipeline.stage import Chunk, Exported, OutputFile, ReadBack
from pipeline.tensors import rooms
from pipeline.tensors.binding import Binding
from pipeline.tensors.blocks import Box, common, grain_of, outward, scratch_of, shares_of
from pipeline.tensors.chunks import pack, pack_boxes
from pipeline.tensors.nonfinite import nonfinite
from pipeline.tensors.pieces import Piece
from pipeline.tensors.slabs import slabs
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import TensorStore, normalize
from pipeline.tensors.views import grain, leaf_boxes, split
from pipeline.units import show_bytes

READERS = 2  # that look at what chunks have written: what each then holds, a chunk holds twice while it is made
TASK_SCRATCH_NBYTES = 12 << 20  # tiles of the codec, staging of strided reads, slabs of transposed writes


@dataclass(frozen=True)
class ExportWork:
    """The tasks of an export. Files are written beside the target until all are whole (`pipeline.running.target`).

    Attributes:
        companions: files to carry along, name → path or content.
        stored: bytes that each tensor takes where it is read.
        inputs: every file behind the store and the companions.
        key: of what is written; whoever planned it fills it in.
        chosen: for people: which option of `export=` was taken, and why; empty when it was asked for.
        read_back: whether, and how, later stages read the export in place of the checkpoint.
        made_by: dialect, container and size of files, wherever they were chosen.
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
    read_back: ReadBack | None = None
    made_by: Mapping[str, Any] | None = None

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
        grains = {name: self.grain(name) for name in self.binding.tensors}
        written = {name: spec for name, spec in self.store.specs.items() if name not in self.ignored}
        elems, shares = self.chunk_nbytes // 2, self._shares()
        if not shares:
            return tuple(self._chunk(pieces) for pieces in pack(written, elems, grains))
        each = ((process, pieces) for process, boxes in shares.items() for pieces in pack_boxes(boxes, elems, grains))
        return tuple(replace(self._chunk(pieces), process=process) for process, pieces in each)

    def _shares(self) -> dict[int, list[tuple[str, Box]]]:
        """Process → the boxes that it is to write, where what is written lies in several.

        Raises:
            PlanError: boxes that cut what is written together.
        """
        found: dict[int, list[tuple[str, Box]]] = {}
        problems: dict[str, Problem] = {}
        for name, bound in self.binding.tensors.items():
            if (shares := shares_of(self.store, name)) is None:
                continue
            shape, sides = bound.spec.shape, common(grain(bound), grain_of(self.store, name))
            for index, process in shares:
                box = normalize(index, shape)
                found.setdefault(process, []).append((name, box))
                if outward(box, shape, sides) != box:
                    part = ", ".join(f"{s.start}:{s.stop}" for s in box)
                    text = f"one process has [{part}] of it, and it is written in multiples of {list(sides)}"
                    cure = "choose another export, or divide it otherwise (mesh.rules)"
                    problems[name] = Problem(name, f"{text}; {cure}")
        if problems:
            raise PlanError(problems.values())
        return dict(sorted(found.items()))

    def grain(self, name: str) -> tuple[int, ...]:
        """What a box of this tensor is multiples of, to be read and to be written without looking at more than it."""
        bound = self.binding.tensors[name]
        found = common(grain(bound), grain_of(self.store, name))
        if any(part.turned for part in bound.parts):
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
            there = nearest_folder(self.target)
            if (needed := self.nbytes_needed(finished=finished)) > (free := shutil.disk_usage(there).free):
                found.append(f"{there} has {show_bytes(free)} free, the output needs {show_bytes(needed)}")
        return [Problem("export.path", why) for why in found]

    def nbytes_needed(self, *, finished: bool) -> int:
        """Bytes that are still to be written, less those that are removed before."""
        needed = 0 if self.place.own(finished=finished) else sum(f.nbytes for f in self.outputs)
        return needed - self.place.nbytes_there()

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
                meter.nonfinite(piece.tensor, nonfinite(value, self.store.specs[piece.tensor].dtype))
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
                with rooms.reused():
                    array = self.container.read_back(self.partial, self.layout, part.leaf, box)
                    hasher.update(array.reshape(-1).view(np.uint8))
                    del array
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
            for name, content in self._texts.items():
                (self.partial / name).write_bytes(content)
            self.place.mark()
        except OSError as why:
            raise StorageError(f"{self.target}: cannot be finished: {reason(why)} ({why.filename})") from None
        self.container.verify(self.partial, self.layout)
        files = self._digested(records)
        unchanged(*self.inputs)  # companions were copied just now, and nothing that mixes two versions may look whole
        self.place.put_in_place(replaces)
        files = [replace(f, path=self.target / f.path.relative_to(self.partial)) for f in files]
        return Exported(self.target, tuple(files), self.read_back)

    def adopt(self, folder: Path, files: Mapping[str, str]) -> Exported | None:
        """Put in place what an earlier run wrote under this key into `folder`, if it still is that.

        Args:
            files: name → xxh3-128 digest of every file there but the marker.

        Raises:
            StorageError: it cannot be copied here.
        """
        if {*files} != {*self.place.files} - {MARKER} or not all((folder / n).is_file() for n in files):
            return None
        if folder == self.target:
            if folder.is_symlink() or unlisted(folder, self.place.files):
                return None
            return self._as_exported(folder, files)
        self.place.begin(fresh=True)
        try:
            for name in files:
                (self.partial / name).parent.mkdir(parents=True, exist_ok=True)
                clone(folder / name, self.partial / name)
            self.place.mark()
        except OSError as why:
            raise StorageError(f"{self.target}: cannot be copied from {folder}: {reason(why)}") from None
        if (found := self._as_exported(self.partial, files)) is not None:
            self.place.put_in_place(None)
        return found

    def _as_exported(self, folder: Path, files: Mapping[str, str]) -> Exported | None:
        """What lies in `folder`, which is or will be the target, if every file has its digest."""
        found = []
        for name in (*files, MARKER):
            digested = digest_file(folder / name, sync=True)
            if name != MARKER and digested.xxh3_128 != files[name]:
                return None
            found.append(replace(digested, path=self.target / name))
        return Exported(self.target, tuple(sorted(found, key=lambda f: f.path)))

    def _digested(self, records: Sequence[Mapping[str, Any]]) -> list[Digested]:
        """Every file's digest, made durable; before it those of the chunks in it, which must be as they were written.

        File by file, so that a file that fits into the page cache comes from the disk once. The disk takes a file while
        it and its chunks are read back from memory.

        Raises:
            StorageError: a chunk's bytes, or a constant's, are no longer what was written; or the disk takes them not.
        """
        due: dict[str, list[tuple[Chunk, str]]] = {}
        for chunk, record in zip(self.chunks, records, strict=True):
            first = self.binding.tensors[chunk.pieces[0].tensor].parts[0].leaf
            due.setdefault(self.layout.places[first].file, []).append((chunk, record["digest"]))
        found = []
        with ThreadPoolExecutor(2) as aside, ThreadPoolExecutor(READERS) as readers:
            for name in sorted(self.place.files):
                durable = aside.submit(sync, self.partial / name)
                whole = aside.submit(digest_file, self.partial / name)
                chunks = due.pop(name, [])
                back = readers.map(self.digest, (chunk for chunk, _ in chunks))
                for (chunk, digest), lies_there in zip(chunks, back, strict=True):
                    if lies_there != digest:
                        self._changed(str(chunk))
                for leaf, content in self.binding.constants.items():
                    if self.layout.places[leaf].file == name:
                        constant = self.container.read_back(self.partial, self.layout, leaf, ())
                        if constant.tobytes() != content:
                            self._changed(leaf)
                try:
                    durable.result()
                    found.append(whole.result())
                except OSError as why:
                    raise StorageError(f"{self.partial / name}: {reason(why)}") from None
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


def _nbytes(file: Path | bytes) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def _json(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()
