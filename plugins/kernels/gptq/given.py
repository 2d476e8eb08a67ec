"""What every backend of gptq asks of a call."""

from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.quantize import in_rows
from plugins.kernels.quantize.recipe import Recipe


def checked(x: Any, factor: Any, scheme: Scheme, order: Any, second: Any, options: dict[str, Any]) -> Recipe:
    """The recipe of these options.

    Raises:
        ConfigError: what is no such call; says why.
    """
    recipe = in_rows.checked("gptq", x, scheme, second, options)
    n = x.shape[1]
    if (*factor.shape,) != (n, n):
        raise ConfigError(f"gptq: a factor of shape {[*factor.shape]} for {n} columns")
    if order is not None and not np.array_equal(np.sort(order), np.arange(n)):
        raise ConfigError(f"gptq: order has not each of {n} columns once")
    return recipe
