"""attention in C++, over keys and values as they lie in a cache: plain or packed, with a scale for each head of a slot.

Slots that no query may see are not read, so that a step costs what has been said so far and not what the cache could
hold. Products and sums are float32 and the softmax is the running one, for prompts as for steps. The gradient is XLA's.
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
    assert segments is None  # declined
    q, at, slot = (jnp.asarray(a) for a in (q, q_positions, k_positions))
    k, v = (a if isinstance(a, QTensor) else jnp.asarray(a) for a in (k, v))
    extra = None if sinks is None else jnp.asarray(sinks)
    options = (("scale", scale), ("window", window), ("softcap", softcap), ("causal", causal))
    return _attention(options, *alike(q, k, v, at, slot, extra))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(options: Any, q: Any, k: Any, v: Any, at: Any, slot: Any, sinks: Any) -> Any:
    o = dict(options)
    none = np.zeros(0, np.float32)
    packed = isinstance(k, QTensor)
    element = ELEMENTS.index(k.scheme.element if packed else _PLAIN[k.dtype.name])
    result = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), jnp.float32)  # type: ignore[no-untyped-call]
    found = ffi.call("attention", "wm_attention", result)(
        q.astype(jnp.float32), *((k.codes, v.codes, k.scales, v.scales) if packed else (k, v, none, none)),
        at.astype(jnp.int32), slot.astype(jnp.int32), none if sinks is None else sinks.astype(jnp.float32),
        isa=np.int64(library.isa()), element=np.int64(element),
        scale=np.float32(o["scale"]), softcap=np.float32(o["softcap"] or 0), window=np.int64(o["window"] or 0),
        causal=np.int64(o["causal"]),
    )  # fmt: skip
    return found.astype(q.dtype)


def _forward(options: Any, *args: Any) -> tuple[Any, Any]:
    q, k, v, _, _, sinks = args
    asked = wanted(q, k, v, sinks)
    return _attention(options, *given(args)), (given(args), asked)


@once
def _backward(options: Any, kept: Any, dy: Any) -> tuple[Any, ...]:
    (q, k, v, at, slot, sinks), asked = kept
    floats = [a for a, flag in zip((q, k, v, sinks), asked.flags, strict=True) if flag]

    def of(*chosen: Any) -> Any:
        rest = iter(chosen)
        q_, k_, v_, sinks_ = (next(rest) if f else a for a, f in zip((q, k, v, sinks), asked.flags, strict=True))
        return xla.attention(q_, k_, v_, at, slot, sinks=sinks_, **dict(options))

    found = iter(jax.vjp(of, *floats)[1](cotangent(dy)))
    dq, dk, dv, dsinks = (next(found) if flag else None for flag in asked.flags)
    return dq, dk, dv, None, None, dsinks


_attention.defvjp(_forward, _backward, symbolic_zeros=True)
