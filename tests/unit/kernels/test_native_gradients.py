"""The products of gradients in C++: any rows, columns and choices under every instruction set, within the error of a
float32 sum; and the gradients of ops beside the contract's cases."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plugins.kernels.attention import native as attention
from plugins.kernels.attention.cases import in_float64
from plugins.kernels.cases import BF16, normal
from plugins.kernels.matmul import native as matmul
from plugins.kernels.moe import native as moe
from plugins.kernels.moe import xla_gradient as moe_xla
from plugins.kernels.moe.cases import interleaved
from plugins.kernels.native import gradients
from tests.cases.native import needs_compiler

pytestmark = needs_compiler

# assignments, rows that dy and x have, out, in: no even tile, past a block of what is summed, past one of columns
SHAPES = {
    "one": (1, 1, 1, 1, 1),
    "no even tile": (37, 37, 37, 45, 50),
    "long sums": (600, 600, 600, 270, 33),
    "wide": (20, 20, 20, 19, 401),
    "some of a row": (24, 12, 8, 30, 31),
}


def near(found: Any, want: Any, bound: Any, terms: int) -> None:
    assert (np.abs(np.asarray(found) - want) <= bound * 2.0**-24 * (4 + 2 * np.sqrt(terms)) + 1e-30).all()


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.brief(each=("isa", "shape"))
def test_sums_of_any_shape(isa: str, shape: str, dtype: Any) -> None:
    """Of experts too, of which one is nobody's choice, and of choices that are none."""
    count, of_dy, of_x, out, n_in = SHAPES[shape]
    rng = np.random.default_rng(count)
    expert = rng.choice([-1, 0, 2, 3], count).astype(np.int32)
    dy, x = normal(rng, of_dy, out, dtype=dtype), normal(rng, of_x, n_in, dtype=dtype)
    ws = [normal(rng, 4, out, n_in, dtype=dtype) for _ in range(2)]
    wide_dy = np.repeat(dy, count // of_dy, axis=0).astype(np.float64)
    wide_x = np.repeat(x, count // of_x, axis=0).astype(np.float64)
    live = (expert >= 0)[:, None]

    held = sum(w.astype(np.float64) for w in ws)[np.maximum(expert, 0)]
    want = np.einsum("ao,aoi->ai", wide_dy * live, held)
    bound = np.einsum("ao,aoi->ai", np.abs(wide_dy), sum(np.abs(w.astype(np.float64)) for w in ws)[expert])
    near(gradients.input_gradient([dy, dy], ws, expert), want, bound, 2 * out)

    chose = (expert[:, None] == np.arange(4)).astype(np.float64)
    dw, db = gradients.weight_gradient(dy, x, expert, 4)
    bound = np.einsum("ae,ao,ai->eoi", chose, np.abs(wide_dy), np.abs(wide_x))
    near(dw, np.einsum("ae,ao,ai->eoi", chose, wide_dy, wide_x), bound, count)
    near(db, chose.T @ wide_dy, chose.T @ np.abs(wide_dy), count)


def test_a_row_of_no_choice_may_be_anything() -> None:
    rng = np.random.default_rng(0)
    dy, x, w = normal(rng, 3, 5), normal(rng, 3, 4), normal(rng, 2, 5, 4)
    dy[1], x[1] = np.nan, np.inf
    expert = np.array([0, -1, 1], np.int32)
    assert (np.asarray(gradients.input_gradient([dy], [w], expert))[1] == 0).all()
    assert all(np.isfinite(d).all() for d in gradients.weight_gradient(dy, x, expert, 2))


def test_bits_do_not_depend_on_who_computes_them() -> None:
    rng = np.random.default_rng(0)
    dy, x, expert = normal(rng, 900, 300), normal(rng, 900, 70), rng.integers(0, 5, 900).astype(np.int32)
    w = normal(rng, 5, 300, 70)
    both = jax.jit(
        lambda dy, x: (gradients.input_gradient([dy], [w], expert), *gradients.weight_gradient(dy, x, expert, 5))
    )
    first = [np.asarray(a) for a in both(dy, x)]
    for _ in range(10):
        assert all(map(np.array_equal, first, both(dy, x)))
    alone = gradients.input_gradient([dy[:7]], [w], expert[:7])
    assert np.array_equal(first[0][:7], alone)


def test_ops_take_them_for_plain_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of XLA's: with it out of reach there are gradients still."""
    monkeypatch.setattr(moe_xla, "Schedule", None)
    rng = np.random.default_rng(0)
    x, w = normal(rng, 6, 8), normal(rng, 5, 8)
    program = jax.jit(jax.grad(lambda x, w: matmul.matmul(x, w).sum(), (0, 1))).lower(x, w).as_text()
    assert "wm_input_gradient" in program
    assert "wm_weight_gradient" in program
    chosen, weights = rng.integers(0, 3, (6, 2)).astype(np.int32), np.ones((6, 2), np.float32)
    w_in, w_out = normal(rng, 3, 10, 8), normal(rng, 3, 8, 5)

    def loss(x: Any) -> Any:
        return moe.moe(x, chosen, weights, (w_in,), (None,), w_out, None, activation=interleaved).sum()

    assert np.isfinite(jax.grad(loss)(x)).all()


# batch, tokens, heads, key heads, dims, value dims: past a block of rows, past tiles of slots, no whole vectors
ROWS = {
    "blocks of rows": (2, 90, 6, 2, 16, 16),
    "no whole vectors": (1, 37, 3, 3, 33, 17),
    "one key head, wide": (1, 70, 4, 1, 72, 40),
}


OPTIONS: dict[str, dict[str, Any]] = {
    "": {}, "window": {"window": 20, "softcap": 3.0}, "both ways": {"causal": False, "window": 9}
}  # fmt: skip


@cache
def rows_of_documents(shape: str, documents: int, options: str) -> tuple[Any, ...]:
    """The loss as a function of an attention and its floats, these, and its value and gradients in float64."""
    batch, tokens, heads, key_heads, d, dv = ROWS[shape]
    rng = np.random.default_rng(tokens)
    sizes = ((batch, tokens, heads, d), (batch, tokens, key_heads, d), (batch, tokens, key_heads, dv))
    q, k, v = (normal(rng, *size) for size in sizes)
    sinks = normal(rng, heads)
    cuts = np.sort(rng.choice(np.arange(1, tokens - 3), (documents - 1), replace=False)).tolist()
    at, segments = np.full((batch, tokens), -1, np.int32), np.zeros((batch, tokens), np.int32)
    for i, (start, stop) in enumerate(zip([0, *cuts], [*cuts, tokens - 3], strict=True), 1):
        at[:, start:stop], segments[:, start:stop] = np.arange(stop - start), i
    own = None if documents == 1 else segments
    direction = normal(rng, batch, tokens, heads, dv) * (at >= 0)[:, :, None, None]

    def loss(f: Any, *floats: Any) -> Any:
        q, k, v, sinks = floats
        return (f(q, k, v, at, at, scale=0.2, sinks=sinks, segments=own, **OPTIONS[options]) * direction).sum()

    with jax.enable_x64(True):
        wide = [jnp.asarray(a, jnp.float64) for a in (q, k, v, sinks)]
        want = jax.jit(jax.value_and_grad(lambda *a: loss(in_float64, *a), (0, 1, 2, 3)))(*wide)
    return loss, (q, k, v, sinks), *jax.tree.map(np.asarray, want)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("documents", [1, 4])
@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.brief(each=("isa", "shape"))
def test_attention_of_rows_of_documents(isa: str, shape: str, documents: int, options: str) -> None:
    """Values and gradients; the last tokens of a row are padding."""
    loss, floats, value, gradients = rows_of_documents(shape, documents, options)
    found = jax.jit(jax.value_and_grad(lambda *a: loss(attention.attention, *a), (0, 1, 2, 3)))(*floats)
    np.testing.assert_allclose(found[0], value, rtol=1e-4, atol=1e-3)
    for got, expected in zip(found[1], gradients, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())


def test_packed_keys_leave_queries_a_gradient() -> None:
    """That is XLA's."""
    from pipeline.tensors.scheme import Scheme
    from pipeline.testing.memory import quantized

    rng = np.random.default_rng(0)
    q, at = normal(rng, 1, 3, 2, 8), np.arange(3, dtype=np.int32)[None]
    k, v = (quantized(Scheme("int8", 0, "f32"), (1, 3, 2, 8), seed=i) for i in range(2))
    found = jax.grad(lambda q: attention.attention(q, k, v, at, at, scale=0.01).sum())(q)
    assert np.isfinite(found).all()
    assert (np.asarray(found) != 0).any()
