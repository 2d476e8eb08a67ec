"""Buffers of a thread that kernels share: tiles of one call after another pass through memory that is in cache."""

import threading
from math import prod
from typing import Any

import numpy as np

_local = threading.local()


def floats(k: int, shape: tuple[int, ...]) -> Any:
    """Float32 buffer `k` (0: the values of a tile, 1 and 2: what is made of them) of `shape`; holds anything."""
    return _of("floats", k, shape, np.float32)


def octets(k: int, shape: tuple[int, ...]) -> Any:
    """Buffer `k` of bytes."""
    return _of("octets", k, shape, np.uint8)


def _of(kind: str, k: int, shape: tuple[int, ...], dtype: Any) -> Any:
    buffers = _local.__dict__.setdefault(kind, {})
    size = prod(shape)
    have = buffers.get(k)
    if have is None or have.size < size:
        have = buffers[k] = np.empty(size, dtype)
    return have[:size].reshape(shape)
