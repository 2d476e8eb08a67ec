"""embed in C++: every format on every instruction set as the definition has it; its gradient is XLA's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, BY_STRUCTS, SCHEMES, normal
from plugins.kernels.embed import native, xla
from plugins.kernels.embed.reference import embed as reference
from tests.cases.native import needs_compiler

pytestmark = needs_compiler

IDS = np.array([[0, 12, 3], [12, 7, 7]], np.int32)


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_plain_tables(isa: str, dtype: type) -> None:
    for stored in (np.float32, BF16, np.float16):
        for width in (1, 7, 16, 37, 2880):
            w = normal(np.random.default_rng(width), 13, width, dtype=stored)
            found = np.asarray(native.embed(IDS, w, dtype=dtype))
            np.testing.assert_array_equal(found, reference(IDS, w, dtype=dtype))
            assert found.dtype == dtype


@pytest.mark.parametrize("name", [*SCHEMES, *BY_STRUCTS])
def test_packed_tables(isa: str, name: str) -> None:
    scheme = (SCHEMES | BY_STRUCTS)[name]
    w = quantized(scheme, (13, 768))
    for dtype in (np.float32, BF16):
        np.testing.assert_array_equal(native.embed(IDS, w, dtype=dtype), reference(IDS, w, dtype=dtype))


def test_an_id_outside_is_the_nearest_row() -> None:
    w = normal(np.random.default_rng(0), 13, 40, dtype=BF16)
    ids = np.array([-(2**31), -1, 13, 2**31 - 1], np.int32)
    np.testing.assert_array_equal(native.embed(ids, w, dtype=np.float32), w[[0, 0, 12, 12]].astype(np.float32))


def test_many_ids_are_shared_out() -> None:
    w = normal(np.random.default_rng(0), 500, 300, dtype=BF16)
    ids = np.random.default_rng(1).integers(0, 500, (3, 700)).astype(np.int32)
    found = jax.jit(lambda ids, w: native.embed(ids, w, dtype=jnp.float32))(ids, w)
    np.testing.assert_array_equal(found, w[ids].astype(np.float32))


def test_no_ids_are_no_rows_and_a_table_without_rows_has_none_to_give() -> None:
    assert native.embed(IDS[:0], np.ones((13, 8), np.float32), dtype=np.float32).shape == (0, 3, 8)
    with pytest.raises(Exception, match="not of shapes that go together"):
        native.embed(IDS, np.ones((0, 8), np.float32), dtype=np.float32)


@pytest.mark.parametrize("stored", [np.float32, BF16])
def test_gradients_are_those_of_xla(stored: type) -> None:
    w = jnp.asarray(normal(np.random.default_rng(0), 13, 20, dtype=stored))

    def loss(w: Any, backend: Any) -> Any:
        return jnp.sum(jnp.sin(backend.embed(IDS, w, dtype=jnp.float32)))

    found, want = (np.asarray(jax.grad(loss)(w, backend)).astype(np.float32) for backend in (native, xla))
    np.testing.assert_array_equal(found, want)
    assert (np.abs(found).max(1) > 0).tolist() == [row in IDS for row in range(13)]
