"""A checkpoint whose hidden states are rotated: an orthogonal matrix goes into all that reads and writes them.

An RMSNorm without weights commutes with a rotation, so weights of norms go into the matrices behind them first. What is
added to hidden states is rotated along its rows, what multiplies them along its columns; the model stays the function
that it was. It is done where tensors are read; all that change become fp32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.calibration import LinearStatistics, Statistics
from pipeline.ops import Kernel
from pipeline.tensors.blocks import block_grain, common, outward, read_nbytes_of
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.regions import ends
from pipeline.tensors.rotation import Rotation, Turned
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore, checked, normalize
from pipeline.tensors.store_view import StoreView


@dataclass(frozen=True)
class Stream:
    """Who reads and writes hidden states.

    Attributes:
        reads: what has them along its last dimension: matrices that multiply them, the embedding, biases that are
            added to them. Name → the norm whose weights go into it first, or None.
        writes: matrices whose rows give them.
        norms: their weights are left without effect. Name → whether 1 is added to them.
        head: a tensor that the source does not have → the one it is read from, where embeddings were tied.
    """

    reads: Mapping[str, str | None]
    writes: frozenset[str]
    norms: Mapping[str, bool]
    head: tuple[str, str] | None = None


@dataclass(frozen=True)
class RotatedStore(StoreView):
    """`store` with its hidden states rotated.

    Attributes:
        store: what is read.
        stream: which of its tensors change.
        rotation: how.
        unpack: decodes what is packed.
    """

    store: TensorStore
    stream: Stream
    rotation: Rotation
    unpack: Kernel

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        found = {n: self._spec(n, spec) for n, spec in self.store.specs.items()}
        if self.stream.head is not None:
            name, of = self.stream.head
            found[name] = replace(self.store.specs[of], dtype="F32", scheme=None)
        return found

    def _spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        changes = name in self.stream.reads or name in self.stream.writes
        return replace(spec, dtype="F32", scheme=None) if changes else spec

    def _of(self, name: str) -> str:
        """What a tensor is read from."""
        return self.stream.head[1] if self.stream.head is not None and name == self.stream.head[0] else name

    def _along(self, name: str) -> int | None:
        """The dimension that is rotated, counted from the last."""
        return -1 if name in self.stream.reads else -2 if name in self.stream.writes else None

    def grain(self, name: str) -> tuple[int, ...]:
        """As of the source, and all of what is rotated together."""
        found, along = super().grain(self._of(name)), self._along(name)
        if along is None:
            return found
        whole = [1] * len(found)
        whole[along] = max(1, self.specs[name].shape[along])
        return common(found, tuple(whole))

    def scratch(self, name: str) -> int:
        return super().scratch(self._of(name))

    def shares(self, name: str) -> Sequence[tuple[Index, int]] | None:
        return super().shares(self._of(name))

    def _taken(self, name: str, box: tuple[slice, ...]) -> tuple[slice, ...]:
        """What is read of the source for a box."""
        along, spec = self._along(name), self.store.specs[self._of(name)]
        if along is None:
            return box
        wide = list(box)
        wide[along] = slice(0, spec.shape[along])
        return outward(tuple(wide), spec.shape, block_grain(spec.scheme, spec.shape))

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        shape = self.specs[name].shape
        taken = {ends(of): of for of in (self._taken(name, normalize(box, shape)) for box in boxes)}
        return read_nbytes_of(self.store, self._of(name), [*taken.values()])

    def read(self, name: str, index: Index = ()) -> Any:
        """The rotated box."""
        along, spec = self._along(name), self.specs[name]
        if name in self.stream.norms:
            value = self.store.read(name, index)
            return np.full_like(value, 0 if self.stream.norms[name] else 1)
        if along is None:
            return self.store.read(name, index)
        box = normalize(index, spec.shape)
        outer = self._taken(name, box)
        value = self._values(self._of(name), outer)
        if (norm := self.stream.reads.get(name)) is not None:
            value = value * (self._values(norm, ()) + np.float32(self.stream.norms[norm]))
        turned = self.rotation.apply(value if along == -1 else value.swapaxes(-1, -2))
        value = turned if along == -1 else turned.swapaxes(-1, -2)
        inner = tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))
        return checked(np.array(value[inner], order="C"), spec, box, name)

    def _values(self, name: str, box: tuple[slice, ...]) -> Any:
        value = self.store.read(name, box)
        return self.unpack(value, "F32") if isinstance(value, QTensor) else value.astype(np.float32)


@dataclass(frozen=True)
class TurnedStatistics:
    """What matrices are multiplied by once it is rotated: `Statistics`. XᵀX and samples are exactly that; mean squares
    are the mean of their block's, as they are on average over signs, and nothing is known of largest values (NaN).

    Attributes:
        statistics: before.
        turned: of which matrices.
    """

    statistics: Statistics
    turned: Turned

    def __contains__(self, name: object) -> bool:
        return name in self.statistics

    def of(self, name: str) -> LinearStatistics | None:
        """See `pipeline.calibration.Statistics`."""
        found = self.statistics.of(name)
        if found is None or name not in self.turned.names:
            return found
        whole, rows, turn = found.hessian, found.sample, self.turned.rotation.apply

        def hessian(*expert: int) -> Any:
            assert whole is not None
            return turn(turn(whole(*expert)).T)

        def sample(*expert: int) -> Any:
            assert rows is not None
            return turn(rows(*expert))

        size = self.turned.rotation.block
        assert size is not None
        square = found.mean_square.reshape(*found.mean_square.shape[:-1], -1, size).mean(-1)
        return replace(
            found,
            mean_square=np.repeat(square, size, axis=-1),
            absmax=np.full_like(found.absmax, np.nan),
            hessian=None if whole is None else hessian,
            sample=None if rows is None else sample,
        )


def turned(store: TensorStore, by: Turned, unpack: Kernel) -> TensorStore:
    """`store` with the matrices of `by` rotated along their columns."""
    return RotatedStore(store, Stream(dict.fromkeys(sorted(by.names)), frozenset(), {}), by.rotation, unpack)
