"""Gradients of the model ops: every case of the corpus against float64, and what has no gradient says so."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.backends import DEFINITION, load
from pipeline.errors import Unsupported
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import dtype_name
from pipeline.testing.kernel import Case
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.matmul import weights
from tests.cases import gradients
from tests.cases.ops import BF16, SCHEMES, interleaved, normal
from tests.cases.quantized import quantized
from tests.unit.kernels.test_definitions import ALL

MATMUL, MOE = Kernel("matmul", ("xla",)), Kernel("moe", ("xla",))


def is_float(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype in (np.float32, BF16)


def taken_apart(op: str, case: Case) -> tuple[list[Any], Callable[..., Any], Callable[..., Any]]:
    """The float arrays of a call, and functions of them: how to call anything with them, packed or decoded."""
    arrays = {k: v for k, v in case.options.items() if isinstance(v, np.ndarray)}
    static = {k: v for k, v in case.options.items() if k not in arrays}
    leaves, tree = jax.tree.flatten((case.args, arrays), is_leaf=lambda leaf: isinstance(leaf, QTensor))
    at = [i for i, leaf in enumerate(leaves) if is_float(leaf)]
    if op == "rope":
        at = at[:1]  # the frequencies are constants

    def called(call: Callable[..., Any], others: Callable[[Any], Any], floats: list[Any]) -> Any:
        filled = [others(leaf) for leaf in leaves]
        for i, value in zip(at, floats, strict=True):
            filled[i] = value
        args, options = jax.tree.unflatten(tree, filled)
        return call(*args, **options, **static)

    return [leaves[i] for i in at], called, partial(dense, dtype="F32" if leaves[at[0]].dtype == np.float32 else "BF16")


def dense(leaf: Any, dtype: str) -> Any:
    """A packed tensor as the values that an op takes it for, in float64; float arrays in float64 too."""
    if isinstance(leaf, QTensor):
        leaf = Kernel("dequantize", ("numpy",))(leaf, dtype)
    return np.asarray(leaf).astype(np.float64) if np.asarray(leaf).dtype.kind in "fV" else leaf


def close(want: Any, got: Any, dtype: Any) -> None:
    """Within a few roundings of the dtype, at the size of the largest value."""
    unit = 2.0 ** -(6 if dtype == BF16 else 18)
    want, got = (np.asarray(a).astype(np.float64) for a in (want, got))
    np.testing.assert_allclose(got, want, rtol=unit * 4, atol=unit * 4 * max(np.abs(want).max(initial=0), 1e-6))


# Looking up rows of packed weights takes no floats.
WITH_FLOATS = [p for p in ALL if any(is_float(leaf) for leaf in p.values[1].args)]


@pytest.mark.parametrize(("op", "case", "backend"), WITH_FLOATS)
def test_gradients_are_those_of_float64(op: str, case: Case, backend: str) -> None:
    floats, called, others = taken_apart(op, case)
    definition = getattr(gradients, op)
    reference = load(op, DEFINITION)(*case.args, **case.options)
    direction = normal(np.random.default_rng(0), *reference.shape, dtype=reference.dtype)
    with jax.enable_x64(True):
        wide = [np.asarray(f).astype(np.float64) for f in floats]
        y, pull = jax.vjp(jax.jit(lambda floats: called(definition, others, floats)), wide)
        close(np.asarray(y), reference, reference.dtype)
        expected = jax.tree.map(np.asarray, pull(jnp.asarray(direction.astype(np.float64)))[0])

    def narrow(floats: list[Any]) -> Any:
        y = called(load(op, backend), lambda leaf: leaf, floats)
        return (y.astype(jnp.float32) * jnp.asarray(direction, jnp.float32)).sum()

    found = jax.jit(jax.grad(narrow))(floats)
    for want, got, given in zip(expected, found, floats, strict=True):
        assert got.dtype == given.dtype
        assert got.shape == want.shape
        close(want, got, BF16 if BF16 in (given.dtype, reference.dtype) else np.float32)


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("w_dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", ["plain", "mxfp4", "nvfp4", "fp8 in tiles"])
def test_bands_have_gradients(monkeypatch: pytest.MonkeyPatch, name: str, w_dtype: Any, dtype: Any) -> None:
    """22 rows in bands of 5 or 6 and a rest; bands of bfloat16 are sliced as integers, constants to JAX."""
    monkeypatch.setattr(weights, "CPU_BAND_NBYTES", 6 * 128 * 4)
    rng = np.random.default_rng(0)
    x = normal(rng, 3, 128, dtype=dtype)
    w = normal(rng, 22, 128, dtype=w_dtype) if name == "plain" else quantized(SCHEMES[name], (22, 128))
    taken = w.astype(dtype).astype(np.float32) if name == "plain" else dense(w, dtype_name(np.dtype(dtype)))
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
