"""OCP Microscaling weights: which scheme, and by which of the many rules in use its codes are made."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.dequantize import Dequantize
from plugins.kernels.quantize import Nonfinite, Quantize, ScaleRule, Ties, Tiny, Zero
from plugins.quant.exact import recode_exactly


@dataclass(frozen=True)
class MX:
    """A method that needs nothing but the weights. The defaults are MXFP4 as OCP MX v1.0 describes it.

    Attributes:
        element, block_elems, scale: the scheme: what the bytes mean.
        scale_rule, ties, zero, nonfinite, tiny: how they are made; see plugins/kernels/quantize.
        quantize, dequantize: the kernels that do the work.
    """

    element: str = "e2m1"
    block_elems: int = 32
    scale: str = "e8m0"
    scale_rule: ScaleRule = "floor"
    ties: Ties = "even"
    zero: Zero = "signed"
    nonfinite: Nonfinite = "error"
    tiny: Tiny = "spec"
    quantize: Kernel = field(default_factory=Quantize)
    dequantize: Kernel = field(default_factory=Dequantize)

    def __post_init__(self) -> None:
        from plugins.kernels.quantize import check

        # Building the scheme checks its parts; one block checks the options.
        check((self.block_elems,), self.scheme, **self._options)

    @property
    def scheme(self) -> Scheme:
        return Scheme(self.element, self.block_elems, self.scale)

    @property
    def needs_extremes(self) -> bool:
        return False

    @property
    def _options(self) -> dict[str, str]:
        return {k: getattr(self, k) for k in ("scale_rule", "ties", "zero", "nonfinite", "tiny")}

    def encode(self, x: Any, *, measure: bool = False) -> Any:
        """`x` `[..., n]` as a QTensor; with `measure`, (QTensor, ErrorStats).

        Raises:
            ValueRangeError: a NaN or an infinity, unless `nonfinite` is "poison".
        """
        return self.quantize(x, self.scheme, measure=measure, **self._options)

    def recode(self, q: QTensor) -> QTensor:
        """`q` in this scheme with exactly its values; NotLossless when that cannot be."""
        return recode_exactly(self, q)

    def decode(self, q: QTensor, dtype: str = "BF16", *, overflow: str = "error") -> Any:
        """The values of `q` as an array of `dtype` (BF16, F32 or F16)."""
        return self.dequantize(q, dtype, overflow=overflow)
