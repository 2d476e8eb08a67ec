"""quantize_dequantize: what an array would be once it was quantized; for training, where it goes straight through.

    quantize_dequantize(x, scheme, *, scale=None, clipped_gradient=False, **recipe) -> array of x's shape and dtype

`x` is `[..., n]`, float32 or bfloat16. The result is that of `dequantize(quantize(x, scheme, **recipe), x's dtype)`,
bit for bit: one definition, which the host's codecs have with NumPy and models inside compiled programs.

- Where `quantize` raises ValueRangeError, so does the reference. A compiled program cannot: there a block is NaN that
  holds a NaN or an infinity, or whose scale is past its encoding (all blocks of a matrix, under a second-level scale),
  and values that decode past the range are infinite.
- `scale` is a float32 number that was made before, of other values: under one level of scales the scale of all of `x`,
  under two the second-level one, as the scheme stores it. Values past it are saturated, and integers use their most
  negative code, as compressed-tensors and vLLM have it. For symmetric elements in blocks of whole matrices or rows, and
  for second-level scales in float32.
- The gradient with respect to `x` goes straight through (Bengio et al., arXiv 1308.3432): it is the cotangent itself,
  as if nothing had been rounded; scales are constants to it. With `clipped_gradient` it is 0 where `x` lies outside of
  what the codes of its block can stand for, and was saturated.
- `scheme` and the options are static.
"""
