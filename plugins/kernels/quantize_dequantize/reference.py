"""quantize_dequantize, the definition: quantized, and decoded."""

from typing import Any

import numpy as np

from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import dtype_name
from plugins.kernels.dequantize.reference import dequantize
from plugins.kernels.quantize.reference import quantize


def quantize_dequantize(x: Any, scheme: Scheme, *, clipped_gradient: bool = False, **recipe: Any) -> Any:
    """See the op's docstring."""
    x = np.asarray(x)
    return dequantize(quantize(x, scheme, **recipe), dtype_name(x.dtype))
