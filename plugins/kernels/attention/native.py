"""attention in C++, over keys and values as they lie in a cache: plain or packed, with a scale for each head of a slot.

Slots that no query may see are not read, so that a step costs what has been said so far and not what the cache could
hold. Products and sums are float32 and the softmax is the running one, for prompts as for steps. The gradient is C++
too for plain keys and values; with packed ones that of queries is XLA's.
"""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.attention import xla
from plugins.kernels.gradients import cotangent, given, once, wanted
from plugins.kernels.native import ffi, library
from plugins.kernels.native.scheme import ELEMENTS
from plugins.kernels.varying import alike

_PLAIN: Mapping[str, str] = MappingProxyType({"float32": "F32", "bfloat16": "BF16"})


def attention(
    q: Any,
    k: Any,
    v: Any,
    q_positions: Any,
    k_positions: Any,
    *,
    scale: float,
    window: int | None = None,
    sinks: Any = None,
    softcap: float | None = None,
    causal: bool = True,
    segments: Any = None,
) -> Any:
    """See the op's docstring."""
    q, at, slot = (jnp.asarray(a) for a in (q, q_positions, k_positions))
    k, v = (a if isinstance(a, QTensor) else jnp.asarray(a) for a in (k, v))
    extra = None if sinks is None else jnp.asarray(sinks)
    options = (("scale", scale), ("window", window), ("softcap", softcap), ("causal", causal))
    own = None if segments is None else jnp.asarray(segments)
    return _attention(options, *alike(q, k, v, at, slot, own, extra))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Any, *args: Any) -> Any:
    return _found(options, *args)[0].astype(args[0].dtype)


def _found(options: Any, q: Any, k: Any, v: Any, at: Any, slot: Any, segments: Any, sinks: Any) -> tuple[Any, Any]:
    """float32 `[B, T, H, Dv]`, and `[2, B, T, H]`: of each query its largest logit, and the sum of weights."""
    none = np.zeros(0, np.float32)
    packed = isinstance(k, QTensor)
    element = k.scheme.element if packed else _PLAIN[k.dtype.name]
    shapes = (*q.shape[:-1], v.shape[-1]), (2, *q.shape[:-1])
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    held = (k.codes, v.codes, k.scales, v.scales) if packed else (_bits(k), _bits(v), none, none)
    out, sums = ffi.call("attention", "wm_attention", results)(
        q.astype(jnp.float32), *held,
        *_integers(at, slot, segments), none if sinks is None else sinks.astype(jnp.float32),
        **_attributes(options, element),
    )  # fmt: skip
    return out, sums


def _bits(a: Any) -> Any:
    """bfloat16 as the integers that a cache holds. What becomes bfloat16 and integers again was never anything else to
    XLA, so that it writes into the cache; as bfloat16 it would copy all of it, at every step."""
    return jax.lax.bitcast_convert_type(a, jnp.uint16) if a.dtype == jnp.bfloat16 else a


def _integers(*arrays: Any) -> list[Any]:
    return [np.zeros(0, np.int32) if a is None else a.astype(jnp.int32) for a in arrays]


def _attributes(options: Any, element: str) -> dict[str, Any]:
    o = dict(options)
    numbers = {"isa": library.isa(), "element": ELEMENTS.index(element), "window": o["window"] or 0}
    return {name: np.int64(n) for name, n in {**numbers, "causal": o["causal"]}.items()} | {
        name: np.float32(o[name] or 0) for name in ("scale", "softcap")
    }


def _forward(options: Any, *args: Any) -> tuple[Any, Any]:
    q, k, v, *_, sinks = args
    asked, args = wanted(q, k, v, sinks), given(args)
    out, sums = _found(options, *args)
    return out.astype(args[0].dtype), (args, None if isinstance(args[1], QTensor) else sums, asked)


@once
def _backward(options: Any, kept: Any, dy: Any) -> tuple[Any, ...]:
    args, sums, asked = kept
    ds = (_by_xla if sums is None else partial(_by_cpp, sums))(options, args, asked.flags, cotangent(dy))
    dq, dk, dv, d_sinks = (d if flag else None for d, flag in zip(ds, asked.flags, strict=True))
    return dq, dk, dv, None, None, None, d_sinks


def _by_cpp(sums: Any, options: Any, args: Any, flags: Any, dy: Any) -> tuple[Any, ...]:
    q, k, v, at, slot, segments, sinks = args
    shapes = *(a.shape for a in (q, k, v)), (q.shape[0], q.shape[2])
    results = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]  # type: ignore[no-untyped-call]
    *ds, of_rows = ffi.call("attention", "wm_attention_gradient", results)(
        q.astype(jnp.float32), k, v, *_integers(at, slot, segments),
        np.zeros(0, np.float32) if sinks is None else sinks.astype(jnp.float32), sums,
        dy.astype(jnp.float32), **_attributes(options, _PLAIN[k.dtype.name]),
    )  # fmt: skip
    d_sinks = None if sinks is None else of_rows.sum(axis=0).reshape(sinks.shape).astype(sinks.dtype)
    return *(d.astype(a.dtype) for d, a in zip(ds, (q, k, v), strict=True)), d_sinks


def _by_xla(options: Any, args: Any, flags: Any, dy: Any) -> tuple[Any, ...]:
    q, k, v, at, slot, segments, sinks = args
    floats = [a for a, flag in zip((q, k, v, sinks), flags, strict=True) if flag]

    def of(*chosen: Any) -> Any:
        rest = iter(chosen)
        q_, k_, v_, sinks_ = (next(rest) if f else a for a, f in zip((q, k, v, sinks), flags, strict=True))
        return xla.attention(q_, k_, v_, at, slot, sinks=sinks_, segments=segments, **dict(options))

    ds = iter(jax.vjp(of, *floats)[1](dy))
    return tuple(next(ds) if flag else None for flag in flags)


_attention.defvjp(_forward, _backward, symbolic_zeros=True)
