"""matmul: activations times a weight matrix that may stay packed.

    matmul(x, w, bias=None, *, out_dtype=None) -> array [..., out] of out_dtype, by default x's dtype

- `x` `[..., in]` is of a float dtype; `w` `[out, in]` is an array or a QTensor; `bias` is `[out]`.
- `y = x · wᵀ + bias`: the weights are taken in x's dtype (those of a QTensor decode into it as `dequantize` says, with
  the infinities of IEEE 754; a backend may leave that rounding out), products are summed in float32, the bias is added
  in float32, and the sum is rounded once, to `out_dtype`.
- A float32 `x` gets full float32 products, on every device: no TF32, no bfloat16 passes.
- A QTensor is decoded piece by piece inside; what is decoded at any time is a few MiB on a CPU, tens of MiB elsewhere.
- Gradients with respect to `x`, to an array `w` and to `bias`: float32 sums, rounded once. A QTensor has none, and
  asking for it is an error; it is decoded again on the way back. There is a first derivative only.

The order of summation is the backend's own, so backends agree to rounding errors of a float32 sum, not bit for bit.
"""
