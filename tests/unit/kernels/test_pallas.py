"""Pallas kernels where there are several blocks of everything, which the corpus is too small for: beside XLA's."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import load
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.memory import quantized
from pipeline.testing.model_op import agree
from plugins.kernels.cases import BF16, SCHEMES, normal, rng_of
from tests.cases.model_runs import quick_compilation


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_compilation():
        yield


def both(op: str, args: tuple[Any, ...], others: tuple[Any, ...], unit: float | None = None, **options: Any) -> None:
    """The same values and gradients with respect to all of `args`, of the call `(*args, *others)`."""

    def of(backend: str) -> tuple[Any, Any]:
        call = load(op, backend)

        def loss(*args: Any) -> Any:
            y = call(*args[:-1], *others, sinks=args[-1], **options)
            return (y * jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)).sum(), y

        (_, y), found = jax.jit(jax.value_and_grad(loss, tuple(range(len(args))), has_aux=True))(*args)
        return y, found

    (expected, ds), (found, got) = of("xla"), of("pallas")
    agree(expected, found)
    for want, gradient in zip(ds, got, strict=True):
        agree(want, gradient, unit=unit)


def test_softmax_of_rows_longer_than_a_step() -> None:
    rng = rng_of("long rows")
    both("softmax", (normal(rng, 20, 3000) * 4, normal(rng, 20, 1)), (), where=rng.random((20, 3000)) < 0.9)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8 a row", "uint4 with zero", "fp8 in tiles"])
def test_matmul_of_several_tiles(name: str) -> None:
    for rows, dtype in ((1, BF16), (70, np.float32)):
        rng = rng_of(f"{name} {rows}")
        x, w = normal(rng, rows, 640, dtype=dtype), quantized(SCHEMES[name], (100, 640), seed=rows)
        agree(load("matmul", "reference")(x, w), jax.jit(load("matmul", "pallas"))(x, w))


def test_the_smallest_scale_is_half_of_the_next() -> None:
    """2^-127, which is subnormal: what it makes of codes of 1 and more is not."""
    codes = np.full((16, 32), 0x44, np.uint8)
    w = QTensor(codes, np.tile(np.array([[0, 1]], np.uint8), (16, 1)), MXFP4)
    x = np.full((1, 64), 2.0**100, np.float32)
    agree(load("matmul", "reference")(x, w), jax.jit(load("matmul", "pallas"))(x, w))


def test_moe_of_several_tiles_and_an_expert_that_nobody_chose() -> None:
    rng = rng_of("tiles of experts")
    x = normal(rng, 150, 320) / 16
    chosen = rng.choice([0, 1, 3], (150, 2)).astype(np.int32)
    weights = rng.uniform(0.1, 1, (150, 2)).astype(np.float32)
    w_in, w_out = quantized(MXFP4, (4, 96, 320)), quantized(MXFP4, (4, 80, 96), seed=1)
    w_in.scales[2] = 0xFF  # NaN, all of it
    args = x, chosen, weights, (w_in,), (None,), w_out, None
    expected, found = (jax.jit(partial(load("moe", b), activation=jnp.tanh))(*args) for b in ("xla", "pallas"))
    assert np.isfinite(found).all()
    agree(expected, found)


@pytest.mark.parametrize("kind", ["window", "ring, soft cap", "left padding"])
@pytest.mark.brief(2)
def test_attention_of_several_blocks(kind: str) -> None:
    """140 rows and 192 slots, 64 of each in a block; blocks that nobody sees may hold anything."""
    rng = rng_of(kind)
    q, k, v, sinks = normal(rng, 1, 70, 4, 16), normal(rng, 1, 192, 2, 16), normal(rng, 1, 192, 2, 16), normal(rng, 4)
    at, slot = np.arange(120, 190, dtype=np.int32)[None], np.arange(192, dtype=np.int32)[None]
    options: dict[str, Any] = {"window": 9}
    unseen = slice(0, 64)
    if kind == "ring, soft cap":
        slot, options, unseen = np.roll(slot, 128, axis=1), {"window": 9, "softcap": 2.0}, slice(128, 192)
    elif kind == "left padding":
        at, slot, options = at - 64, slot - 64, {}
        slot[slot < 0] = -1
    both("attention", (q, k, v, sinks), (), q_positions=at, k_positions=slot, scale=0.3, **options)
    k[:, unseen] = v[:, unseen] = np.nan
    call = partial(load("attention", "pallas"), scale=0.3, **options)
    assert np.isfinite(jax.jit(call)(q, k, v, at, slot, sinks=sinks)).all()
