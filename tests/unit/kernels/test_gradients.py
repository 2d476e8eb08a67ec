"""Gradients of the model ops beside the contract: bands, what has none and says so, and what is kept for them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import Unsupported
from pipeline.ops import Kernel
from pipeline.tensors.spec import dtype_name
from plugins.kernels.cases import BF16, SCHEMES, normal
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.matmul import weights
from plugins.kernels.moe.cases import interleaved
from tests.cases.quantized import quantized

MATMUL, MOE = Kernel("matmul", ("xla",)), Kernel("moe", ("xla",))


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("w_dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", ["plain", "mxfp4", "nvfp4", "fp8 in tiles"])
@pytest.mark.brief(each=("name",))
@pytest.mark.usefixtures("quick_at_first")
def test_bands_have_gradients(monkeypatch: pytest.MonkeyPatch, name: str, w_dtype: Any, dtype: Any) -> None:
    """22 rows in bands of 5 or 6 and a rest; bands of bfloat16 are sliced as integers, constants to JAX."""
    monkeypatch.setattr(weights, "CPU_BAND_NBYTES", 6 * 128 * 4)
    rng = np.random.default_rng(0)
    x = normal(rng, 3, 128, dtype=dtype)
    w = normal(rng, 22, 128, dtype=w_dtype) if name == "plain" else quantized(SCHEMES[name], (22, 128))
    taken = w.astype(dtype) if name == "plain" else Kernel("dequantize", ("numpy",))(w, dtype_name(np.dtype(dtype)))
    taken = taken.astype(np.float32)
    direction = normal(rng, 3, 22)
    loss = lambda x, w: (MATMUL(x, w, out_dtype=jnp.float32) * direction).sum()  # noqa: E731
    unit = 2.0 ** -(5 if BF16 in (dtype, w_dtype) else 18)
    dx = jax.jit(jax.grad(loss))(x, w)
    np.testing.assert_allclose(np.asarray(dx).astype(np.float32), direction @ taken, rtol=unit, atol=unit * 30)
    if name == "plain":
        dw = jax.jit(jax.grad(loss, argnums=1))(x, w)
        assert dw.dtype == w_dtype
        want = direction.T @ x.astype(np.float32)
        np.testing.assert_allclose(np.asarray(dw).astype(np.float32), want, rtol=unit, atol=unit * 5)


@pytest.mark.parametrize("name", ["nvfp4", "int8 a row", "nf4"])
@pytest.mark.usefixtures("quick_at_first")
def test_packed_weights_have_no_gradient(name: str) -> None:
    """Scales are floats, and JAX would say 0."""
    w, x = quantized(SCHEMES[name], (6, 128)), np.ones((2, 128), np.float32)
    loss = lambda w: MATMUL(x, w).sum()  # noqa: E731
    with pytest.raises(Exception, match="has no gradient; differentiate with respect to plain weights"):
        jax.grad(loss, allow_int=True)(w)
    with pytest.raises(Unsupported, match="has no gradient"):
        jax.grad(lambda w: jax.jit(loss)(w), allow_int=True)(w)
    with pytest.raises(Unsupported, match="has no gradient"):
        jax.grad(lambda w: decode(w, jnp.float32).sum(), allow_int=True)(w)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.brief("True")
@pytest.mark.usefixtures("quick_at_first")
def test_there_is_a_first_derivative_only(jitted: bool) -> None:
    rng = np.random.default_rng(0)
    x, chosen, weight = normal(rng, 3, 8), np.zeros((3, 1), np.int32), np.ones((3, 1), np.float32)
    w_in, w_out = normal(rng, 2, 8, 8), normal(rng, 2, 4, 4)
    for loss in (
        lambda x: (MATMUL(x, w_in[0]) ** 2).sum(),
        lambda x: MOE(x, chosen, weight, (w_in,), (None,), w_out, None, activation=interleaved).sum(),
    ):
        loss = jax.jit(loss) if jitted else loss
        assert np.isfinite(jax.grad(loss)(x)).all()
        with pytest.raises(Unsupported, match="first derivative only"):
            jax.grad(lambda x, loss=loss: jax.grad(loss)(x).sum())(x)
        with pytest.raises(TypeError, match="custom_vjp"):
            jax.jvp(loss, (x,), (x,))


def test_a_backward_pass_keeps_nothing_decoded() -> None:
    """What XLA sets aside for value and gradient of a packed matrix is some bands; decoded it has 63 MiB."""
    from pipeline.tensors.scheme import MXFP4
    from tests.unit.kernels.test_matmul import shaped

    loss = lambda x, w: (MATMUL(x, w).astype(jnp.float32) ** 2).sum()  # noqa: E731
    call = jax.jit(jax.value_and_grad(loss))
    sizes = call.lower(jax.ShapeDtypeStruct((16, 2880), jnp.float32), shaped(MXFP4, (5760, 2880))).compile()
    assert sizes.memory_analysis().temp_size_in_bytes < 24 << 20
