"""quantize_dequantize: what an array would be once it was quantized; for training, where it goes straight through.

    quantize_dequantize(x, scheme, *, clipped_gradient=False, **recipe) -> array of x's shape and dtype

`x` is `[..., n]`, float32 or bfloat16. The result is that of `dequantize(quantize(x, scheme, **recipe), x's dtype)`,
bit for bit: one definition, which the host's codecs have with NumPy and models inside compiled programs.

- Where `quantize` raises ValueRangeError, so does the reference. A compiled program cannot: there a block is NaN that
  holds a NaN or an infinity, or whose scale is past its encoding (all blocks of a matrix, under a second-level scale),
  and values that decode past the range are infinite.
- The gradient with respect to `x` goes straight through (Bengio et al., arXiv 1308.3432): it is the cotangent itself,
  as if nothing had been rounded; scales are constants to it. With `clipped_gradient` it is 0 where `x` lies outside of
  what the codes of its block can stand for, and was saturated.
- `scheme` and the options are static.
"""
