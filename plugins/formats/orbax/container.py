"""The Orbax container: a checkpoint of a tree of arrays, as `orbax.checkpoint` saves and restores it in JAX.

What is written here lies raw in files of its own, one an array (`orbax_zarr`), so that it is laid out ahead and filled
in place; Orbax restores it as it restores its own. What Orbax saved, compressed and in a database, is read through
tensorstore (`orbax_store`). Names are key paths joined by dots. A tree as `weightmill` means it is flat: `{tensor name:
array or QTensor}`; which of the arrays are QTensors, and in which scheme, is in the checkpoint's `custom_metadata`,
where the dialect puts it (`pytree`).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, PlanError, Problem, SourceError
from pipeline.files import exists, is_inner, opened, storage_error
from pipeline.formats import FilePlan, Layout, Leaves, Place
from pipeline.strictjson import read_object
from pipeline.tensors.spec import TensorSpec
from plugins.formats.common.filestore import FileLeaves, Stamp
from plugins.formats.common.inplace import InPlace
from plugins.formats.common.leafspecs import leaf_problems
from plugins.formats.orbax.metadata import (
    ARRAY,
    CHECKPOINT,
    METADATA_FILES,
    OCDBT,
    TREE,
    Keys,
    Tree,
    checkpoint_json,
    inside,
    item_folders,
    read_custom,
    read_tree,
    tree_json,
)
from plugins.formats.orbax.store import open_stored
from plugins.formats.orbax.zarr import CHUNK_NBYTES, DATA_TYPES, METADATA, banded, understood

KEY = "pytree"  # of what the container tells a dialect, and a dialect the container
COMPONENTS = ("codes", "scales", "zeros", "second")  # the children of a QTensor, `pipeline.tensors.pytree`
MAX_NAME_NBYTES = 255  # of a folder
RESERVED = (TREE, CHECKPOINT, OCDBT, "d", "_sharding", "_strings.json", "array_metadatas", "config.json")


@dataclass(frozen=True)
class OrbaxLeaves(FileLeaves):
    """Leaves that lie as `Orbax` writes them."""

    described: Mapping[str, Any] = field(default_factory=dict)

    def config(self) -> Mapping[str, Any]:
        """config.json, and under `pytree` what custom_metadata says of QTensors."""
        return self.described


@dataclass(frozen=True)
class Orbax(InPlace):
    """A `pipeline.formats.Container`. `max_shard_bytes` means nothing to it: every leaf has a file of its own.

    Attributes:
        chunk_nbytes: what a reader that wants a part of an array reads at a time.
    """

    chunk_nbytes: int = CHUNK_NBYTES
    reads = "a checkpoint of Orbax"  # no field

    def __post_init__(self) -> None:
        if self.chunk_nbytes < 1:
            raise ConfigError(f"chunk_nbytes {self.chunk_nbytes}: a positive number of bytes is needed")

    def recognizes(self, source: Path) -> bool:
        return source.is_dir() and bool(item_folders(source))

    def open(self, source: Path) -> Leaves:
        """The arrays of a checkpoint, of a step with one item, or of a folder with one step.

        Raises:
            SourceError: see `pipeline.formats.Container`.
        """
        source = source.absolute()
        folders = item_folders(source)
        if len(folders) != 1:
            listed = ", ".join(str(f.relative_to(source)) for f in folders[:12])
            what = f"{len(folders)} trees ({listed}); name the one to open" if folders else f"no {TREE} in the folder"
            raise SourceError(f"{source}: {what}")
        (folder,) = folders
        tree = read_tree(folder)
        for node in tree.arrays:
            if node.value_type == "string":
                raise SourceError(f"{folder}: {node.name!r:.200} is a text, not an array; save the tree without it")
            if not inside(folder, node.name):
                raise SourceError(f"{folder / TREE}: array {node.name!r:.200} lies outside the folder")
        custom = read_custom(folder, tree)
        config = source / "config.json"
        described = {**(read_object(config) if exists(config) else {}), KEY: custom.get(KEY, {})}
        leaves = _raw(folder, tree, custom, described) or open_stored(folder, tree, custom, described)
        beside = [p for p in (config, folder.parent / CHECKPOINT) if p.is_file()]
        told = [p for p in leaves.paths if p.name in METADATA_FILES]
        return replace(leaves, metadata_paths=(*beside, *told))

    def layout(
        self, leaves: Mapping[str, TensorSpec], metadata: Mapping[str, Any], max_shard_bytes: int | None
    ) -> Layout:
        """A folder for each leaf, in the order given; `metadata` becomes custom_metadata.

        Raises:
            PlanError: names or specs that cannot be folders of zarr arrays.
        """
        problems = [p for name, spec in leaves.items() for p in (*leaf_problems(name, spec), *_problems(name, spec))]
        if problems:
            raise PlanError(problems)
        files, places = [], {}
        extra = {
            TREE: tree_json(_nodes(leaves, metadata.get(KEY, {}).get("tensors", {}))),
            CHECKPOINT: checkpoint_json(metadata),
        }
        for name, spec in leaves.items():
            array = banded(spec, self.chunk_nbytes)
            file = f"{name}/{array.file}"
            files.append(FilePlan(file, array.index(), array.nbytes))
            places[name] = Place(file, array.index_nbytes, spec)
            extra[f"{name}/{METADATA}"] = json.dumps(array.metadata()).encode()
        return Layout(tuple(files), places, extra)

    def begin(self, folder: Path, layout: Layout) -> None:
        """See `InPlace.begin`; makes the folders of the arrays first."""
        for name in (*(f.name for f in layout.files), *layout.extra):
            try:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise storage_error(f"{(folder / name).parent}: making the folder", e, folder.parent) from e
        super().begin(folder, layout)


def _nodes(leaves: Iterable[str], quantized: Mapping[str, Any]) -> dict[Keys, str]:
    """Key path → value type of every node. A QTensor has all its children: those without an array are None."""
    owner = {f"{name}.{c}": name for name in quantized for c in COMPONENTS}
    given = set(leaves)
    nodes: dict[Keys, str] = {}
    for leaf in leaves:
        name = owner.get(leaf)
        if name is None:
            nodes[(leaf,)] = ARRAY
        else:
            nodes |= {(name, c): ARRAY if f"{name}.{c}" in given else "None" for c in COMPONENTS}
    return nodes


def _problems(name: str, spec: TensorSpec) -> Iterable[Problem]:
    if not is_inner(name) or "/" in name or name in RESERVED:
        yield Problem(repr(name), "cannot be the name of an array's folder in an Orbax checkpoint")
    elif len(name.encode(errors="replace")) > MAX_NAME_NBYTES:
        yield Problem(name, f"has {len(name.encode(errors='replace'))} bytes; a folder's name has {MAX_NAME_NBYTES}")
    if spec.dtype not in DATA_TYPES and spec.scheme is None:
        yield Problem(name, f"dtype {spec.dtype} has no name in zarr (allowed: {', '.join(DATA_TYPES)})")


def _raw(folder: Path, tree: Tree, custom: Mapping[str, Any], described: Mapping[str, Any]) -> OrbaxLeaves | None:
    """The leaves when all of them lie as `Orbax.layout` puts them; None when tensorstore has to look.

    Raises:
        SourceError: an array is described as written here, and its file is not what that demands.
    """
    if not tree.zarr3 or (folder / OCDBT).exists():
        return None
    places: dict[str, Place] = {}
    told = [TREE, *([CHECKPOINT] if (folder / CHECKPOINT).is_file() else [])]
    data: dict[str, Stamp] = {}
    for name in (node.name for node in tree.arrays):
        array = understood(read_object(folder / name / METADATA))
        if array is None:
            return None
        file = f"{name}/{array.file}"
        path = folder / file
        if not inside(folder, file):
            raise SourceError(f"{path}: a link leads outside the folder")
        with opened(path) as fd:
            data[file] = stamp = Stamp.of(fd)
            if stamp.nbytes != array.nbytes:
                spec = array.spec
                raise SourceError(
                    f"{path}: has {stamp.nbytes:,} bytes; {spec.dtype}{list(spec.shape)} as {METADATA} describes it "
                    f"takes {array.nbytes:,}"
                )
            with open(fd, "rb", closefd=False) as f:
                if f.read(array.index_nbytes) != array.index():
                    return None
        places[name] = Place(file, array.index_nbytes, array.spec)
        told.append(f"{name}/{METADATA}")
    stamps = dict(data)
    for file in told:
        with opened(folder / file) as fd:
            stamps[file] = Stamp.of(fd)
    return OrbaxLeaves(folder, places, stamps, custom, described=described)
