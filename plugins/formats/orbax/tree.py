"""Orbax checkpoints in JAX: what to restore into, and what to save so that schemes are not forgotten.

Apart from the rest of `plugins.formats` because it imports JAX, which planning and conversion must not.

    params = checkpointer.restore(folder, abstract(folder))
    checkpointer.save(folder, params, custom_metadata=describe(params))
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Sharding, SingleDeviceSharding

import pipeline.tensors.pytree  # noqa: F401 (makes QTensor a pytree)
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from plugins.formats.orbax import pytree
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.metadata import EMPTY, SEQUENCE, Node, item_folders, read_tree

Place = Callable[[str, tuple[int, ...]], Sharding]
"""From an array's name (`model.norm.weight`, `model.layers.0.mlp.down_proj.weight.scales`) and shape."""


def abstract(folder: str | Path, sharding: Sharding | Place | None = None) -> Any:
    """The tree of a checkpoint with a `jax.ShapeDtypeStruct` for each array, QTensors of them where it holds QTensors.

    Args:
        folder: the checkpoint, or a step of a checkpoint manager.
        sharding: of all arrays, or a function of an array's name and shape; by default the first device.

    Raises:
        SourceError: see `Orbax.open`.
        PlanError: QTensors whose scheme nothing says, or whose arrays do not fit it; all of them at once.
        ValueError: an array of 64-bit numbers, while JAX is set to cut them to 32 bits.
    """
    folder = Path(folder).absolute()
    leaves = Orbax().open(folder)
    tensors = pytree.Pytree().decode(leaves.specs, leaves.config()).tensors
    place = sharding if callable(sharding) else _everywhere(sharding or SingleDeviceSharding(jax.devices()[0]))
    scheme_of = {part.leaf: bound.spec.scheme for bound in tensors.values() for part in bound.parts}
    schemes: dict[tuple[str, ...], Scheme] = {}
    found: dict[tuple[str, ...], Any] = {}
    (item,) = item_folders(folder)
    nodes = read_tree(item).nodes
    for node in nodes:
        if node.value_type in EMPTY:
            found[node.keys] = EMPTY[node.value_type]
            continue
        spec = leaves.specs[node.name]
        if DTYPE_BITS[spec.dtype] == 64 and spec.dtype != "C64" and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            cure = 'jax.config.update("jax_enable_x64", True) first, or restore without a target, as NumPy arrays'
            raise ValueError(f"{node.name}: is {spec.dtype}, which JAX would cut to 32 bits; {cure}")
        found[node.keys] = jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
            spec.shape, numpy_dtype(spec.dtype), sharding=place(node.name, spec.shape)
        )
        if (scheme := scheme_of[node.name]) is not None:
            schemes[node.keys[:-1]] = scheme
    return _grown(nodes, found, schemes)


def describe(tree: Any, dtype: str = "BF16") -> dict[str, Any]:
    """`custom_metadata` for saving a tree that has QTensors in it: their schemes, by the names Orbax gives them.

    Args:
        tree: any pytree; QTensors are found wherever they are.
        dtype: what they decode to, a key of `DTYPE_BITS`.
    """
    if dtype not in DTYPE_BITS:
        raise ValueError(f"dtype {dtype!r} is unknown (allowed: {', '.join(DTYPE_BITS)})")
    paths, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, QTensor))
    return pytree.describe(
        {
            ".".join(_key(k) for k in path): TensorSpec(value.shape, dtype, value.scheme)
            for path, value in paths
            if isinstance(value, QTensor)
        }
    )


def _grown(
    nodes: tuple[Node, ...], found: Mapping[tuple[str, ...], Any], schemes: Mapping[tuple[str, ...], Scheme]
) -> Any:
    """The tree: dicts and lists by the kinds of the keys, QTensors where `schemes` has one."""
    root: dict[str, Any] = {}
    lists: set[tuple[str, ...]] = set()
    for node in nodes:
        at = root
        for depth, (key, kind) in enumerate(zip(node.keys, node.kinds, strict=True)):
            if kind == SEQUENCE:
                lists.add(node.keys[:depth])
            if depth + 1 == len(node.keys):
                at[key] = found[node.keys]
            else:
                at = at.setdefault(key, {})

    def finished(path: tuple[str, ...], value: Any) -> Any:
        if path in schemes:
            return QTensor(scheme=schemes[path], **value)
        if not isinstance(value, dict):
            return value
        children = {k: finished((*path, k), v) for k, v in value.items()}
        return [children[k] for k in sorted(children, key=int)] if path in lists else children

    return finished((), root)


def _everywhere(sharding: Sharding) -> Place:
    return lambda name, shape: sharding


def _key(entry: Any) -> str:
    """A key as Orbax spells it."""
    for name in ("key", "idx", "name"):
        if hasattr(entry, name):
            return str(getattr(entry, name))
    return str(entry)
