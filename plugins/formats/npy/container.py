"""A folder of .npy files, one leaf each, and a metadata.json that says what .npy cannot: names, dtypes, facts.

For looking at weights with nothing but NumPy or JAX at hand: `numpy.load` and `jax.numpy.load` open the files. BF16 is
stored as `<V2`, which jax.numpy.load turns into bfloat16. Float8 is stored as `<V1`, as numpy.save does for most kinds
of it: both load it as opaque bytes, to be viewed (`.view(ml_dtypes.float8_e4m3fn)`). F4 and F6 are packed uint8.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError, SourceError
from pipeline.files import exists, is_inner, opened
from pipeline.formats import FilePlan, Layout, Place
from pipeline.strictjson import read_object
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from plugins.formats.common.boxes import held_shape
from plugins.formats.common.filestore import FileLeaves, Stamp
from plugins.formats.common.inplace import InPlace
from plugins.formats.common.leafspecs import is_shape, leaf_problems
from plugins.formats.npy.header import descr, header_bytes, plain_dtype, read_header

INDEX = "metadata.json"
FORMAT = "weightmill-npy"
VERSION = 1
MAX_STEM_CHARS = 180  # file systems allow 255 bytes; leave room for a hash and whatever a tool appends

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com\d|lpt\d)(\..*)?|\..*|")  # names of devices, hidden files, nothing


@dataclass(frozen=True)
class Npy(InPlace):
    """A `pipeline.formats.Container`. `max_shard_bytes` means nothing to it: every leaf has a file of its own."""

    reads = "a folder of .npy files"

    def recognizes(self, source: Path) -> bool:
        return source.is_dir() and any(source.glob("*.npy"))

    def open(self, source: Path) -> FileLeaves:
        """The leaves that metadata.json names; without one, every .npy file of the folder under its stem.

        Raises:
            SourceError: see `pipeline.formats.Container`.
        """
        folder = source.absolute()
        if not folder.is_dir():
            raise SourceError(f"{folder}: not a folder of .npy files")
        if not exists(folder / INDEX):
            files = sorted(p.name for p in folder.glob("*.npy"))
            if not files:
                raise SourceError(f"{folder}: no {INDEX} and no .npy file in the folder")
            return _open_files(folder, {f.removesuffix(".npy"): (f, None) for f in files}, {})
        path = folder / INDEX
        index = read_object(path)
        if index.get("format") != FORMAT or index.get("version") != VERSION:
            given = f"format {index.get('format')!r:.40} version {index.get('version')!r:.40}"
            raise SourceError(f"{path}: {given}; {FORMAT!r} version {VERSION} is supported")
        tensors, metadata = index.get("tensors"), index.get("metadata", {})
        if not isinstance(tensors, dict) or not isinstance(metadata, dict):
            raise SourceError(f"{path}: tensors and metadata must be objects")
        wanted = {name: _entry(path, name, entry) for name, entry in tensors.items()}
        shared = [f for f, n in Counter(f for f, _ in wanted.values()).items() if n > 1]
        if shared:
            raise SourceError(f"{path}: file {shared[0]!r} is given to more than one tensor")
        return replace(_open_files(folder, wanted, metadata), metadata_paths=(path,))

    def layout(
        self, leaves: Mapping[str, TensorSpec], metadata: Mapping[str, Any], max_shard_bytes: int | None
    ) -> Layout:
        """One file a leaf, in the order given.

        Raises:
            PlanError: specs that a .npy file cannot hold.
        """
        problems = [p for name, spec in leaves.items() for p in leaf_problems(name, spec)]
        if problems:
            raise PlanError(problems)
        files, places, tensors = [], {}, {}
        for (name, spec), stem in zip(leaves.items(), file_stems(leaves), strict=True):
            prefix = header_bytes(spec)
            file = f"{stem}.npy"
            files.append(FilePlan(file, prefix, len(prefix) + spec.nbytes))
            places[name] = Place(file, len(prefix), spec)
            tensors[name] = {"file": file, "dtype": spec.dtype, "shape": list(spec.shape)}
        index = {"format": FORMAT, "version": VERSION, "tensors": tensors, "metadata": dict(metadata)}
        return Layout(tuple(files), places, {INDEX: (json.dumps(index, indent=1, ensure_ascii=False) + "\n").encode()})


def file_stems(names: Iterable[str]) -> list[str]:
    """A safe file name for each name: %XX for odd characters; a hash of the name where that is not enough.

    Unique also on file systems that ignore case; readable wherever it can be. `~` appears only before a hash.
    """
    escaped = {n: _UNSAFE.sub(lambda m: "".join(f"%{b:02X}" for b in m[0].encode()), n) for n in names}
    taken = Counter(e.lower() for e in escaped.values())
    stems = []
    for name, stem in escaped.items():
        if taken[stem.lower()] > 1 or len(stem) > MAX_STEM_CHARS or _RESERVED.fullmatch(stem):
            stem = f"{stem[:MAX_STEM_CHARS].lstrip('.')}~{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        stems.append(stem)
    return stems


def _entry(path: Path, name: str, entry: Any) -> tuple[str, TensorSpec]:
    where = f"{path}: tensor {name!r:.200}"
    if not isinstance(entry, dict) or set(entry) != {"file", "dtype", "shape"}:
        raise SourceError(f"{where}: must have exactly the fields file, dtype and shape")
    file, dtype, shape = entry["file"], entry["dtype"], entry["shape"]
    if not isinstance(file, str) or not is_inner(file) or file != Path(file).name or not file.endswith(".npy"):
        raise SourceError(f"{where}: file {file!r:.200} is not the name of a .npy file in the folder")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS or not is_shape(shape):
        raise SourceError(f"{where}: dtype {dtype!r:.40} and shape {shape!r:.80} are not a dtype and a shape")
    return file, TensorSpec(tuple(shape), dtype)


def _open_files(
    folder: Path, wanted: Mapping[str, tuple[str, TensorSpec | None]], metadata: Mapping[str, Any]
) -> FileLeaves:
    places: dict[str, Place] = {}
    stamps: dict[str, Stamp] = {}
    for name, (file, spec) in wanted.items():
        path = folder / file
        with opened(path) as fd:
            kind, shape, offset = read_header(fd, path)
            stamps[file] = Stamp.of(fd)
        if spec is None:
            spec = TensorSpec(shape, plain_dtype(kind, path))
        elif (shape, kind.lstrip("|<")) != (held_shape(spec), descr(spec.dtype).lstrip("|<")):
            raise SourceError(
                f"{path}: holds {kind}{list(shape)}; {INDEX} says {spec.dtype}{list(spec.shape)}, "
                f"which is {descr(spec.dtype)}{list(held_shape(spec))}"
            )
        places[name] = Place(file, offset, spec)
    return FileLeaves(folder, places, stamps, dict(metadata))
