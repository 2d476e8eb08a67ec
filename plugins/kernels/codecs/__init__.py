"""What codes, scales and packed bytes are worth, for every scheme; shared by the ops `quantize` and `dequantize`.

elements: values of a block's codes, and the nearest code to a value. scales: block scales as stored and as float32.
dynamic8: scales that are themselves quantized. bits: codes as a little-endian bit stream. blocks: tiles of whole
blocks. uniform: random numbers by place. jax_float: float32 arithmetic that no device bends.
"""
