"""A quantized tensor in memory: packed codes, scales and whatever else decoding needs, and the scheme that says how."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.tensors.scheme import Scheme


@dataclass(frozen=True, eq=False, slots=True)
class QTensor:
    """Packed values of one tensor or of a slice of it.

    Invariants: the components that are not None are those of `scheme.components(self.shape)`, of those shapes and of
    the dtypes `scheme.dtypes`; `scheme` is the only static field; `shape` is derived from the codes, so that it stays
    right when layers are stacked or sliced.
    """

    codes: Any
    scales: Any = None  # of structs, which have theirs in the codes
    scheme: Scheme = None  # type: ignore[assignment]  # is given always, and stands behind what may be left out
    zeros: Any = None
    second: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        *lead, packed = self.codes.shape
        columns, nbytes = self.scheme.period
        return (*lead, packed * columns // nbytes)

    @property
    def components(self) -> Mapping[str, Any]:
        """The arrays, by name."""
        named = {"codes": self.codes, "scales": self.scales, "zeros": self.zeros, "second": self.second}
        return {name: array for name, array in named.items() if array is not None}

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.components.values())

    def component(self, name: str) -> Any:
        return self.components[name]
