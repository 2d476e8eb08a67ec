"""The safetensors container: one file, a folder of shards with an index, or a folder of files with disjoint names.

Reads and writes by itself, a box at a time, so that no process ever holds a file. Not here: what the names mean (that
is a dialect) and what is in a header (`safetensors_header`).
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError, Problem, SourceError
from pipeline.files import is_inner, is_within, opened
from pipeline.formats import FilePlan, Layout, Place
from pipeline.strictjson import read_object
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from plugins.formats.common.filestore import FileLeaves, Stamp
from plugins.formats.common.inplace import InPlace
from plugins.formats.common.leafspecs import leaf_problems
from plugins.formats.safetensors.check import check_file
from plugins.formats.safetensors.header import (
    LENGTH_NBYTES,
    MAX_HEADER_NBYTES,
    METADATA,
    Header,
    entry_json,
    header_bytes,
    metadata_json,
    read_header,
)

log = logging.getLogger(__name__)

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True)
class SafeTensors(InPlace):
    """A `pipeline.formats.Container`.

    Attributes:
        stem: written files are `{stem}.safetensors`, or `{stem}-00001-of-0000N.safetensors` with an index.
    """

    stem: str = "model"
    reads = "a folder or file of .safetensors"  # no field

    def recognizes(self, source: Path) -> bool:
        if source.is_dir():
            return any(source.glob(f"*{SUFFIX}")) or any(source.glob(f"*{INDEX_SUFFIX}"))
        if not source.is_file():
            return False
        if source.name.endswith((SUFFIX, INDEX_SUFFIX)):
            return True
        with opened(source) as fd:  # a blob of a download cache has no suffix
            head = os.pread(fd, LENGTH_NBYTES + 1, 0)
        return head[LENGTH_NBYTES:] == b"{" and int.from_bytes(head[:LENGTH_NBYTES], "little") <= MAX_HEADER_NBYTES

    def open(self, source: Path) -> FileLeaves:
        """The leaves of a file, of an index, or of a folder.

        A folder's index decides which files count; without one every `*.safetensors` of the folder does, and no two may
        name the same tensor. A wrong `total_size` in an index is logged and not refused: published ones are wrong.

        Raises:
            SourceError: see `pipeline.formats.Container`.
        """
        source = source.absolute()
        if source.is_dir():
            index = _find_index(source)
            if index is not None:
                return _open_index(index)
            files = sorted(p.name for p in source.glob(f"*{SUFFIX}"))
            if not files:
                raise SourceError(f"{source}: no *{SUFFIX} file and no *{INDEX_SUFFIX} in the folder")
            _check_complete(source, files)
            return _open_files(source, files)
        if source.name.endswith(INDEX_SUFFIX):
            return _open_index(source)
        return _open_files(source.parent, [source.name])

    def layout(
        self, leaves: Mapping[str, TensorSpec], metadata: Mapping[str, Any], max_shard_bytes: int | None
    ) -> Layout:
        """Fill files with leaves in the order given; a leaf too large for a file of `max_shard_bytes` has its own. A
        header that would be larger than the format allows ends a file too, unless all are to be in one.

        Leaves keep their order in a file unless that would put one at a byte that is no multiple of its element size,
        which torch cannot view; then larger elements go first, in the same order otherwise. Metadata values that are
        not strings are written as JSON.

        Raises:
            PlanError: names or specs that a safetensors file cannot hold.
        """
        problems = [p for name, spec in leaves.items() for p in leaf_problems(name, spec)]
        if METADATA in leaves:
            problems.append(Problem(METADATA, "is the key of a header's metadata and cannot name a tensor"))
        if problems:
            raise PlanError(problems)
        # transformers refuses files whose metadata does not say which framework's they are.
        texts = {"format": "pt"} | {k: _text(v) for k, v in metadata.items()}
        head = metadata_json(texts)
        shards = _split(leaves, len(head), max_shard_bytes)
        names = [f"{self.stem}{SUFFIX}"]
        if len(shards) > 1:
            names = [f"{self.stem}-{i:05d}-of-{len(shards):05d}{SUFFIX}" for i in range(1, len(shards) + 1)]
        files: list[FilePlan] = []
        places: dict[str, Place] = {}
        for file, shard in zip(names, shards, strict=True):
            begins, data_nbytes = _begins(shard)
            prefix = header_bytes([head, *(entry_json(n, leaves[n], b) for n, b in begins.items())])
            if len(prefix) - LENGTH_NBYTES > MAX_HEADER_NBYTES:
                raise PlanError(
                    [Problem(file, f"header of {len(prefix):,} bytes; the format allows {MAX_HEADER_NBYTES:,}")]
                )
            files.append(FilePlan(file, prefix, len(prefix) + data_nbytes))
            places |= {n: Place(file, len(prefix) + b, leaves[n]) for n, b in begins.items()}
        extra = {}
        if len(files) > 1:
            index = {
                "metadata": {"total_size": sum(s.nbytes for s in leaves.values())},
                "weight_map": {name: place.file for name, place in places.items()},
            }
            extra[f"{self.stem}{INDEX_SUFFIX}"] = (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()
        return Layout(tuple(files), places, extra)

    def verify(self, folder: Path, layout: Layout) -> None:
        """Every file opened by the `safetensors` library, which must see what was laid out; it reads no data.

        Raises:
            StorageError: it sees other names, shapes, dtypes, places or metadata, or cannot open a file.
        """
        super().verify(folder, layout)
        for file in layout.files:
            check_file(folder / file.name, file, {n: p for n, p in layout.places.items() if p.file == file.name})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _split(leaves: Mapping[str, TensorSpec], head_nbytes: int, most: int | None) -> list[dict[str, TensorSpec]]:
    """Cut `leaves` in order so that each file, header and padding included, has at most `most` bytes, and its header
    no more than the format allows, which a million small tensors would have."""
    if most is None:
        return [dict(leaves)]
    fixed = LENGTH_NBYTES + len("{}") + head_nbytes + 7
    shards: list[dict[str, TensorSpec]] = [{}]
    head, data = fixed, 0
    for name, spec in leaves.items():
        # The offsets are taken as long as they can get: alignment may still move the leaf within its file.
        entry = 1 + len(entry_json(name, spec, most))
        if shards[-1] and (head + entry + data + spec.nbytes > most or head + entry > MAX_HEADER_NBYTES):
            shards.append({})
            head, data = fixed, 0
        shards[-1][name] = spec
        head, data = head + entry, data + spec.nbytes
    return shards


def _begins(shard: Mapping[str, TensorSpec]) -> tuple[dict[str, int], int]:
    """(leaf → first data byte, data bytes), every leaf at a multiple of its element size."""

    def element_nbytes(name: str) -> int:
        return max(1, DTYPE_BITS[shard[name].dtype] // 8)

    for order in (list(shard), sorted(shard, key=element_nbytes, reverse=True)):
        begins, at = {}, 0
        for name in order:
            begins[name] = at
            at += shard[name].nbytes
        if all(begin % element_nbytes(name) == 0 for name, begin in begins.items()):
            break
    return begins, at


def _find_index(folder: Path) -> Path | None:
    found = sorted(p.name for p in folder.glob(f"*{INDEX_SUFFIX}"))
    if len(found) > 1 and f"model{INDEX_SUFFIX}" in found:
        found = [f"model{INDEX_SUFFIX}"]
    if len(found) > 1:
        raise SourceError(f"{folder}: {len(found)} indexes ({', '.join(found)}); name the one to open")
    return folder / found[0] if found else None


def _check_complete(folder: Path, files: Iterable[str]) -> None:
    """Without an index, a missing shard would otherwise go unnoticed."""
    shards = [m for m in map(SHARD.fullmatch, files) if m]
    for stem, count in {(m[1], m[3]) for m in shards}:
        have = {int(m[2]) for m in shards if (m[1], m[3]) == (stem, count)}
        missing = sorted(set(range(1, int(count) + 1)) - have)
        if missing and 0 not in have:  # a set counted from zero says nothing about its end
            raise SourceError(f"{folder}: {stem}-{missing[0]:05d}-of-{count}{SUFFIX} is missing, and there is no index")


def _open_files(folder: Path, files: Iterable[str]) -> FileLeaves:
    places: dict[str, Place] = {}
    stamps: dict[str, Stamp] = {}
    metadata: dict[str, str] = {}
    for file in files:
        header, stamps[file] = _header(folder / file)
        for name, (spec, offset) in header.tensors.items():
            if name in places:
                raise SourceError(f"{folder / file}: tensor {name!r} is in {places[name].file} too")
            places[name] = Place(file, offset, spec)
        metadata = {**header.metadata, **metadata}  # shards agree in practice; the first one wins
    return FileLeaves(folder, places, stamps, metadata)


def _header(path: Path) -> tuple[Header, Stamp]:
    with opened(path) as fd:
        return read_header(fd, path), Stamp.of(fd)


def _open_index(path: Path) -> FileLeaves:
    """Open the files an index names; index and headers must agree in both directions."""
    index = read_object(path)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise SourceError(f"{path}: weight_map must map tensor names to file names")
    files = sorted(set(weight_map.values()))
    for file in files:
        _check_inside(path, file)
    leaves = _open_files(path.parent, files)
    for name, file in weight_map.items():
        place = leaves.places.get(name)
        if place is None or place.file != file:
            where = "no file of the index does" if place is None else f"{place.file} does"
            raise SourceError(f"{path}: tensor {name!r} is said to be in {file}, which does not hold it; {where}")
    if len(weight_map) != len(leaves.places):
        name = next(n for n in leaves.places if n not in weight_map)
        raise SourceError(f"{path}: tensor {name!r} of {leaves.places[name].file} is not in weight_map")
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    actual = sum(s.nbytes for s in leaves.specs.values())
    if stated is not None and stated != actual:
        log.warning("%s: total_size is %s, the tensors have %d bytes", path, stated, actual)
    return replace(leaves, metadata_paths=(path,))


def _check_inside(index: Path, file: str) -> None:
    """A name must stay in the index's folder. The file itself may be a link: a download cache links to its blobs."""
    folder = index.parent
    if not is_inner(file):
        raise SourceError(f"{index}: weight_map names the file {file!r}; only files inside the folder are allowed")
    if not is_within(folder, (folder / file).parent):
        raise SourceError(f"{index}: weight_map names the file {file!r}, which a link leads outside the folder")
