"""A store that stands before another one: what it does not say itself is what that one says."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.tensors.blocks import grain_of, read_nbytes_of, scratch_of, shares_of
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore


class StoreView:
    """Says of its tensors what `store`, a field of whoever inherits, says of them; how they are read is its own.

    All of `StoreHooks` is there for any `store`, which need not have these hooks.
    """

    __slots__ = ()
    store: TensorStore

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self.store.specs

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.store.metadata

    def grain(self, name: str) -> tuple[int, ...]:
        return grain_of(self.store, name)

    def scratch(self, name: str) -> int:
        return scratch_of(self.store, name)

    def shares(self, name: str) -> Sequence[tuple[Index, int]] | None:
        return shares_of(self.store, name)

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        return read_nbytes_of(self.store, name, boxes)
