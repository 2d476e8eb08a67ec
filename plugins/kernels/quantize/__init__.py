"""quantize: an array becomes a QTensor, one shared scale a block.

    quantize(x, scheme, *, measure=False, observed=None, rows=None, place=None, importance=None, **recipe)
        -> QTensor, or (QTensor, ErrorStats)

`x` is an array `[..., n]` of bfloat16 (ml_dtypes), float32 or float16, contiguous or not. The recipe is the *method*
(how codes are chosen), never needed to decode; combinations that mean nothing are a ConfigError that says why:

- scale_rule, for E8M0 scales: the power of two from a block's amax, with emax the exponent of the largest element.
  `floor`: floor(log2 amax) - emax (OCP MX v1.0, section 6.3, and the default of torchao and ggml); `ceil`:
  ceil(log2 amax) - emax; `even`: amax is first rounded to the element's mantissa bits, half up (compressed-tensors,
  qwix); `rceil`: the smallest scale that holds amax without saturation (torchao, Triton, ModelOpt). A zero block gets
  byte 0 under every rule.
- scale_rule, for real scales: `amax`: amax / largest element, and integers use symmetric codes; `half_range`: amax over
  half the distance of the ends, -128 … 127 give 127.5 (compressed-tensors); `signed`: the first value of largest
  magnitude over the most negative integer (ggml's Q4_0); `minmax`, for zero points and minima: (max - min) / largest
  code, where for zero points 0 lies between min and max (compressed-tensors) and for minima need not (ggml's Q4_1).
  The scale is rounded to nearest even in its encoding. A block whose scale is 0 has codes that stand for 0.
- quotient: `divide` by the scale that the decoder will use, or multiply by its float32 `reciprocal` (torchao's NVFP4,
  ggml, bitsandbytes). codes_from: the `stored` scale, or the `unrounded` one (ggml, bitsandbytes).
- least_scale, zero_scale: real scales below the first are raised to it; what a zero scale is stored as.
- zero_block: the zero point of a block whose scale is 0: the `least` code, or the one in the `middle`; then the largest
  where values below 0 are too small for a scale (compressed-tensors, which divides by that scale).
- ties: a value halfway between two codes: `even` to the code with mantissa 0 (OCP, torchao, compressed-tensors,
  Triton), `zero` to the smaller magnitude (ggml's MXFP4, ModelOpt's), `away` to the larger (microxcaling's default),
  `down` to the smaller value (bitsandbytes' NF4), `up` (integers): floor(v + 1/2), added in float32 as ggml does.
- zero: `signed` keeps the sign of what becomes 0; `positive` writes +0 (ggml); `minus` writes -0 for 0 (ModelOpt).
- nonfinite: `error` raises ValueRangeError at the first NaN or infinity. `poison` gives its block scale NaN (0xFF in
  E8M0) and zero codes, so that the whole block decodes to NaN (section 5.1: a NaN scale makes every element NaN; what
  a conversion does with NaN and infinity section 6.3 leaves open).
- overflow: a finite value that would decode to an infinity in BF16 or F32, at the end of the range, is an `error`;
  `inf` writes the codes that libraries write, which decode to that.
- tiny: E8M0 blocks whose scale clamps to byte 0, i.e. 2^-127. `spec` divides by 2^-127, as the decoder multiplies.
  `torchao` reproduces its codes, which decode wrong: it divides by 2^-126 (rceil: by 1, so all codes are 0).
- search: `mse` tries other scales and keeps the one with the least sum of squared errors, the earlier of equals: the
  bytes ±1 … ±search_steps, or the real scale times each factor of search_grid. With `importance`, fp32 `[..., n]`
  without the dimension of rows, of the sum in which each square is multiplied by that of its column. A scale that
  cannot be stored, or decodes to what is not finite, loses more than any other.
- stochastic: round up or down with probabilities that make the mean right, from numbers that depend on `seed` and on
  the value's `place` = (tensor name, its shape, where x starts in it) only: chunks and threads change nothing.

None of that is of blocks that are structs of ggml (`STRUCTS`): plugins/kernels/codecs/superblocks.py says how those are
found, one way for each kind. `importance` weighs their errors.

`observed` (pipeline.tensors.matrices.Extremes) are those of the whole matrices that `x` is a part of, for scales that a
matrix shares; `rows` those of the whole rows, for scales that a row shares. `measure` also gives the ErrorStats of the
decoded values against `x`; poisoned blocks, which have no values, are left out.

Raises ValueRangeError (its message starts with the flat index; the caller names the tensor; a scale or minimum past its
encoding is one too), ConfigError for an option that does not exist or a shape that does not fill blocks.
"""

from typing import Any

from plugins.kernels.quantize.recipe import Nonfinite, ScaleRule, Ties, Tiny, Zero, checked

__all__ = ["Nonfinite", "ScaleRule", "Ties", "Tiny", "Zero", "check"]


def check(shape: tuple[int, ...], scheme: Any, **options: Any) -> None:
    """Raise ConfigError unless the options are a recipe for `scheme` and `shape` can be stored in `scheme`."""
    checked(shape, scheme, options)
