"""What a parameter holds instead of its weights, and looks like them to a model."""

from typing import Any


class StandIn:
    """Has shape and dtype of the weights, which are its `base`."""

    __slots__ = ()
    base: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.shape)

    @property
    def dtype(self) -> Any:
        return self.base.dtype
