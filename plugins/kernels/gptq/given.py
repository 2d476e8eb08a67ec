"""What every backend of gptq asks of a call."""

from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.quantize import recipe as recipes
from plugins.kernels.quantize.recipe import Recipe


def checked(x: Any, factor: Any, scheme: Scheme, order: Any, second: Any, options: dict[str, Any]) -> Recipe:
    """The recipe of these options.

    Raises:
        ConfigError: what is no such call; says why.
    """
    if x.ndim != 2:
        raise ConfigError(f"gptq: is of one matrix, not of shape {[*x.shape]}")
    if scheme.is_struct or scheme.block_rows != 1 or scheme.second == "dynamic8":
        raise ConfigError(f"gptq: is for blocks in one row under scales that are stored as they are, not for {scheme}")
    recipe = recipes.checked(x.shape, scheme, options)
    if recipe.stochastic or recipe.nonfinite != "error" or recipe.zero == "minus":
        raise ConfigError("gptq: rounds finite values to the nearest, and nothing at random")
    if (scheme.second is None) != (second is None):
        raise ConfigError(f"gptq: second={second} with a scheme whose second-level scale is {scheme.second}")
    n = x.shape[1]
    if (*factor.shape,) != (n, n):
        raise ConfigError(f"gptq: a factor of shape {[*factor.shape]} for {n} columns")
    if order is not None and not np.array_equal(np.sort(order), np.arange(n)):
        raise ConfigError(f"gptq: order has not each of {n} columns once")
    return recipe
