"""The GGUF container: one file that holds a model's tensors, its settings and its tokenizer, or a set of such files.

Quantized tensors are leaves of bytes, `U8 [..., rows, bytes of a row]`, blocks as they are stored; plain ones have
their dtype; dimensions are in C order, the reverse of what the file says. Not here: what names, blocks and settings
mean (a dialect and `gguf_types`) and what is in a header (`gguf_header`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.files import opened
from pipeline.formats import FilePlan, Layout, Place
from pipeline.tensors.spec import TensorSpec
from plugins.formats.common.filestore import FileLeaves, Stamp
from plugins.formats.common.inplace import InPlace
from plugins.formats.common.leafspecs import leaf_problems
from plugins.formats.gguf.header import ALIGNMENT, KV, MAX_DIMS, Header, header_bytes, read_header
from plugins.formats.gguf.types import GGML, PLAIN

SUFFIX = ".gguf"
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
MAX_NAME_NBYTES = 63  # GGML_MAX_NAME, with its terminating zero, is 64
KEY = "gguf"  # of what the container tells a dialect, and a dialect the container


@dataclass(frozen=True)
class GgufLeaves(FileLeaves):
    """Leaves of one model. Metadata is read again when it is asked for: a vocabulary is too large to travel."""

    def config(self) -> Mapping[str, Any]:
        """`{"gguf": {"kv": metadata of the first file, "types": {leaf: ggml type}}}`."""
        headers = [_header(self.folder / file)[0] for file in self.stamps]
        types = {name: kind for header in headers for name, kind in header.types.items()}
        return {KEY: {"kv": dict(headers[0].kv), "types": types}}


@dataclass(frozen=True)
class GgufContainer(InPlace):
    """A `pipeline.formats.Container`.

    Attributes:
        stem: written files are `{stem}.gguf`, or `{stem}-00001-of-0000N.gguf`.
    """

    stem: str = "model"
    reads = "a .gguf file, or a folder with one"  # no field

    def __post_init__(self) -> None:
        if not self.stem or "/" in self.stem or self.stem.startswith("."):
            raise ConfigError(f"stem {self.stem!r}: the beginning of a file name is needed, such as model")

    def recognizes(self, source: Path) -> bool:
        return any(source.glob(f"*{SUFFIX}")) if source.is_dir() else source.name.endswith(SUFFIX)

    def open(self, source: Path) -> GgufLeaves:
        """The leaves of a file, of the set of files that it is one of, or of the one model in a folder.

        Raises:
            SourceError: see `pipeline.formats.Container`.
        """
        source = source.absolute()
        if source.is_dir():
            models = {_set_of(p.name)[0]: p for p in sorted(source.glob(f"*{SUFFIX}"))}
            if len(models) != 1:
                found = f"{len(models)} models ({', '.join(models)}); name the one to open" if models else "no file"
                raise SourceError(f"{source}: {found}")
            source = next(iter(models.values()))
        files = _set_of(source.name)
        if missing := [f for f in files if not (source.parent / f).exists()]:
            if files == [source.name]:
                raise SourceError(f"{source}: cannot be opened: no such file")
            raise SourceError(f"{source.parent}: {missing[0]} is missing; {len(files)} files belong together")
        places: dict[str, Place] = {}
        stamps: dict[str, Stamp] = {}
        for i, file in enumerate(files):
            header, stamps[file] = _header(source.parent / file)
            if (count := _number(header.kv, "split.count", 1)) not in (len(files), 0):
                raise SourceError(f"{source.parent / file}: split.count is {count}, its name says {len(files)}")
            if (number := _number(header.kv, "split.no", i)) != i:
                raise SourceError(f"{source.parent / file}: split.no is {number}, its name says {i}")
            for name, (spec, offset) in header.tensors.items():
                if name in places:
                    raise SourceError(f"{source.parent / file}: tensor {name!r:.200} is in {places[name].file} too")
                places[name] = Place(file, offset, spec)
        return GgufLeaves(source.parent, places, stamps, {})

    def layout(
        self, leaves: Mapping[str, TensorSpec], metadata: Mapping[str, Any], max_shard_bytes: int | None
    ) -> Layout:
        """Fill files with leaves in the order given.

        `metadata["gguf"]` is what a dialect makes of it: `kv`, and in `types` the ggml type of every leaf.

        Raises:
            PlanError: no such metadata, or names and specs that a GGUF file cannot hold.
        """
        given = metadata.get(KEY)
        if given is None:
            raise PlanError([Problem("export", "a GGUF file needs metadata, which only a GGUF dialect makes")])
        kv, types = given["kv"], given["types"]
        if problems := [p for name, spec in leaves.items() for p in _problems(name, spec, types.get(name))]:
            raise PlanError(problems)
        shards = _split(leaves, len(header_bytes(kv, {})), max_shard_bytes)
        names = [f"{self.stem}{SUFFIX}"]
        if len(shards) > 1:
            names = [f"{self.stem}-{i:05d}-of-{len(shards):05d}{SUFFIX}" for i in range(1, len(shards) + 1)]
        files, places = [], {}
        for i, (file, shard) in enumerate(zip(names, shards, strict=True)):
            table = {n: (types[n], spec) for n, spec in shard.items()}
            prefix = header_bytes(_kv_of_shard(kv, i, len(shards), len(leaves)), table)
            at = len(prefix)
            for name, spec in shard.items():
                places[name] = Place(file, at, spec)
                at += _aligned(spec.nbytes)
            files.append(FilePlan(file, prefix, at))
        return Layout(tuple(files), places, {})


def _header(path: Path) -> tuple[Header, Stamp]:
    with opened(path) as fd:
        return read_header(fd, path), Stamp.of(fd)


def _set_of(file: str) -> list[str]:
    """The files that belong together with `file`, by its name."""
    m = SHARD.fullmatch(file)
    count = int(m[3]) if m else 0
    if m is None or not 1 <= int(m[2]) <= count:
        return [file]
    return [f"{m[1]}-{i:05d}-of-{m[3]}{SUFFIX}" for i in range(1, count + 1)]


def _number(kv: KV, key: str, default: int) -> Any:
    return kv.get(key, ("", default))[1]


def _problems(name: str, spec: TensorSpec, kind: str | None) -> list[Problem]:
    found = list(leaf_problems(name, spec))
    if len(name.encode(errors="replace")) > MAX_NAME_NBYTES:
        found.append(Problem(name, f"names in GGUF files have at most {MAX_NAME_NBYTES} bytes"))
    if len(spec.shape) > MAX_DIMS:
        found.append(Problem(name, f"has {len(spec.shape)} dimensions; GGUF allows {MAX_DIMS}"))
    if kind not in GGML:
        found.append(Problem(name, f"has ggml type {kind}; a dialect must give one that exists"))
    elif spec.dtype != (kind if kind in PLAIN else "U8"):
        found.append(Problem(name, f"is {spec.dtype}, its ggml type {kind} is not"))
    elif kind not in PLAIN and (not spec.shape or spec.shape[-1] % GGML[kind].nbytes):
        found.append(Problem(name, f"rows of {spec.shape[-1:]} bytes are no blocks of {kind}"))
    return found


def _split(leaves: Mapping[str, TensorSpec], kv_nbytes: int, most: int | None) -> list[dict[str, TensorSpec]]:
    """Cut `leaves` in order so that each file, header included, has at most `most` bytes; one leaf may have more."""
    fixed = 256  # counts, what says where a file belongs, and padding
    shards: list[dict[str, TensorSpec]] = [{}]
    used = fixed + kv_nbytes
    for name, spec in leaves.items():
        cost = _aligned(spec.nbytes) + 24 + len(name.encode()) + 8 * len(spec.shape)
        if most is not None and shards[-1] and used + cost > most:
            shards.append({})
            used = fixed
        shards[-1][name] = spec
        used += cost
    return shards


def _kv_of_shard(kv: KV, i: int, count: int, tensors: int) -> KV:
    """llama.cpp's `gguf-split`: all metadata in the first file, in the others only what says where they belong."""
    if count == 1:
        return kv
    own = {"split.no": ("uint16", i), "split.count": ("uint16", count), "split.tensors.count": ("int32", tensors)}
    return {**kv, **own} if i == 0 else {"general.architecture": kv["general.architecture"], **own}


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
