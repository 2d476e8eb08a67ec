"""A quantized tensor in memory: packed codes and their scales, with the scheme that says what they mean."""

from dataclasses import dataclass
from typing import Any

from pipeline.tensors.scheme import Scheme


@dataclass(frozen=True, eq=False, slots=True)
class QTensor:
    """Packed values of one tensor or of a slice of it.

    Invariants: `codes` and `scales` are uint8 arrays of the shapes `scheme.components(self.shape)` gives; `scheme` is
    the only static field; `shape` is derived from the codes, so that it stays right when layers are stacked or sliced.
    """

    codes: Any
    scales: Any
    scheme: Scheme

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        *lead, packed = self.codes.shape
        return (*lead, packed * 8 // self.scheme.element_bits)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def component(self, name: str) -> Any:
        return {"codes": self.codes, "scales": self.scales}[name]
