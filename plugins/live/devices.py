"""Arrays on devices as QTensors on the same devices, and back: each device has the part of every component that
belongs to the part it had.

Codes are made, and decoded, where they lie, and are the pipeline's own, bit for bit. What no compiled program can make
(scales that are searched for, random rounding, scales that are quantized once more) is made on the host where that is
asked for, a device's part of one tensor at a time.
"""

from collections.abc import Mapping
from dataclasses import asdict
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from pipeline.coded_store import CodedStore
from pipeline.errors import ValueRangeError
from pipeline.hooks import optional
from pipeline.mesh import Layout
from pipeline.method import Method, MethodHooks
from pipeline.ops import Kernel
from pipeline.tensors.blocks import whole_blocks
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.regions import ends
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import normalize
from plugins.kernels.dequantize.xla import on_device
from plugins.kernels.quantize.xla.encode import program
from plugins.mesh.components import layouts
from plugins.mesh.devices import sharding
from plugins.mesh.store import DeviceStore, Held, held_spec
from plugins.models.common.weights import abstract

READ = ("F32", "BF16", "F16")


def obstacle(value: Any, scheme: Scheme) -> str | None:
    """Why `value`, an array or a QTensor, cannot be packed in `scheme` where it lies, or None."""
    lie = lies(value)
    if lie is None:
        return None
    if not isinstance(lie, NamedSharding | SingleDeviceSharding) and not lie.is_fully_replicated:
        return f"lies on its devices as a {type(lie).__name__} says; one device or a NamedSharding is understood"
    try:
        for index in lie.devices_indices_map(tuple(value.shape)).values():
            whole_blocks(scheme, tuple(value.shape), normalize(index or (), tuple(value.shape)))
    except IndexError as why:
        return f"lies divided over devices, and that {why}; lay it otherwise, or keep it"
    return None


def lies(value: Any) -> Sharding | None:
    """How an array or a QTensor lies; None: nowhere, as it is only shapes that nobody placed."""
    found: Sharding | None = (value.codes if isinstance(value, QTensor) else value).sharding
    return found


def unmade(value: Any, method: Method) -> str | None:
    """Why no device can make the codes of `value` by `method`, or None."""
    recipe = optional(method, MethodHooks, "recipe")
    if recipe is None:
        return f"{type(method).__name__} does not say its recipe, so no compiled program can do as it does"
    spec = held_spec(value)
    if spec.scheme is None and spec.dtype not in READ:
        return f"is {spec.dtype}; compiled programs make codes of {', '.join(READ)}"
    given = {"x": TensorSpec(spec.shape, "F32"), "scheme": method.scheme, **asdict(recipe)}
    choice = Kernel("quantize_dequantize", ("xla",)).choose(given)
    return None if choice.backend else choice.reasons


def packed(name: str, value: Any, method: Method) -> Any:
    """`value` as a QTensor, on its devices: codes that a compiled program can make are made there, the others on the
    host, a device's part at a time.

    Args:
        name: of the tensor: errors say it, and random rounding depends on it.
        value: an array, or a QTensor of another scheme; or the shapes of either.

    Raises:
        ValueRangeError: a value that the scheme cannot hold; says the tensor and the place.
        StageError: on the host: a scale depends on values that lie on other processes' devices.
    """
    spec, scheme = held_spec(value), method.scheme
    assert scheme is not None
    target, lie = TensorSpec(spec.shape, "BF16", scheme), lies(value)
    if isinstance(value, jax.ShapeDtypeStruct) or isinstance(getattr(value, "codes", None), jax.ShapeDtypeStruct):
        return _shapes(target, lie)
    assert lie is not None
    placed = _components(target, lie)
    if unmade(value, method) is not None or not prod(spec.shape):
        return _on_host(name, value, method, placed)
    x = unpacked(value, jnp.float32) if isinstance(value, QTensor) else value
    q, refused = program(scheme, optional(method, MethodHooks, "recipe"), tuple(placed.items()))(x)
    if refused:
        _on_host(name, value, method, placed)  # which says of what, and where it is
        raise ValueRangeError(f"{name}: a value on another process's devices has no {scheme.element.upper()} code")
    return q


def _on_host(name: str, value: Any, method: Method, placed: Mapping[str, Sharding]) -> QTensor:
    """The same by the method itself: what lies on this process's devices, a device's part at a time."""
    spec, scheme, lie = held_spec(value), method.scheme, lies(value)
    assert scheme is not None
    assert lie is not None
    store = CodedStore(DeviceStore({name: Held(spec, value)}), {name: method}, measure=False)
    holders: dict[Any, list[Any]] = {}
    for device, index in lie.addressable_devices_indices_map(spec.shape).items():
        holders.setdefault(ends(normalize(index or (), spec.shape)), []).append(device)
    parts: dict[str, list[Any]] = {component: [] for component in scheme.dtypes}
    for box, devices in holders.items():
        q = store.read(name, tuple(slice(*side) for side in box))
        for component, array in q.components.items():
            parts[component] += [jax.device_put(array, device) for device in devices]
    shapes = scheme.components(spec.shape)
    return QTensor(
        scheme=scheme,
        **{c: jax.make_array_from_single_device_arrays(shapes[c], placed[c], parts[c]) for c in parts},
    )


def unpacked(q: QTensor, dtype: Any) -> Any:
    """The values of `q` on its devices, as an array of `dtype`: jnp.float32 or jnp.bfloat16."""
    lie = lies(q)
    if isinstance(q.codes, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(q.shape, dtype, sharding=lie)  # type: ignore[no-untyped-call]
    assert lie is not None
    placed = _components(TensorSpec(tuple(q.shape), "BF16", q.scheme), lie)
    on: dict[Any, dict[str, Any]] = {}
    for component, array in q.components.items():
        for shard in jax.device_put(array, placed[component]).addressable_shards:  # as the codes lie, if it does not
            on.setdefault(shard.device, {})[component] = shard.data
    parts = [on_device(QTensor(scheme=q.scheme, **components), dtype) for components in on.values()]
    return jax.make_array_from_single_device_arrays(q.shape, lie, parts)


def transposed(array: Any) -> Any:
    """A matrix turned, on its devices."""
    lie = array.sharding
    if isinstance(lie, NamedSharding):
        across, down = (*lie.spec, None, None)[:2]
        lie = NamedSharding(lie.mesh, jax.sharding.PartitionSpec(down, across))  # type: ignore[no-untyped-call]
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape[::-1], array.dtype, sharding=lie)  # type: ignore[no-untyped-call]
    return jax.jit(jnp.transpose, out_shardings=lie)(array)


def _components(spec: TensorSpec, lie: Sharding) -> dict[str, Sharding]:
    """Component → how it lies, where the tensor lies so."""
    assert spec.scheme is not None
    if not isinstance(lie, NamedSharding):
        return dict.fromkeys(spec.scheme.dtypes, lie)
    entries = (*lie.spec, *(None,) * len(spec.shape))[: len(spec.shape)]
    axes = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)
    layout = Layout(spec.shape, axes, ((),) * len(axes))
    mesh: Any = lie.mesh
    return {component: sharding(mesh, of) for component, of in layouts(spec, layout).items()}


def _shapes(spec: TensorSpec, lie: Sharding | None) -> QTensor:
    q: QTensor = abstract(spec)
    where = {} if lie is None else _components(spec, lie)
    placed = {
        name: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where.get(name))  # type: ignore[no-untyped-call]
        for name, s in q.components.items()
    }
    return QTensor(scheme=q.scheme, **placed)
