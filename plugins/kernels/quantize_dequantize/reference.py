"""quantize_dequantize, the definition: quantized, and decoded."""

from dataclasses import replace
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.dequantize.reference import dequantize
from plugins.kernels.quantize.numpy.scale import block_scales, decoded, quotients
from plugins.kernels.quantize.recipe import checked
from plugins.kernels.quantize.reference import quantize
from plugins.kernels.quantize_dequantize.declines import under_one


def quantize_dequantize(
    x: Any, scheme: Scheme, *, scale: float | None = None, clipped_gradient: bool = False, **recipe: Any
) -> Any:
    """See the op's docstring.

    Raises:
        ConfigError: a `scale`, and the scheme has none that all values share.
    """
    x = np.asarray(x)
    if scale is not None:
        return _under(x, scheme, np.float32(scale), recipe)
    return dequantize(quantize(x, scheme, **recipe), dtype_name(x.dtype))


def _under(x: Any, scheme: Scheme, scale: Any, options: dict[str, Any]) -> Any:
    """Under a scale that was made before."""
    if (why := under_one(scheme)) is not None:
        raise ConfigError(f"quantize_dequantize scale: {why}")
    recipe, e = checked(x.shape, scheme, options), element(scheme.element)
    values = np.asarray(x, np.float32)
    if scheme.second is None:
        with np.errstate(over="ignore"):
            y = e.values[encode(e, values / scale, recipe.ties, recipe.zero)] * scale
        return y.astype(x.dtype)
    blocks = values.reshape(-1, 1, values.shape[-1] // scheme.block_elems, scheme.block_elems)
    ends = blocks.min((1, 3), keepdims=True), blocks.max((1, 3), keepdims=True)
    found = block_scales(blocks, ends, scheme, replace(recipe, search="none"), scale)
    codes = encode(e, quotients(blocks.copy(), found, scheme, recipe), recipe.ties, recipe.zero)
    return decoded(codes, found.total, None, scheme).reshape(x.shape).astype(x.dtype)
