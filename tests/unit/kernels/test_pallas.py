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
from pipeline.tensors.scheme import MXFP4, Scheme
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
@pytest.mark.brief("ring, soft cap")
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


SLOTS = 1024  # four parts of a step of decoding, of 256 each
STEPS: dict[str, dict[str, Any]] = {
    "full": {},
    "ring": {"window": 1000, "softcap": 2.0},
    "a window in one part": {"window": 60},
    "filled in part": {},
    "few slots": {"softcap": 1.5},
    "nothing to see": {},
    "int8": {"window": 700},
    "e4m3": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("sinks", [True, False], ids=["sinks", "no sinks"])
@pytest.mark.brief(each=("kind",))
def test_a_step_of_decoding_divides_a_long_cache(kind: str, sinks: bool) -> None:
    """Of two sequences; the parts of one of them are empty, or end before they are full."""
    rng = rng_of(kind)
    options: dict[str, Any] = {**STEPS[kind], "scale": 0.3, "sinks": normal(rng, 4) if sinks else None}
    shape = (2, SLOTS, 2, 16)
    q, k, v = normal(rng, 2, 1, 4, 16), normal(rng, *shape), normal(rng, *shape)
    slot = np.tile(np.arange(SLOTS, dtype=np.int32), (2, 1))
    at = np.array([[SLOTS - 1], [300]], np.int32)
    if kind == "ring":  # one has gone round, the other has not yet
        slot[0], at[0] = np.roll(slot[0], 300) + 5000, SLOTS - 1 + 5000
    elif kind == "filled in part":
        slot[:, 600:] = slot[1, 301:] = -1
        at[0] = 599
    elif kind == "few slots":
        slot[0, 3:] = slot[1, 70:] = -1
        at[:] = [[2], [69]]
    elif kind == "nothing to see":
        slot[0] = -1
    elif kind in ("int8", "e4m3"):
        k, v = (quantized(Scheme(kind, 0, "f32"), shape, seed=i) for i in range(2))
        options["scale"] = 0.003
    if not isinstance(k, QTensor):
        unseen = (slot < 0) | (slot > at)
        k[unseen], v[unseen] = 1e4, 1e4  # what must not count
    call = partial(load("attention", "pallas"), **options)
    args = q, k, v, at, slot
    assert str(jax.make_jaxpr(call)(*args)).count("GridMapping(grid=(2, 2, 4)")
    agree(load("attention", "reference")(*args, **options), jax.jit(call)(*args))


def test_gradients_through_a_divided_cache() -> None:
    rng = rng_of("divided")
    q, k, v, sinks = normal(rng, 1, 1, 4, 16), normal(rng, 1, 600, 2, 16), normal(rng, 1, 600, 2, 16), normal(rng, 4)
    at, slot = np.array([[500]], np.int32), np.arange(600, dtype=np.int32)[None]
    both("attention", (q, k, v, sinks), (), q_positions=at, k_positions=slot, scale=0.3)
