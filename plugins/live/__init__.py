"""Packed tensors in JAX programs of anybody's own: trees of arrays, NNX modules, layers.

from plugins.live.trees import dequantize, quantize
from plugins.live.linear import QuantizedLinear
"""
