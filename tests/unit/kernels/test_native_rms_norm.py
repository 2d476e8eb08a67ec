"""rms_norm in C++: every instruction set near the definition, whatever is stored; its gradient is XLA's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.kernels.cases import BF16, normal
from plugins.kernels.rms_norm import native, xla
from plugins.kernels.rms_norm.reference import rms_norm as reference
from tests.cases.native import needs_compiler

pytestmark = needs_compiler


@pytest.mark.parametrize("of_weight", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
def test_rows_of_any_length(isa: str, dtype: type, of_weight: type) -> None:
    rng = np.random.default_rng(0)
    for n in (1, 7, 16, 37, 2880):
        x, weight = normal(rng, 3, 13, n, dtype=dtype), normal(rng, n, dtype=of_weight)
        want = reference(x, weight, eps=1e-5).astype(np.float64)
        found = np.asarray(native.rms_norm(x, weight, eps=1e-5)).astype(np.float64)
        most = {np.float32: 2.0**-21, BF16: 2.0**-7, np.float16: 2.0**-10}[dtype]
        assert (np.abs(found - want) <= most * np.abs(want)).all()


def test_many_rows_are_shared_out_and_equal_to_each_by_itself() -> None:
    x, weight = normal(np.random.default_rng(0), 200, 600), normal(np.random.default_rng(1), 600)
    found = np.asarray(jax.jit(lambda x: native.rms_norm(x, weight, eps=1e-5))(x))
    for row, y in zip(x, found, strict=True):
        np.testing.assert_array_equal(native.rms_norm(row, weight, eps=1e-5), y)


def test_what_is_not_finite_stays_in_its_row(isa: str) -> None:
    x = np.ones((3, 40), np.float32)
    x[1, 7] = np.nan
    found = np.asarray(native.rms_norm(x, np.ones(40, np.float32), eps=1e-5))
    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2]]).all()


def test_nothing_is_nothing() -> None:
    assert native.rms_norm(np.ones((0, 8), np.float32), np.ones(8, np.float32), eps=1e-5).shape == (0, 8)


@pytest.mark.parametrize("plus_one", [False, True])
def test_gradients_are_those_of_xla(plus_one: bool) -> None:
    x, weight = normal(np.random.default_rng(0), 2, 3, 20), normal(np.random.default_rng(1), 20)

    def loss(backend: Any, x: Any, weight: Any) -> Any:
        return jnp.sum(jnp.sin(backend.rms_norm(x, weight, eps=1e-5, plus_one=plus_one)))

    for of in (0, 1):
        found, want = (jax.grad(lambda *args, b=b: loss(b, *args), of)(x, weight) for b in (native, xla))
        np.testing.assert_array_equal(found, want)
        assert np.abs(found).max() > 0
