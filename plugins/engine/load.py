"""Weights from a store onto the device: packed bytes as they are, a box at a time, nothing decoded."""

from collections.abc import Callable, Collection, Iterator, Sequence
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
from plugins.engine.pages import Pages
from plugins.kernels.codecs import scales
from plugins.models.common.weights import abstract

BOX_ELEMS = 16 << 20  # values read at once; a lazily quantized box takes a few times its bf16 bytes


def parameters(model: nnx.Module) -> Iterator[nnx.Param[Any]]:
    """Every parameter of a model, in order."""
    for _, param in nnx.iter_graph(model):
        if isinstance(param, nnx.Param):
            yield param


def device_nbytes(model: nnx.Module) -> int:
    """Bytes that the parameters take."""
    arrays = jax.tree.leaves([p.get_value() for p in parameters(model)])
    return sum(a.size * a.dtype.itemsize for a in arrays)


def fill(
    model: nnx.Module, checkpoint: Checkpoint, device: Any, *, cast: Kernel, unpack: Kernel, only: Collection[str] = ()
) -> None:
    """Read the parameters of `model` and put them on `device`.

    Host memory at its worst is one box beside what is on the device, and one parameter where the device is no CPU.

    Args:
        model: whose parameters know how they lie on the device; a plain one takes packed tensors unpacked.
        checkpoint: where they come from.
        device: a JAX device.
        cast: turns plain values into the dtype of a parameter.
        unpack: decodes packed tensors for plain parameters.
        only: names of tensors; parameters that hold none of them stay as they are. Empty: all.

    Raises:
        SourceError: see `TensorStore.read`.
    """
    empty = Pages().empty if device.platform == "cpu" else np.empty
    for param in parameters(model):
        if only and not set(only).intersection(param.names):
            continue
        arrays = _empty(param.spec, empty)
        one = replace(param.spec, shape=param.spec.shape[1:]) if param.stack else param.spec
        for i, name in enumerate(param.names):
            into = {c: a[i] for c, a in arrays.items()} if param.stack else arrays
            _read(checkpoint, name, into, one, cast, unpack)
        _, tree = jax.tree.flatten(abstract(param.spec))
        ordered = [arrays[c] for c in ("codes", "scales", "zeros", "second", "values") if c in arrays]
        param.set_value(jax.tree.unflatten(tree, [jax.device_put(a, device, may_alias=True) for a in ordered]))


def _empty(spec: TensorSpec, empty: Callable[[Sequence[int], Any], Any]) -> dict[str, Any]:
    if spec.scheme is None:
        return {"values": empty(spec.shape, numpy_dtype(spec.dtype))}
    dtypes = spec.scheme.dtypes
    return {c: empty(s, numpy_dtype(dtypes[c])) for c, s in spec.scheme.components(spec.shape).items()}


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
