"""No quantization: weights leave as they came; packed ones decoded, or packed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from pipeline.ops import Call, Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec


@dataclass(frozen=True)
class Unquantized:
    """The method whose scheme is None.

    Attributes:
        packed: what becomes of what arrives packed: `unpack`, or `keep`, where it can be written so.
        dequantize: decodes it.
    """

    packed: Literal["unpack", "keep"] = "unpack"
    dequantize: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    @property
    def scheme(self) -> None:
        return None

    @property
    def needs_extremes(self) -> bool:
        return False

    @property
    def keeps(self) -> bool:
        """See `pipeline.method.MethodHooks`."""
        return self.packed == "keep"

    def encode(self, x: Any) -> Any:
        """`x` itself: there is nothing to encode."""
        return x

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """The kernel calls that unpacking the tensor `name` makes, which is stored as `spec`."""
        if spec.scheme is not None:
            yield Call(self.dequantize, name, {"q": spec})

    def recode(self, q: QTensor) -> QTensor:
        """`q` itself."""
        return q

    def decode(self, q: QTensor, dtype: str = "BF16", *, overflow: str = "error") -> Any:
        """The values of `q` as an array of `dtype` (BF16, F32 or F16)."""
        return self.dequantize(q, dtype, overflow=overflow)
