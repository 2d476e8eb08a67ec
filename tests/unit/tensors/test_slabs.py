"""Slabs are the array, in C order, whatever its layout; and no larger than they have to be."""

import numpy as np
import pytest

from pipeline.tensors.slabs import SLAB_NBYTES, slabs


@pytest.mark.parametrize(
    "shape", [(), (0,), (7,), (3, 5), (2, 0, 3), (700, 2003), (3, 701, 2000), (2, 3, 400, 1100), (1, 2, 1 << 20)]
)
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_put_a_transposed_array_in_order(shape, dtype):
    array = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
    array = array.swapaxes(-1, -2) if array.ndim > 1 else array
    box = tuple(slice(i + 1, i + 1 + n) for i, n in enumerate(array.shape))
    whole = np.zeros([s.stop for s in box], dtype)
    flat = []
    for index, slab in slabs(array, box):
        assert slab.flags.c_contiguous
        assert slab.nbytes <= SLAB_NBYTES or array.flags.c_contiguous or slab.size == array.shape[-1]
        whole[index] = slab
        flat.append(slab.reshape(-1))
    assert np.array_equal(whole[box], array)
    assert np.array_equal(np.concatenate(flat), array.reshape(-1))


def test_a_contiguous_array_is_not_copied():
    array = np.zeros((1000, 2000))
    [(index, slab)] = slabs(array, (slice(0, 1000), slice(0, 2000)))
    assert slab is array
    assert index == (slice(0, 1000), slice(0, 2000))
