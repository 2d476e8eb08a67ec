"""What is added to weights: products and gradients are those of the sum as one dense matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import quantized
from plugins.kernels.cases import SCHEMES
from plugins.kernels.dequantize.traced import decode
from plugins.models.common.ops import Ops
from plugins.train.adapters import Adapted, MatMul, MoE, adapting

EXPERTS, RANK, IN, INNER, TOKENS, CHOSEN = 5, 3, 64, 128, 11, 2


def normal(i: int, *shape: int, scale: float = 1.0) -> Any:
    return jax.random.normal(jax.random.key(i), shape) * scale


def packed(name: str, *shape: int) -> QTensor:
    q = quantized(SCHEMES[name], shape)
    return QTensor(scheme=q.scheme, **{n: jnp.asarray(a) for n, a in q.components.items()})


def dense(w: Adapted) -> Any:
    """The sum, which the ops never make."""
    base = decode(w.base, jnp.float32) if isinstance(w.base, QTensor) else w.base
    if w.a.ndim == 2:
        return base + w.scale * w.b @ w.a
    return base + w.scale * jnp.einsum("ore,eri->eoi", w.b, w.a)


def close(found: Any, expected: Any) -> None:
    """And nothing of it all zero."""
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        most = np.abs(theirs).max()
        assert most > 0
        np.testing.assert_allclose(mine / most, theirs / most, atol=2e-5)


def kernel(kind: Callable[..., Any], backend: str) -> Any:
    return kind("matmul" if kind is MatMul else "moe", (backend,))


@pytest.mark.parametrize("backend", ["xla", "native"])
@pytest.mark.parametrize("scheme", [None, "mxfp4", "nf4 twice", "q4_1"])
@pytest.mark.brief
def test_matmul_and_its_gradients(scheme: str | None, backend: str) -> None:
    shape = (10, INNER)
    w = Adapted(
        normal(0, *shape) if scheme is None else packed(scheme, *shape),
        normal(1, RANK, shape[1]), normal(2, shape[0], RANK), scale=0.7,
    )  # fmt: skip
    x, bias = normal(3, 2, 4, shape[1]), normal(4, shape[0])
    op = kernel(MatMul, backend)

    def found(x: Any, a: Any, b: Any, bias: Any) -> Any:
        adapted = Adapted(w.base, a, b, scale=w.scale)
        return op(x, adapted, bias), op.together((x, adapted, bias), (x, w.base, None))

    def expected(x: Any, a: Any, b: Any, bias: Any) -> Any:
        adapted = Adapted(w.base, a, b, scale=w.scale)
        one = jnp.einsum("nti,oi->nto", x, dense(adapted), precision="highest") + bias.reshape(1, 1, -1)
        return one, [one, jnp.einsum("nti,oi->nto", x, dense(Adapted(w.base, a, 0 * b)), precision="highest")]

    @partial(jax.jit, static_argnums=0)
    def both(f: Any, *args: Any) -> Any:
        y, turn = jax.vjp(f, *args)
        return y, turn(jax.tree.map(lambda a: normal(9, *a.shape), y))

    close(*(both(f, x, w.a, w.b, bias) for f in (found, expected)))


@pytest.mark.parametrize("backend", ["xla", "native"])
@pytest.mark.parametrize("scheme", [None, "mxfp4"])
@pytest.mark.brief("mxfp4-native")
def test_experts_and_their_gradients(scheme: str | None, backend: str) -> None:
    """One projection adapted and one not, a choice of weight 0, an expert that nobody chose."""
    shapes = {"gate": (EXPERTS, INNER, IN), "up": (EXPERTS, INNER, IN), "down": (EXPERTS, IN, INNER)}
    base = {n: normal(i, *s, scale=s[-1] ** -0.5) if scheme is None else packed(scheme, *s)
            for i, (n, s) in enumerate(shapes.items())}  # fmt: skip
    trained = {
        n: (normal(3, EXPERTS, RANK, shapes[n][2], scale=0.3), normal(4, shapes[n][1], RANK, EXPERTS, scale=0.3))
        for n in ("gate", "down")
    }
    x = normal(5, TOKENS, IN)
    chosen = jax.random.randint(jax.random.key(6), (TOKENS, CHOSEN), 0, EXPERTS - 1)
    share = jax.nn.softmax(normal(7, TOKENS, CHOSEN)).at[3, 1].set(0.0)
    bias = normal(8, EXPERTS, INNER)

    def weights(trained: Any) -> dict[str, Any]:
        return {n: Adapted(w, *trained[n], scale=0.5) if n in trained else w for n, w in base.items()}

    def act(gate: Any, up: Any) -> Any:
        return jax.nn.silu(gate) * jnp.tanh(up)

    def found(trained: Any, x: Any, share: Any, bias: Any) -> Any:
        w = weights(trained)
        op = kernel(MoE, backend)
        y = op(x, chosen, share, (w["gate"], w["up"]), (bias, None), w["down"], None, activation=act)
        return jnp.square(y).sum()

    def expected(trained: Any, x: Any, share: Any, bias: Any) -> Any:
        w = {n: dense(v if isinstance(v, Adapted) else Adapted(v, jnp.zeros((EXPERTS, 1, v.shape[2])),
                                                               jnp.zeros((v.shape[1], 1, EXPERTS))))
             for n, v in weights(trained).items()}  # fmt: skip
        gate = jnp.einsum("ni,nkoi->nko", x, w["gate"][chosen], precision="highest") + bias[chosen]
        up = jnp.einsum("ni,nkoi->nko", x, w["up"][chosen], precision="highest")
        y = jnp.einsum("nki,nkoi->nko", act(gate, up), w["down"][chosen], precision="highest")
        return jnp.square((y * share[:, :, None]).sum(axis=1)).sum()

    args = (trained, x, share, bias)
    (y, mine), (reference, theirs) = (
        jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2, 3)))(*args) for f in (found, expected)
    )
    np.testing.assert_allclose(y, reference, rtol=1e-5)
    assert mine[2][3, 1] == 0  # that of a weight of 0, as the op says
    close((*mine[:2], mine[2].at[3, 1].set(0), mine[3]), (*theirs[:2], theirs[2].at[3, 1].set(0), theirs[3]))


def test_what_was_dropped_is_not_seen_and_the_rest_is_scaled_up() -> None:
    x = normal(0, 4, 1000)
    w = Adapted(jnp.zeros((6, 1000)), normal(1, RANK, 1000), normal(2, 6, RANK), jax.random.key(3), dropout=0.25)
    kept = w.seen(x) / x
    np.testing.assert_allclose(kept, np.where(kept == 0, 0, 4 / 3), rtol=1e-6)
    assert 0.2 < (kept == 0).mean() < 0.3
    op = kernel(MatMul, "xla")
    np.testing.assert_allclose(op(x, w), w.seen(x) @ w.a.T @ w.b.T, rtol=1e-3, atol=1e-2)


def test_ops_without_adapters_are_what_they_were() -> None:
    plain = Ops(
        *(Kernel(op, ("xla",), "cpu") for op in ("matmul", "embed", "moe", "attention", "softmax", "rms_norm", "rope"))
    )
    found = adapting(plain)
    assert found == adapting(plain)
    assert hash(found) == hash(adapting(plain))
    assert found.on("tpu").matmul.platform == "tpu"
    assert isinstance(found.on("tpu").matmul, MatMul)
    x, w = normal(0, 3, 8), normal(1, 5, 8)
    np.testing.assert_array_equal(found.matmul(x, w), plain.matmul(x, w))
