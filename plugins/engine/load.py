"""Weights from a store onto devices: packed bytes as they are, a box at a time, nothing decoded.

Each process reads what its own devices hold, each box once whatever the number of devices that hold it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from pipeline.errors import StageError
from pipeline.ops import Kernel
from pipeline.running.progress import Progress
from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import Box, component_box, inner_box
from pipeline.tensors.inputs import InputScales
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.regions import ends, grain_of_all, overlap, portions, within
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from plugins.engine.pages import Pages
from plugins.kernels.codecs import scales
from plugins.mesh.collectives import over
from plugins.mesh.place import boxes, shardings
from plugins.mesh.store import DeviceStore
from plugins.models.common.rounding import Fed, Turn
from plugins.models.common.weights import abstract

Empty = Callable[[Sequence[int], Any], Any]
COMPONENTS = ("codes", "scales", "zeros", "second", "values")


def parameters(model: nnx.Module) -> Iterator[nnx.Param[Any]]:
    """Every parameter of a model, in order."""
    for _, param in nnx.iter_graph(model):
        if isinstance(param, nnx.Param):
            yield param


def device_nbytes(model: nnx.Module) -> int:
    """Bytes that the parameters take on a device; of several, on the one of this process that has most."""
    taken = Counter[Any]()
    for array in jax.tree.leaves([p.get_value() for p in parameters(model)]):
        for shard in array.addressable_shards:
            taken[shard.device] += shard.data.nbytes
    return max(taken.values(), default=0)


def on_devices(model: nnx.Module, order: Iterable[str] = ()) -> DeviceStore:
    """The tensors that a model holds, by the checkpoint's names, read from where they lie.

    Args:
        order: names that come first; the rest follow as the model has them.
    """
    found = DeviceStore.of_parameters(parameters(model)).tensors
    return DeviceStore({name: found[name] for name in dict.fromkeys([*order, *found]) if name in found})


def fill(
    model: nnx.Module,
    checkpoint: Checkpoint,
    where: Any,
    *,
    cast: Kernel,
    unpack: Kernel,
    only: Collection[str] = (),
    under: InputScales | None = None,
    turns: bool = False,
) -> None:
    """Read the parameters of `model` and put them where they are to lie.

    Host memory at its worst is one read beside what is on the devices, and where these are no CPUs, what one device
    holds of one parameter; of a tensor that its store reads whole, what all devices of this process hold of it.

    Args:
        model: whose parameters know how they lie on the device; a plain one takes packed tensors unpacked.
        checkpoint: where they come from.
        where: a JAX device; or a JAX mesh, over which parameters lie as their `layout` says.
        cast: turns plain values into the dtype of a parameter.
        unpack: decodes packed tensors for plain parameters.
        only: names of tensors; parameters that hold none of them stay as they are. Empty: all.
        under: scales of what packed parameters are multiplied by, which come with them as `Fed`; None: no scales.
        turns: the model rotates inputs of weights that are rotated, and come as `Fed`.

    Raises:
        SourceError: see `TensorStore.read`.
        StageError: a parameter is rotated, and its inputs would not be.
    """
    some = where.devices.flat[0] if isinstance(where, jax.sharding.Mesh) else where
    empty: Empty = Pages().empty if some.platform == "cpu" else np.empty
    some_of_them = [p for p in parameters(model) if not only or set(only).intersection(p.names)]
    going = Progress("loading weights", sum(p.spec.nbytes for p in some_of_them), "B")
    for param in some_of_them:
        value = _placed(param, checkpoint, where, empty, cast, unpack)
        known = under is not None and all(name in under.values for name in param.names)
        turn = _turn(checkpoint, param, turns=turns and isinstance(value, QTensor))
        if isinstance(value, QTensor) and (known or turn is not None):
            value = Fed.of(value, under.of(param.names) if under is not None and known else None, turn)
        param.set_value(value)
        going.add(param.spec.nbytes)


def _turn(checkpoint: Checkpoint, param: nnx.Param[Any], *, turns: bool) -> Turn | None:
    """What rotates the inputs of a parameter."""
    found = checkpoint.turned
    if found is None or not (mine := found.names.intersection(param.names)):
        return None
    if not turns or len(mine) < len(param.names):
        text = "is rotated, and so are inputs in models that evaluate and generate, of what is packed"
        raise StageError(f"activations_rotate: {min(mine)} {text}")
    return Turn(found.rotation, over(param.layout, -1))


def _placed(
    param: nnx.Param[Any], checkpoint: Checkpoint, where: Any, empty: Empty, cast: Kernel, unpack: Kernel
) -> Any:
    """The value of a parameter: an array, or a QTensor of arrays."""
    spec: TensorSpec = param.spec
    store, here = checkpoint.store, boxes(spec.shape, param.layout, where)
    devices = {ends(box): held for box, held in here}
    lie = shardings(spec, param.layout, where)
    placed: dict[str, list[Any]] = {c: [] for c in COMPONENTS if c in lie}
    grain = grain_of_all(store, param.names)
    for portion in portions(spec.shape, [box for box, _ in here], grain, stack=param.stack):
        filled = [(box, _empty(spec, box, empty)) for box in portion.boxes]
        for read in portion.reads:
            name = param.names[read.tensor]
            value = _held(store.read(name, read.box), store.specs[name], spec, cast, unpack)
            for box, into in filled:
                if (part := overlap(box, read.at)) is not None:
                    _copy(value, read.at, part, into, box, spec, stack=param.stack)
            del value
        for box, into in filled:
            for component, array in into.items():
                placed[component] += [jax.device_put(array, device, may_alias=True) for device in devices[ends(box)]]
        del filled, into, array
    whole = {"values": spec.shape} if spec.scheme is None else spec.scheme.components(spec.shape)
    arrays = [jax.make_array_from_single_device_arrays(whole[c], lie[c], parts) for c, parts in placed.items()]
    return jax.tree.unflatten(jax.tree.structure(abstract(spec)), arrays)


def _empty(spec: TensorSpec, box: Box, empty: Empty) -> dict[str, Any]:
    """Room for a box of a parameter that lies as `spec` says."""
    dtypes = {"values": spec.dtype} if spec.scheme is None else spec.scheme.dtypes
    sides = {c: [s.stop - s.start for s in component_box(spec, c, box)] for c in dtypes}
    return {c: empty(sides[c], numpy_dtype(dtype)) for c, dtype in dtypes.items()}


def _held(value: Any, stored: TensorSpec, spec: TensorSpec, cast: Kernel, unpack: Kernel) -> Any:
    """What was read of a tensor that is `stored` so, as a parameter of `spec` holds it."""
    if spec.scheme is None:
        if isinstance(value, QTensor):
            return unpack(value, spec.dtype)
        return value if numpy_dtype(spec.dtype) == value.dtype else cast(value, spec.dtype)
    if spec.scheme != value.scheme:  # resolved double quantization; such tensors are read whole
        shape = spec.scheme.components(stored.shape)["scales"]
        return QTensor(value.codes, scales.totals(value).reshape(shape), spec.scheme)
    return value


def _copy(value: Any, at: Box, part: Box, into: dict[str, Any], box: Box, spec: TensorSpec, *, stack: bool) -> None:
    """Copy `part` of a parameter from `value`, which is its box `at`, to `into`, which is its box `box`."""
    if part != at:
        inner = within(part, at)[1:] if stack else within(part, at)
        value = inner_box(value, inner)
    for component, array in (value.components if isinstance(value, QTensor) else {"values": value}).items():
        origin = component_box(spec, component, box)
        into[component][within(component_box(spec, component, part), origin)] = array
