"""Weights from a store onto the device: packed bytes as they are, a box at a time, nothing decoded."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from flax import nnx

from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import component_box, grain_of
from pipeline.tensors.chunks import cut
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from plugins.kernels.codecs import scales
from plugins.mesh.components import layouts
from plugins.mesh.devices import sharding
from plugins.models.common.weights import abstract

BOX_ELEMS = 16 << 20  # values read at once; a lazily quantized box takes a few times its bf16 bytes


def parameters(model: nnx.Module) -> Iterator[nnx.Param[Any]]:
    """Every parameter of a model, in order."""
    for _, param in nnx.iter_graph(model):
        if isinstance(param, nnx.Param):
            yield param


def device_nbytes(model: nnx.Module) -> int:
    """Bytes that the parameters take on the device that holds most."""
    taken: Counter[Any] = Counter()
    for array in jax.tree.leaves([p.get_value() for p in parameters(model)]):
        for shard in array.addressable_shards:
            taken[shard.device] += shard.data.nbytes
    return max(taken.values())


def fill(
    model: nnx.Module, checkpoint: Checkpoint, where: Any, *, cast: Kernel, unpack: Kernel, only: Collection[str] = ()
) -> None:
    """Read the parameters of `model` and put them where they are to lie.

    Host memory at its worst is one parameter and one box beside what is on the device.

    Args:
        model: whose parameters know how they lie on the device; a plain one takes packed tensors unpacked.
        checkpoint: where they come from.
        where: a JAX device; or a JAX mesh, over which parameters lie as their `layout` says.
        cast: turns plain values into the dtype of a parameter.
        unpack: decodes packed tensors for plain parameters.
        only: names of tensors; parameters that hold none of them stay as they are. Empty: all.

    Raises:
        SourceError: see `TensorStore.read`.
    """
    for param in parameters(model):
        if only and not set(only).intersection(param.names):
            continue
        arrays = _empty(param.spec)
        one = replace(param.spec, shape=param.spec.shape[1:]) if param.stack else param.spec
        for i, name in enumerate(param.names):
            into = {c: a[i] for c, a in arrays.items()} if param.stack else arrays
            _read(checkpoint, name, into, one, cast, unpack)
        _, tree = jax.tree.flatten(abstract(param.spec))
        placed = _placed(arrays, param, where)
        ordered = [placed[c] for c in ("codes", "scales", "zeros", "second", "values") if c in placed]
        param.set_value(jax.tree.unflatten(tree, ordered))


def _placed(arrays: dict[str, Any], param: nnx.Param[Any], where: Any) -> dict[str, Any]:
    """The components of a parameter, where they are to lie."""
    if param.layout is None:
        return {name: jax.device_put(a, where) for name, a in arrays.items()}
    lie = layouts(param.spec, param.layout)
    return {name: jax.device_put(a, sharding(where, lie[name])) for name, a in arrays.items()}


def _empty(spec: TensorSpec) -> dict[str, Any]:
    if spec.scheme is None:
        return {"values": np.empty(spec.shape, numpy_dtype(spec.dtype))}
    dtypes = spec.scheme.dtypes
    return {c: np.empty(s, numpy_dtype(dtypes[c])) for c, s in spec.scheme.components(spec.shape).items()}


def _read(
    checkpoint: Checkpoint, name: str, into: dict[str, Any], held: TensorSpec, cast: Kernel, unpack: Kernel
) -> None:
    """Fill the arrays `into`, which lie as `held` says, with tensor `name`."""
    spec = checkpoint.store.specs[name]
    for piece in cut(name, spec.shape, BOX_ELEMS, grain_of(checkpoint.store, name)):
        value = checkpoint.store.read(name, piece.index)
        if held.scheme is None:
            if isinstance(value, QTensor):
                value = unpack(value, held.dtype)
            elif numpy_dtype(held.dtype) != value.dtype:
                value = cast(value, held.dtype)
            into["values"][piece.index] = value
            continue
        if held.scheme != value.scheme:  # resolved double quantization; such tensors are read whole
            value = QTensor(value.codes, scales.totals(value).reshape(into["scales"].shape), held.scheme)
        for component, array in value.components.items():
            into[component][component_box(held, component, piece.index)] = array
