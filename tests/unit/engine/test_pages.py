"""Memory of weights: JAX takes arrays in it as they are, and none stands in another."""

import jax
import ml_dtypes
import numpy as np

from plugins.engine import pages
from plugins.engine.pages import Pages


def test_arrays_are_taken_as_they_are_and_apart() -> None:
    memory = Pages()
    shapes = [(3, 5), (0, 4), (7,), (), (1, 33, 2)]
    dtypes = [np.uint8, np.float32, np.dtype(ml_dtypes.bfloat16), np.float16]
    arrays = [memory.empty(shape, dtype) for shape in shapes for dtype in dtypes]
    for i, a in enumerate(arrays):
        a[...] = i
    for i, (a, (shape, dtype)) in enumerate(zip(arrays, ((s, d) for s in shapes for d in dtypes), strict=True)):
        assert (a.shape, a.dtype) == (shape, dtype)
        assert (a == i).all()
        taken = jax.device_put(a, jax.devices("cpu")[0], may_alias=True)
        assert a.size == 0 or taken.unsafe_buffer_pointer() == a.ctypes.data


def test_what_is_larger_than_a_block_has_its_own() -> None:
    memory = Pages()
    first, large, last = (memory.empty((n,), np.uint8) for n in (10, pages.BLOCK_NBYTES + 1, 10))
    first[:], last[:] = 1, 2
    assert large.shape == (pages.BLOCK_NBYTES + 1,)
    large[-1] = 3
    assert (first == 1).all()
    assert (last == 2).all()
