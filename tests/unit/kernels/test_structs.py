"""Structs of ggml where models multiply by them: in jnp, bit for bit as NumPy decodes them, and by nobody's C++."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.tensors.scheme import INSIDE, STRUCTS, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import HALVES, quantized
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.matmul.reference import values

KINDS = sorted(STRUCTS)


def packed(kind, *shape, seed=0):
    return quantized(Scheme(kind, STRUCTS[kind][0], INSIDE), shape, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_decodes_alike(kind):
    q = packed(kind, 3, 5, 512)
    whole = Kernel("dequantize", ("numpy",))(q, "F32")
    for dtype, jnp_dtype in (("F32", jnp.float32), ("BF16", jnp.bfloat16)):
        expected = Kernel("dequantize", ("numpy",))(q, dtype)
        for backend in ("reference", "xla"):
            assert Kernel("dequantize", (backend,))(q, dtype).tobytes() == expected.tobytes()
        assert np.asarray(jax.jit(decode, static_argnums=1)(q, jnp_dtype)).tobytes() == expected.tobytes()
    assert np.array_equal(Kernel("dequantize", ("numpy",))(q, "F16"), whole.astype(np.float16))


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_factors_are_not_flushed(kind):
    """Every fp16 number of a block is the least subnormal; a value of one step is 2^-24, a normal float32."""
    q = packed(kind, 2, 512)
    blocks = q.codes.reshape(-1, STRUCTS[kind][1])
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = np.frombuffer(np.uint16(1).tobytes(), np.uint8)
    expected = Kernel("dequantize", ("numpy",))(q, "F32")
    assert (expected != 0).mean() > 0.5
    assert np.asarray(jax.jit(decode, static_argnums=1)(q, jnp.float32)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_models_multiply_and_look_up(kind):
    rng = np.random.default_rng(0)
    w, x = packed(kind, 9, 256), rng.standard_normal((4, 256)).astype(np.float32)
    plain = values(w, np.float32)
    found = jax.jit(lambda x, w: Kernel("matmul", ("native", "xla"))(x, w))(x, w)
    assert np.allclose(found, x @ plain.T, rtol=1e-4, atol=1e-4 * np.abs(x @ plain.T).max())
    ids = np.array([[3, 8], [0, 3]], np.int32)
    assert np.array_equal(jax.jit(lambda i, w: Kernel("embed", ("xla",))(i, w, dtype=np.float32))(ids, w), plain[ids])


def test_experts_are_multiplied():
    rng = np.random.default_rng(0)
    w_in, w_out = packed("q4_k", 3, 256, 256), packed("q6_k", 3, 7, 256, seed=1)
    x, chosen = rng.standard_normal((5, 256)).astype(np.float32), rng.integers(0, 3, (5, 2)).astype(np.int32)
    weights = rng.random((5, 2)).astype(np.float32)
    args = (x, chosen, weights, (w_in,), (None,), w_out, None)
    found, expected = (
        np.asarray(Kernel("moe", (backend,))(*args, activation=jnp.tanh)) for backend in ("xla", "reference")
    )
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def test_the_cpp_says_that_it_takes_none_apart():
    spec = TensorSpec((4, 256), "BF16", Scheme("q4_k", 256, INSIDE))
    for op, name in (("matmul", "w"), ("dequantize", "q")):
        choice = Kernel(op, ("native",)).choose({name: spec})
        assert choice.backend is None
        assert "q4_k is a struct of ggml, which the C++ does not take apart" in choice.reasons
