"""What a quantization method is: how codes are made. What they mean is its scheme's business."""

from typing import Any, Protocol

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme


class Method(Protocol):
    """A plugin node under `quant`. Its fields (scale rule, ties, …) are provenance; only `scheme` is written to files."""

    @property
    def scheme(self) -> Scheme | None:
        """The scheme of what `encode` gives; None when the target is plain bf16."""
        ...

    def encode(self, x: Any, *, measure: bool = False) -> Any:
        """Quantize an array `[..., n]` of bf16, fp16 or fp32 to a QTensor; with `measure`, (QTensor, ErrorStats).

        Raises:
            ValueRangeError: a value that the scheme cannot hold; says its index within `x`.
        """
        ...

    def decode(self, q: QTensor, dtype: str) -> Any:
        """Values of `q`, whatever its scheme, as an array of `dtype` (BF16, F16 or F32)."""
        ...
