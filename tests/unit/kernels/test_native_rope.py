"""rope in C++: every instruction set near the definition, however far positions are and however many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.kernels.cases import BF16, normal
from plugins.kernels.rope import native, xla
from plugins.kernels.rope.reference import rope as reference
from tests.cases.native import needs_compiler

pytestmark = needs_compiler

INV_FREQ = (10000.0 ** (-np.arange(13) / 13)).astype(np.float32)  # no whole vector of them


@pytest.mark.parametrize("dtype", [np.float32, BF16, np.float16])
@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_near_and_far(isa: str, interleaved: bool, dtype: type) -> None:
    rng = np.random.default_rng(0)
    x, at = normal(rng, 2, 300, 3, 30, dtype=dtype), rng.integers(-1, 2 ** rng.integers(1, 20, (2, 300)))
    want = reference(x, at, INV_FREQ, concentration=1.3, interleaved=interleaved).astype(np.float64)
    found = np.asarray(native.rope(x, at, INV_FREQ, concentration=1.3, interleaved=interleaved)).astype(np.float64)
    most = {np.float32: 2.0**-22, BF16: 2.0**-8, np.float16: 2.0**-10}[dtype] * np.abs(want).max()
    assert np.abs(found - want).max() <= most
    assert (found[..., 26:] == x[..., 26:].astype(np.float64)).all()


def test_what_there_is_none_of() -> None:
    assert native.rope(np.ones((2, 0, 3, 8), np.float32), np.ones((2, 0), np.int32), INV_FREQ[:2]).shape == (2, 0, 3, 8)
    x = normal(np.random.default_rng(0), 1, 2, 3, 8)
    assert np.array_equal(native.rope(x, np.ones((1, 2), np.int32), INV_FREQ[:0]), x)


def test_gradients_are_those_of_xla() -> None:
    x, at = normal(np.random.default_rng(0), 1, 4, 2, 8), np.array([[0, 3, 9, 70]])

    def of(backend: object, x: object, inv_freq: object) -> object:
        return jnp.sum(jnp.sin(backend.rope(x, at, inv_freq)))  # type: ignore[attr-defined]

    for i in (0, 1):
        found, want = (jax.grad(lambda *a, b=b: of(b, *a), i)(x, INV_FREQ[:4]) for b in (native, xla))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
