"""quantize: an array becomes a QTensor, one shared scale a block.

    quantize(x, scheme, *, scale_rule="floor", ties="even", zero="signed", nonfinite="error", tiny="spec",
             measure=False) -> QTensor, or (QTensor, ErrorStats) when measure

`x` is an array `[..., n]` of bfloat16 (ml_dtypes), float32 or float16, contiguous or not; `n` is a multiple of
`scheme.block_elems`. The options are the *method* (how codes are chosen), never needed to decode:

- scale_rule: the power of two from a block's amax. `floor`: floor(log2 amax) - 2 (OCP MX v1.0, section 6.3, and the
  default of torchao and ggml); `ceil`: ceil(log2 amax) - 2; `even`: amax is first rounded to E2M1's one mantissa bit,
  half up (compressed-tensors, qwix); `rceil`: the smallest scale that holds amax without saturation, amax / 6 rounded
  up to a power of two (torchao, Triton, ModelOpt). A zero block gets byte 0 under every rule.
- ties: a value halfway between two codes: `even` to the code with mantissa 0 (OCP, torchao, compressed-tensors,
  Triton), `zero` to the smaller magnitude (ggml), `away` to the larger (microxcaling's default).
- zero: `signed` keeps the sign of what becomes 0 (code 8 is -0); `positive` writes code 0 (ggml).
- nonfinite: `error` raises ValueRangeError at the first NaN or infinity. `poison` gives its block scale 0xFF and
  zero codes, so that the whole block decodes to NaN (section 5.1: a NaN scale makes every element NaN; what a
  conversion does with NaN and infinity section 6.3 leaves open).
- tiny: blocks whose scale clamps to byte 0, i.e. 2^-127. `spec` divides by 2^-127, as the decoder multiplies.
  `torchao` reproduces its codes, which decode wrong: it divides by 2^-126 (rceil: by 1, so all codes are 0).
- measure: also return the ErrorStats of the decoded values against `x`, computed tile by tile in the same pass.
  Poisoned blocks, which have no values, are left out of it.

Raises ValueRangeError (its message starts with the flat index; the caller names the tensor), ConfigError for an option
that does not exist or a shape that does not fill blocks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from pipeline.errors import ConfigError, did_you_mean
from pipeline.ops import Kernel, Op

ScaleRule = Literal["floor", "ceil", "even", "rceil"]
Ties = Literal["even", "zero", "away"]
Zero = Literal["signed", "positive"]
Nonfinite = Literal["error", "poison"]
Tiny = Literal["spec", "torchao"]

OP = Op(
    "quantize",
    {
        "reference": "plugins.kernels.quantize.reference:quantize",
        "numpy": "plugins.kernels.quantize.numpy_backend:quantize",
    },
)


@dataclass(frozen=True)
class Quantize(Kernel):
    """The quantize op with its backends, as a plugin node."""

    op: ClassVar[Op] = OP


def check(shape: tuple[int, ...], scheme: Any, **options: str) -> None:
    """Raise ConfigError unless every option exists and `shape` can be stored in `scheme`."""
    allowed = {"scale_rule": ScaleRule, "ties": Ties, "zero": Zero, "nonfinite": Nonfinite, "tiny": Tiny}
    for name, given in options.items():
        if given not in get_args(allowed[name]):
            raise ConfigError(
                f"quantize {name} {given!r} is unknown{did_you_mean(str(given), get_args(allowed[name]))}"
            )
    if (scheme.element, scheme.scale, scheme.block_rows) != ("e2m1", "e8m0", 1) or not scheme.block_elems:
        raise ConfigError(f"quantize makes blocks of e2m1 elements in one row with e8m0 scales, not {scheme}")
    if problem := scheme.problem(shape):
        raise ConfigError(f"quantize: {problem}")
