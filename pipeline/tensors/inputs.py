"""Scales of what matrices are multiplied by, made once: of calibration, or as a checkpoint brings them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.store import TensorStore


@dataclass(frozen=True, slots=True)
class InputScales:
    """One fp32 number a tensor.

    Attributes:
        scheme: of inputs; of one level of scales, which all values share then, or with a second-level scale.
        values: tensor → its scale, or the second-level one as the scheme stores it; NaN in a plan, which reads nothing.
    """

    scheme: Scheme
    values: Mapping[str, float]

    def of(self, names: Iterable[str]) -> float:
        """Of tensors that lie in one stack, or take one input: the scale that saturates nothing that any would hold."""
        return widest(self.scheme, [self.values[name] for name in names])

    def fits(self, scheme: Scheme) -> bool:
        """Whether inputs that are rounded to `scheme` may be under these."""
        return as_one(scheme) in (self.scheme, _turned(self.scheme))


def widest(scheme: Scheme, scales: Iterable[float]) -> float:
    """The one of several scales, as `scheme` stores them, that reaches furthest."""
    return min(scales) if scheme.second == "inverse_f32" else max(scales)


@dataclass(frozen=True, slots=True)
class InputLeaves:
    """Where a source has scales of inputs.

    Attributes:
        scheme: as of `InputScales`.
        leaves: tensor → the leaves, of one value each, that its matrices have.
    """

    scheme: Scheme
    leaves: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Stated(Mapping[str, float]):
    """Tensor → scale of its inputs, read when asked.

    Attributes:
        store: of leaves.
        found: which of them.
    """

    store: TensorStore
    found: InputLeaves

    def __len__(self) -> int:
        return len(self.found.leaves)

    def __iter__(self) -> Iterator[str]:
        return iter(self.found.leaves)

    def __getitem__(self, name: str) -> float:
        read = [np.asarray(self.store.read(leaf), np.float32) for leaf in self.found.leaves[name]]
        return widest(self.found.scheme, [float(x.reshape(-1)[0]) for x in read])


def as_one(scheme: Scheme) -> Scheme:
    """`scheme` with one scale, or one second-level scale, that is made before any value is seen.

    Raises:
        ConfigError: it has scales of blocks alone.
    """
    if scheme.second in ("f32", "inverse_f32") and scheme.block_rows == 1:
        return scheme
    if scheme.second is None and scheme.zero is None and not scheme.block_elems and scheme.scale != "e8m0":
        return replace(scheme, block_rows=0, scale="f32")
    raise ConfigError(
        "calibrated scales are for one scale of all inputs (int8, fp8_e4m3, fp8_e5m2) or over those of blocks (nvfp4); "
        "others have scales of blocks, made when these are seen: activations_scales=dynamic"
    )


def _turned(scheme: Scheme) -> Scheme:
    """The same with the reciprocal of the second-level scale."""
    other = {"f32": "inverse_f32", "inverse_f32": "f32"}
    return replace(scheme, second=other.get(scheme.second or "", scheme.second))
