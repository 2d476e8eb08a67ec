"""quantize_dequantize in jnp: codes are made and decoded without ever being packed, and gradients pass by."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import FLOATS, element
from plugins.kernels.codecs.jax_float import widened
from plugins.kernels.dequantize.traced import scaled, spread, to_bfloat16
from plugins.kernels.quantize.recipe import Recipe, checked
from plugins.kernels.quantize.xla.traced import Coded, coded


def quantize_dequantize(
    x: Any, scheme: Scheme, *, scale: float | None = None, clipped_gradient: bool = False, **recipe: Any
) -> Any:
    """See the op's docstring."""
    x = jnp.asarray(x)
    how = checked(x.shape, scheme, recipe)
    return _through(x, scheme, how, scale, clipped_gradient) if x.size else x


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3, 4))
def _through(x: Any, scheme: Scheme, recipe: Recipe, scale: float | None, clipped: bool) -> Any:
    return _values(x, coded(widened(x), scheme, recipe, scale))


def _forward(x: Any, scheme: Scheme, recipe: Recipe, scale: float | None, clipped: bool) -> tuple[Any, Any]:
    found = coded(widened(x), scheme, recipe, scale)
    return _values(x, found), _inside(widened(x), found, recipe) if clipped else None


def _backward(scheme: Scheme, recipe: Recipe, scale: float | None, clipped: bool, inside: Any, dy: Any) -> tuple[Any]:
    return (dy if inside is None else jnp.where(inside, dy, jnp.zeros_like(dy)),)


_through.defvjp(_forward, _backward)


def _values(x: Any, found: Coded) -> Any:
    y = scaled(found.codes, found.shared, exact=True)
    y = spread(y, (found.broken,), found.shared.scheme, lambda v, bad: jnp.where(bad, jnp.float32(np.nan), v))
    return to_bfloat16(y) if x.dtype == jnp.bfloat16 else y


def _inside(x: Any, found: Coded, recipe: Recipe) -> Any:
    """Whether a value lies between the least and the greatest that its block can hold."""
    ends = [
        scaled(jnp.full(found.codes.shape, code, jnp.uint8), found.shared, exact=True)
        for code in _extreme_codes(found.shared.scheme.element, recipe)
    ]
    return (x >= jnp.minimum(*ends)) & (x <= jnp.maximum(*ends))


def _extreme_codes(name: str, recipe: Recipe) -> tuple[int, int]:
    e = element(name)
    if e.family == "float":
        return FLOATS[name][2] | 1 << (e.bits - 1), FLOATS[name][2]
    if e.family == "table":
        return 0, e.mask
    least = -e.most if e.family == "fixed" and recipe.is_narrow else e.least
    return least & e.mask, e.most
