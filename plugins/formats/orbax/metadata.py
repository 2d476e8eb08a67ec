"""The two JSON files of an Orbax checkpoint: `_METADATA`, the tree of its arrays, and `_CHECKPOINT_METADATA`.

The same facts as in orbax-checkpoint 0.12 (`metadata/tree.py`, `metadata/step_metadata_serialization.py`): an array is
stored under its key path joined by dots; nodes without an array (None, an empty dict) are entries that are skipped.
Whoever saved the checkpoint may have left a note of his own, `custom_metadata`, at three places; all are read.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.files import is_inner, is_within
from pipeline.strictjson import read_object

TREE = "_METADATA"
CHECKPOINT = "_CHECKPOINT_METADATA"
OCDBT = "manifest.ocdbt"
# Small files that say what the others hold; of an array in zarr version 3 or 2 these are beside its chunks.
METADATA_FILES = (TREE, CHECKPOINT, OCDBT, "zarr.json", ".zarray", ".zattrs", ".zgroup")
HANDLER = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"
SEQUENCE, DICT = 1, 2  # key types
EMPTY: Mapping[str, Any] = {
    "None": None,
    "Dict": {},
    "List": [],
    "Tuple": (),
    "NamedTuple": None,
}  # value types without an array
ARRAY = "np.ndarray"  # restored as such when nobody says how; a jax.Array would need to know its devices

Keys = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A leaf of the saved tree.

    Attributes:
        keys: its path.
        kinds: `SEQUENCE` or `DICT` for each key.
        value_type: what was saved: `jax.Array`, `np.ndarray`, `scalar`, `string`, or a key of `EMPTY`.
    """

    keys: Keys
    kinds: tuple[int, ...]
    value_type: str

    @property
    def name(self) -> str:
        """The name that Orbax stores the array under."""
        return ".".join(self.keys)


@dataclass(frozen=True, slots=True)
class Tree:
    """What `_METADATA` says.

    Attributes:
        nodes: the arrays and empty nodes, in file order.
        zarr3: whether arrays are zarr version 3; otherwise they are version 2.
        complete: whether chunks that hold nothing but zeros are stored too; a missing chunk is then an error.
        custom: the note of whoever saved it.
    """

    nodes: tuple[Node, ...]
    zarr3: bool
    complete: bool
    custom: Mapping[str, Any]

    @property
    def arrays(self) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if n.value_type not in EMPTY)


def read_tree(folder: Path) -> Tree:
    """
    Raises:
        SourceError: missing, malformed, or with two arrays under one name.
    """
    path = folder / TREE
    content = read_object(path)
    entries, custom = content.get("tree_metadata"), content.get("custom_metadata")
    if not isinstance(entries, dict) or not isinstance(custom, dict | None):
        raise SourceError(f"{path}: tree_metadata and custom_metadata must be objects")
    nodes = tuple(_node(path, key, entry) for key, entry in entries.items())
    seen: set[str] = set()
    for node in nodes:
        if node.name in seen:
            raise SourceError(f"{path}: {node.name!r:.200} is the name of two key paths")
        seen.add(node.name)
    complete = content.get("store_array_data_equal_to_fill_value") is True
    return Tree(nodes, content.get("use_zarr3") is True, complete, custom or {})


def read_custom(folder: Path, tree: Tree) -> dict[str, Any]:
    """`custom_metadata` of the tree, of the checkpoint, and of the step whose item the folder is; nearest first."""
    found: dict[str, Any] = {}
    for path in (folder.parent / CHECKPOINT, folder / CHECKPOINT):
        if path.is_file():
            custom = read_object(path).get("custom_metadata")
            if not isinstance(custom, dict | None):
                raise SourceError(f"{path}: custom_metadata must be an object")
            found |= custom or {}
    return found | dict(tree.custom)


def tree_json(nodes: Mapping[Keys, str]) -> bytes:
    """`_METADATA` of a checkpoint in zarr version 3: key path, all of dicts, → value type."""
    entries = {
        str(keys): {
            "key_metadata": [{"key": k, "key_type": DICT} for k in keys],
            "value_metadata": {"value_type": value_type, "skip_deserialize": value_type in EMPTY},
        }
        for keys, value_type in nodes.items()
    }
    content = {
        "tree_metadata": entries,
        "use_ocdbt": False,
        "use_zarr3": True,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    return json.dumps(content, ensure_ascii=False).encode()


def checkpoint_json(custom: Mapping[str, Any]) -> bytes:
    """`_CHECKPOINT_METADATA`; without times, so that equal checkpoints are equal bytes."""
    content = {"item_handlers": HANDLER, "metrics": {}, "performance_metrics": {}, "custom_metadata": dict(custom)}
    return json.dumps(content, ensure_ascii=False).encode()


def item_folders(source: Path) -> list[Path]:
    """Folders that hold a tree: the source itself, or, of a step, its items (`default`), or the items of its steps."""
    if (source / TREE).is_file():
        return [source]
    if (source / CHECKPOINT).is_file():
        return sorted(p.parent for p in source.glob(f"*/{TREE}"))
    return sorted(p.parent for step in source.glob(f"*/{CHECKPOINT}") for p in step.parent.glob(f"*/{TREE}"))


def inside(folder: Path, name: str) -> bool:
    """Whether an array's folder stays in the checkpoint's, links followed."""
    return is_inner(name) and is_within(folder, folder / name)


def _node(path: Path, key: str, entry: Any) -> Node:
    try:
        keys = tuple(k["key"] for k in entry["key_metadata"])
        kinds = tuple(k["key_type"] for k in entry["key_metadata"])
        value_type = entry["value_metadata"]["value_type"]
    except (KeyError, TypeError):
        raise SourceError(f"{path}: {key!r:.200}: key_metadata or value_metadata are missing or malformed") from None
    texts = all(isinstance(t, str) for t in (*keys, value_type))
    if not keys or not texts or any(type(k) is not int or k not in (SEQUENCE, DICT) for k in kinds):
        raise SourceError(f"{path}: {key!r:.200}: is not a path of keys of types {SEQUENCE} and {DICT}")
    return Node(keys, kinds, value_type)
