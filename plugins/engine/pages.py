"""Memory in which the weights of a model lie on a CPU.

A step of decoding reads all of it once, and looks each page up. In pages of 4 KiB that costs a tenth of the time, so
large ones are asked for, and small tensors share them; where there are none, this is memory like any other. Arrays
begin where JAX takes them as they are: without a second copy.
"""

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

BLOCK_NBYTES: Final = 64 << 20
ALIGNED: Final = 64  # bytes: JAX copies what begins elsewhere


class Pages:
    """Arrays that stand behind each other in a few large pieces of memory, which live as long as one of them."""

    def __init__(self) -> None:
        self._block: Any = np.empty(0, np.uint8)
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        """An array whose values are not set."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if self._used + nbytes > len(self._block):
            self._block, self._used = _block(max(BLOCK_NBYTES, nbytes)), 0
        found = self._block[self._used : self._used + nbytes].view(dtype).reshape(shape)
        self._used += -(-nbytes // ALIGNED) * ALIGNED
        return found


def _block(nbytes: int) -> Any:
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if (large := getattr(mmap, "MADV_HUGEPAGE", None)) is not None:
        with suppress(OSError):  # a kernel without them
            memory.madvise(large)
    return np.frombuffer(memory, np.uint8)
