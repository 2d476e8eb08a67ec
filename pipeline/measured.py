"""What quantizing loses: measured here, from what readers will decode, and not by whoever makes the codes.

Our own method measures while it encodes, in the same pass over the values, and its tests say that this comes to the
same. Whatever else encodes, a class of somebody's that only adds to ours included, is decoded again and compared: piece
by piece, or that would take ten times what is measured.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pipeline.method import Method
from pipeline.ops import Kernel, kernels_of
from pipeline.tensors.blocks import block_grain, inner_box
from pipeline.tensors.chunks import cut
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.stats import ErrorStats

PIECE_ELEMS: Final = 1 << 18  # with what is made of them on the way, 6 MiB: a cache's
TRUSTED: Final = ("plugins.quant.blockwise.Blockwise",)


def encoded(method: Method, values: Any, unpack: Kernel, **more: Any) -> tuple[QTensor, ErrorStats]:
    """The codes of `values`, and how far what `unpack` makes of them is from those.

    Args:
        more: what else `encode` takes.
    """
    if measures_truly(method):
        found: tuple[QTensor, ErrorStats] = method.encode(values, measure=True, **more)
        return found
    coded = method.encode(values, **more)
    return coded, lost(values, coded, unpack)


def lost(values: Any, coded: QTensor, unpack: Kernel) -> ErrorStats:
    """How far what `unpack` makes of `coded` is from `values`, of the same shape."""
    shape, found = tuple(coded.shape), ErrorStats()
    for piece in cut("", shape, PIECE_ELEMS, block_grain(coded.scheme, shape)):
        x = inner_box(values, piece.index).astype(np.float32)
        found += ErrorStats.between(x, np.asarray(unpack(inner_box(coded, piece.index), "F32")))
    return found


def measures_truly(method: Method) -> bool:
    """Whether the method is exactly one of ours, with kernels that are ours."""
    cls = type(method)
    return f"{cls.__module__}.{cls.__qualname__}" in TRUSTED and _of_our_kernels(method)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _of_our_kernels(method: Hashable) -> bool:
    """Of one of ours, which is frozen: it is asked of every tensor."""
    return all("." not in backend for kernel in kernels_of(method) for backend in kernel.backends)
