"""quantize_dequantize as a Pallas kernel, for the MX formats and NVFP4: values are read once, and what they become is
written; codes exist in registers. Gradients pass by."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.jax_float import divided, multiplied
from plugins.kernels.dequantize import traced
from plugins.kernels.dequantize.pallas import PATTERNS, patterns_of
from plugins.kernels.pallas.groups import Groups
from plugins.kernels.pallas.launch import Device, everywhere
from plugins.kernels.quantize.pallas import coded, of_blocks, patterns, second_of
from plugins.kernels.quantize.recipe import Recipe, checked


def quantize_dequantize(
    x: Any, scheme: Scheme, *, scale: None = None, clipped_gradient: bool = False, **recipe: Any
) -> Any:
    """See the op's docstring."""
    x = jnp.asarray(x)
    how = checked(x.shape, scheme, recipe)
    return _through(x, scheme, how) if x.size else x


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _through(x: Any, scheme: Scheme, recipe: Recipe) -> Any:
    each = of_blocks(second_of(x, scheme), scheme.components(x.shape)["scales"])
    (found,) = everywhere(_on, (scheme, recipe), patterns(x), *each)
    return lax.bitcast_convert_type(found, x.dtype).reshape(x.shape)


def _forward(x: Any, scheme: Scheme, recipe: Recipe) -> tuple[Any, None]:
    return _through(x, scheme, recipe), None


def _backward(scheme: Scheme, recipe: Recipe, kept: None, dy: Any) -> tuple[Any]:
    return (dy,)


_through.defvjp(_forward, _backward)


def _on(how: tuple[Scheme, Recipe], device: Device, pattern: Any, *second: Any) -> tuple[Any, ...]:
    scheme, recipe = how
    groups = Groups.of(device, pattern.shape, scheme.element_bits, scheme.block_elems)
    itemsize = pattern.dtype.itemsize

    def kernel(x: Any, *refs: Any) -> None:
        *over, out = refs
        codes, share = coded(groups, x, over, scheme, recipe)
        factors = share.stored
        if scheme.scale == "e4m3":
            factors = traced.values(share.stored, "e4m3")
            for ref in over:
                factors = (divided if scheme.second == "inverse_f32" else multiplied)(factors, ref[...])
            factors = jnp.where(share.broken, jnp.float32(jnp.nan), factors)
        groups.write(out, patterns_of(codes, factors, scheme, itemsize, device))

    (found,) = device.call(
        kernel, [(groups.shape(groups.values), PATTERNS[itemsize])],
        [groups.laid(pattern, groups.values), *(groups.laid(a, 0) for a in second)], grid=groups.grid,
        in_specs=[groups.spec(groups.values), *(groups.spec(0) for _ in second)],
        out_specs=[groups.spec(groups.values)],
    )  # fmt: skip
    return (groups.flat(found, (-1,)),)
