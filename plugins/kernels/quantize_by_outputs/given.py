"""What every backend of quantize_by_outputs asks of a call."""

from typing import Any

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.quantize import in_rows
from plugins.kernels.quantize.recipe import Recipe


def checked(x: Any, hessian: Any, scheme: Scheme, second: Any, options: dict[str, Any]) -> Recipe:
    """The recipe of these options.

    Raises:
        ConfigError: what is no such call; says why.
    """
    recipe = in_rows.checked("quantize_by_outputs", x, scheme, second, options)
    n = x.shape[1]
    if (*hessian.shape,) != (n, n):
        raise ConfigError(f"quantize_by_outputs: a Hessian of shape {[*hessian.shape]} for {n} columns")
    return recipe
