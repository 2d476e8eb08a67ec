"""What ops that make codes of a whole matrix, in blocks of one row, ask of a call."""

from typing import Any

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.quantize import recipe as recipes
from plugins.kernels.quantize.recipe import Recipe


def checked(op: str, x: Any, scheme: Scheme, second: Any, options: dict[str, Any]) -> Recipe:
    """The recipe of these options.

    Args:
        op: whose call it is.
        second: the second-level scale as stored, or None.

    Raises:
        ConfigError: `x` is no matrix, or `scheme` and `options` are not of nearest values in blocks of one row, under
            scales that are stored as they are; says why.
    """
    if x.ndim != 2:
        raise ConfigError(f"{op}: is of one matrix, not of shape {[*x.shape]}")
    if scheme.is_struct or scheme.block_rows != 1 or scheme.second == "dynamic8":
        raise ConfigError(f"{op}: is for blocks in one row under scales that are stored as they are, not for {scheme}")
    recipe = recipes.checked(x.shape, scheme, options)
    if recipe.stochastic or recipe.nonfinite != "error" or recipe.zero == "minus":
        raise ConfigError(f"{op}: rounds finite values to the nearest, and nothing at random")
    if (scheme.second is None) != (second is None):
        raise ConfigError(f"{op}: second={second} with a scheme whose second-level scale is {scheme.second}")
    return recipe
