"""Codes and scales as what training can move: values in steps of their scales, between the levels of an element.

A value is learned as an offset within the step that rounds to a code, a scale as a factor on the one that it began
with; gradients go through both as if nothing were rounded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from plugins.kernels.codecs import bits, scales
from plugins.kernels.codecs.elements import element

_INSIDE = 1e-3  # of a step between two codes, that a value is kept from where rounding changes
_CAST = {"bf16": jnp.bfloat16, "f16": jnp.float16, "f32": jnp.float32, "e4m3": jnp.float8_e4m3fn}


@dataclass(frozen=True)
class Levels:
    """What the codes of an element stand for, in order.

    Attributes:
        values: fp32, ascending, each once.
        codes: of each the code.
    """

    values: Any
    codes: Any

    @classmethod
    def of(cls, name: str) -> "Levels":
        e = element(name)
        finite = np.flatnonzero(np.isfinite(e.values[: 1 << e.bits]))
        values, first = np.unique(e.values[finite], return_index=True)
        return cls(values.astype(np.float32), finite[first].astype(np.uint8))

    @property
    def middles(self) -> Any:
        """Between each two."""
        return (self.values[1:] + self.values[:-1]) / 2

    def rounded(self, u: Any) -> Any:
        """`u` to the nearest, as a number in the order, int32; what a gradient does not go through."""
        found = jnp.zeros(u.shape, jnp.int32)  # 255 comparisons that XLA fuses take half as long as a search does
        for middle in self.middles:
            found = found + (u > middle)
        return found


def fixed_of(w: Any, q: QTensor) -> dict[str, Any]:
    """Of one tensor: `u`, its values in steps of its scales, moved as little as makes them round to the codes that they
    have; `width`, how far apart roundings are there; stored scales, zero points, and what scales are multiplied by."""
    scheme, shape = q.scheme, w.shape
    levels = Levels.of(scheme.element)
    codes = bits.unpack(np.asarray(q.codes), scheme.element_bits)
    place = _places(levels, scheme.element)[codes]
    edges = np.concatenate([[2 * levels.values[0] - levels.middles[0]], levels.middles,
                            [2 * levels.values[-1] - levels.middles[-1]]]).astype(np.float32)  # fmt: skip
    low, high = edges[place], edges[place + 1]
    width = high - low
    size = scheme.block_elems
    stored = scales.load(np.asarray(q.scales), scheme).astype(np.float32)
    lead = shape[:-2]
    second: Any = np.float32(1)
    if q.second is not None:
        second = np.asarray(q.second, np.float32).reshape(*lead, 1, 1)
        second = 1 / second if scheme.second == "inverse_f32" else second
    zeros = np.zeros_like(stored) if q.zeros is None else np.asarray(q.zeros).astype(np.float32)
    total, zero = (np.repeat(a, size, axis=-1) for a in (stored * second, zeros))
    middle = levels.values[place]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        u = np.where(total == 0, middle, w / total + zero)
    u = np.clip(np.where(np.isfinite(u), u, middle), low + _INSIDE * width, high - _INSIDE * width)
    return {
        "u": jnp.asarray(u, jnp.float32), "width": jnp.asarray(width), "stored": jnp.asarray(stored),
        "second": jnp.asarray(second), "zeros": jnp.asarray(zeros),
    }  # fmt: skip


def decoded(fixed: Mapping[str, Any], learned: Mapping[str, Any], levels: Levels, scale: str, size: int) -> Any:
    """What the tensor decodes to."""
    stored = _scales(fixed, learned, scale)
    u = _steps(fixed, learned, stored, size)
    inside = jnp.clip(u, levels.values[0], levels.values[-1])
    y = _through(inside, jnp.asarray(levels.values)[levels.rounded(u)])
    return (y - jnp.repeat(fixed["zeros"], size, axis=-1)) * jnp.repeat(stored * fixed["second"], size, axis=-1)


def coded_as(start: QTensor, fixed: Mapping[str, Any], learned: Mapping[str, Any], levels: Levels) -> QTensor:
    """With the codes and scales that were learned; where nothing was, those that it began with."""
    scheme = start.scheme
    stored = _scales(fixed, learned, scheme.scale)
    u = _steps(fixed, learned, stored, scheme.block_elems)
    codes = levels.codes[np.asarray(levels.rounded(u))]
    was = bits.unpack(np.asarray(start.codes), scheme.element_bits)
    table = _places(levels, scheme.element)
    codes = np.where(table[codes] == table[was], was, codes).astype(np.uint8)  # -0 stays
    found = start.scales
    if "factors" in learned:
        found = np.asarray(stored.astype(_CAST[scheme.scale])).astype(np.asarray(start.scales).dtype)
    return replace(start, codes=bits.pack(codes, scheme.element_bits), scales=np.asarray(found))


def _scales(fixed: Mapping[str, Any], learned: Mapping[str, Any], scale: str) -> Any:
    """Block scales as they will be stored, fp32."""
    if "factors" not in learned:
        return fixed["stored"]
    exact = fixed["stored"] * (1 + learned["factors"])
    if scale == "e4m3":
        exact = jnp.minimum(exact, 448.0)
    return _through(exact, exact.astype(_CAST[scale]).astype(jnp.float32))


def _steps(fixed: Mapping[str, Any], learned: Mapping[str, Any], stored: Any, size: int) -> Any:
    """What is rounded: values in steps of their scales."""
    zero = jnp.repeat(fixed["zeros"], size, axis=-1)
    safe = jnp.where(stored == 0, 1.0, stored)
    grown = jnp.repeat(jnp.where(stored == 0, 1.0, fixed["stored"] / safe), size, axis=-1)
    u = (fixed["u"] - zero) * grown + zero
    return u + learned["offsets"] * fixed["width"] if "offsets" in learned else u


def _places(levels: Levels, name: str) -> Any:
    """Code → place in the order of its value."""
    e = element(name)
    values = np.nan_to_num(e.values[: 1 << e.bits])
    return np.searchsorted(levels.values, values).clip(0, len(levels.values) - 1)


def _through(exact: Any, rounded: Any) -> Any:
    """`rounded`, whose gradient is that of `exact`."""
    return exact + jax.lax.stop_gradient(rounded - exact)
