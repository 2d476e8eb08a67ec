"""Stores of arrays in memory: the simplest thing that satisfies `TensorStore`, so that views and dialects can be tested
without a container."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.tensors.binding import Binding
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, dtype_name, numpy_dtype
from pipeline.tensors.store import Index, normalize
from pipeline.tensors.views import split


@dataclass
class MemoryStore:
    """Arrays and QTensors by name. `reads` remembers every box that was asked for."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    reads: list[tuple[str, Index]] = field(default_factory=list)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        return {name: spec_of(value) for name, value in self.tensors.items()}

    def read(self, name: str, index: Index = ()) -> Any:
        self.reads.append((name, index))
        return box_of(self.tensors[name], index)


def spec_of(value: Any) -> TensorSpec:
    """The spec of an array or QTensor (which decodes to BF16)."""
    if isinstance(value, QTensor):
        return TensorSpec(value.shape, "BF16", value.scheme)
    return TensorSpec(value.shape, dtype_name(value.dtype))


def box_of(value: Any, index: Index) -> Any:
    """A copy of the box, cut by hand: the codes and scales of whole blocks for a QTensor."""
    box = normalize(index, tuple(value.shape))
    if not isinstance(value, QTensor):
        return np.array(value[box])
    *rows, last = box
    block = value.scheme.block_elems
    width = block * value.scheme.element_bits // 8
    groups = slice(last.start // block, last.stop // block)
    codes = value.codes[(*rows, slice(groups.start * width, groups.stop * width))]
    return QTensor(codes.copy(), value.scales[(*rows, groups)].copy(), value.scheme)


def write_all(binding: Binding, read: Callable[[str], Any]) -> dict[str, np.ndarray]:
    """The leaves of a binding for writing, filled from whole tensors; what no part fills keeps a value of its own."""
    leaves = {name: np.full(s.shape, 0xA5, "u1").astype(numpy_dtype(s.dtype)) for name, s in binding.leaves.items()}
    for name, bound in binding.tensors.items():
        for leaf, box, array in split(bound, (), read(name)):
            leaves[leaf][box] = array
    return leaves


def same(a: Any, b: Any) -> bool:
    """Bit for bit equality of arrays or QTensors; −0 differs from 0 and NaN equals itself."""
    if isinstance(a, QTensor) and isinstance(b, QTensor):
        return a.scheme == b.scheme and same(a.codes, b.codes) and same(a.scales, b.scales)
    if isinstance(a, QTensor) or isinstance(b, QTensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()
