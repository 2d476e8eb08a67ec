"""What quantizing loses: measured here, from what readers will decode, and not by whoever makes the codes.

Our own method measures while it encodes, in the same pass over the values, and its tests say that this comes to the
same. Whatever else encodes, a class of somebody's that only adds to ours included, is decoded again and compared.
"""

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pipeline.method import Method
from pipeline.ops import Kernel, kernels_of
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.stats import ErrorStats

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
    return coded, ErrorStats.between(np.asarray(values).astype(np.float32), np.asarray(unpack(coded, "F32")))


def measures_truly(method: Method) -> bool:
    """Whether the method is exactly one of ours, with kernels that are ours."""
    cls = type(method)
    return f"{cls.__module__}.{cls.__qualname__}" in TRUSTED and _of_our_kernels(method)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _of_our_kernels(method: Hashable) -> bool:
    """Of one of ours, which is frozen: it is asked of every tensor."""
    return all("." not in backend for kernel in kernels_of(method) for backend in kernel.backends)
