"""attention in C++: every instruction set, every form of a cache, and parts of long ones; cases are the contract's."""

import platform
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.model_op import agree
from plugins.kernels.attention import native
from plugins.kernels.attention.cases import cases
from plugins.kernels.attention.reference import attention as reference
from plugins.kernels.cases import normal
from plugins.kernels.native import build, library
from plugins.kernels.quantize.reference import quantize
from tests.cases.native import needs_compiler

pytestmark = needs_compiler


def cached(
    batch: int, queries: int, slots: int, heads: int, key_heads: int, d: int, dv: int, held: int
) -> tuple[Any, ...]:
    """The last `queries` of `held` tokens, in slots that are out of order, behind empty ones."""
    rng = np.random.default_rng(slots)
    q, k, v = normal(rng, batch, queries, heads, d), normal(rng, batch, slots, key_heads, d), None
    v = normal(rng, batch, slots, key_heads, dv)
    slot = np.full((batch, slots), -1, np.int32)
    for b in range(batch):
        slot[b, rng.permutation(slots)[:held]] = np.arange(held)
    at = np.tile(np.arange(held - queries, held, dtype=np.int32), (batch, 1))
    return q, k, v, at, slot


# batch, queries, slots, heads, key heads, dims, value dims, tokens held
SHAPES = {
    "one key head": (1, 1, 70, 5, 1, 40, 72, 69),
    "no groups": (2, 1, 130, 3, 3, 16, 16, 129),
    "a long cache": (1, 1, 2500, 8, 2, 16, 24, 2300),
    "some queries": (2, 7, 96, 6, 2, 33, 17, 90),
    "two queries of a long cache": (2, 2, 900, 9, 3, 33, 40, 850),
    "as many rows as are few": (1, 2, 150, 12, 3, 20, 40, 140),
    "one row more": (1, 3, 150, 9, 3, 20, 24, 140),
    "blocks of rows": (1, 45, 200, 12, 2, 16, 8, 150),
    "dims of large models": (1, 2, 65, 4, 2, 256, 128, 65),
}


@pytest.mark.parametrize("options", [{}, {"window": 50, "softcap": 3.0}], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_gives_what_the_definition_gives(isa: str, shape: str, options: dict[str, Any]) -> None:
    args = cached(*SHAPES[shape])
    sinks = normal(np.random.default_rng(1), args[0].shape[2])
    found = jax.jit(partial(native.attention, scale=0.3, **options))(*args, sinks=sinks)
    agree(reference(*args, scale=0.3, sinks=sinks, **options), found)


@pytest.mark.parametrize("dims", [(64, 64), (40, 24)], ids=str)
@pytest.mark.parametrize("held", ["float32", "bfloat16"])
def test_a_prompt_gives_what_the_definition_gives(isa: str, held: str, dims: tuple[int, int]) -> None:
    """Slots in order, of which early ones are seen by all rows of a block; a NaN by those that come after it alone."""
    q, k, v, _, _ = cached(2, 150, 160, 6, 2, *dims, 150)
    at = np.tile(np.arange(150, dtype=np.int32), (2, 1))
    slot = np.pad(at, ((0, 0), (0, 10)), constant_values=-1)
    k, v = k.astype(held), v.astype(held)
    k[1, 0, 0] = k[1, 100, 1] = np.nan
    for options in ({}, {"window": 90}):
        found = np.asarray(native.attention(q, k, v, at, slot, scale=0.3, **options))
        agree(reference(q[:1], k[:1], v[:1], at[:1], slot[:1], scale=0.3, **options), jnp.asarray(found[:1]))
        sees = np.zeros((150, 6), bool)
        sees[: options.get("window"), :3] = sees[100:, 3:] = True
        assert np.array_equal(np.isnan(found[1]).any(-1), sees)
        assert np.array_equal(np.isnan(found[1]).all(-1), sees)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.name)
def test_every_instruction_set_does_every_case(isa: str, case: Any) -> None:
    agree(reference(*case.args, **case.options), native.attention(*case.args, **case.options))


@pytest.mark.parametrize("queries", [1, 9], ids=["few rows", "rows"])
@pytest.mark.parametrize("held", ["bfloat16", "int8", "e4m3"])
def test_a_cache_is_read_as_it_is(isa: str, held: str, queries: int) -> None:
    """Every code, at its exact worth."""
    q, _, _, at, slot = cached(1, queries, 80, 4, 2, 32, 32, 77)
    rng = np.random.default_rng(2)

    def stored() -> Any:
        if held == "bfloat16":
            return normal(rng, 1, 80, 2, 32).astype(ml_dtypes.bfloat16)
        codes = np.resize(rng.permutation(256), (1, 80, 2, 32)).astype(np.uint8)
        codes[codes & 0x7F == 0x7F] = 0
        scales = rng.uniform(0.001, 0.002, (1, 80, 2, 1)).astype(np.float32)
        return QTensor(codes, scales, Scheme(held, 0, "f32"))

    k, v = stored(), stored()
    agree(reference(q, k, v, at, slot, scale=0.3), jax.jit(partial(native.attention, scale=0.3))(q, k, v, at, slot))


def test_nan_stays_nan_where_it_is_seen(isa: str) -> None:
    q, k, v, at, slot = cached(1, 2, 70, 2, 2, 16, 16, 66)
    k[0, np.flatnonzero(slot[0] == 65)[0], 1, 3] = np.nan  # the last query alone sees it, and one of two heads
    found = np.asarray(native.attention(q, k, v, at, slot, scale=0.3))
    assert [bool(np.isnan(found[0, t, h]).all()) for t in (0, 1) for h in (0, 1)] == [False, False, False, True]
    assert np.isfinite(found[0, 0]).all()


@pytest.mark.parametrize("queries", [1, 40], ids=["few rows", "rows"])
def test_logits_of_minus_infinity_weigh_nothing(isa: str, queries: int) -> None:
    """Though all that comes first has them."""
    q, k, v, _, _ = cached(1, queries, 150, 2, 2, 16, 16, 150)
    at, slot = np.arange(150 - queries, 150, dtype=np.int32)[None], np.arange(150, dtype=np.int32)[None]
    q, k[0, :64] = np.abs(q), -np.inf
    found = native.attention(q, k, v, at, slot, scale=0.3)
    agree(reference(q, k[:, 64:], v[:, 64:], at, slot[:, 64:], scale=0.3), found)


def test_what_is_hidden_is_not_read() -> None:
    q, k, v, at, slot = cached(1, 1, 300, 4, 2, 16, 16, 200)
    want = native.attention(q, k, v, at, slot, scale=0.3, window=90)
    hidden = (slot[0] < 0) | (slot[0] <= 199 - 90)
    k[0, hidden], v[0, hidden] = np.nan, np.nan
    assert np.array_equal(want, native.attention(q, k, v, at, slot, scale=0.3, window=90))


def test_numbers_do_not_depend_on_the_rest_of_the_cache_or_on_threads() -> None:
    args = cached(1, 1, 3000, 8, 2, 64, 64, 2900)
    call = jax.jit(partial(native.attention, scale=0.1))
    first = np.asarray(call(*args))
    for _ in range(10):
        assert np.array_equal(first, call(*args))
    q, k, v, at, slot = args
    longer = [np.pad(a, ((0, 0), (0, 500), (0, 0), (0, 0))) for a in (k, v)]
    assert np.array_equal(first, call(q, *longer, at, np.pad(slot, ((0, 0), (0, 500)), constant_values=-1)))


def test_a_cache_of_bfloat16_that_is_written_at_every_step_is_not_copied() -> None:
    """XLA writes into the integers that it lies in as, and makes no bfloat16 of them."""
    held = jnp.zeros((1, 48, 2, 16), jnp.uint16)
    q, new = jnp.ones((1, 1, 4, 16), jnp.bfloat16), jnp.ones((2, 16), jnp.bfloat16)

    def steps(held: Any) -> Any:
        def step(at: Any, state: Any) -> Any:
            held, x = state
            held = held.at[0, at].set(jax.lax.bitcast_convert_type(new, jnp.uint16))
            kv = jax.lax.bitcast_convert_type(held, jnp.bfloat16)
            seen = jnp.where(jnp.arange(48) <= at, jnp.arange(48), -1)[None]
            return held, native.attention(x, kv, kv, jnp.full((1, 1), at), seen, scale=0.25)

        return jax.lax.fori_loop(0, 8, step, (held, q))

    program = jax.jit(steps, donate_argnums=0).lower(held).compile().as_text()
    assert "u16[1,48,2,16]" in program
    assert "bf16[1,48,2,16]" not in program
    np.testing.assert_array_equal(steps(held)[1], np.ones((1, 1, 4, 16)))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="what x86 calls it")
def test_a_step_asks_for_what_it_reads_next() -> None:
    """A function that does nothing else is left out by compilers: to them it does nothing."""
    prefetches = build.library("attention", library.isa()).read_bytes().count(b"\x0f\x18")
    assert prefetches >= len(("float32", "bfloat16", "e4m3", "int8")) * 8  # rows that are few


def test_vmap_is_a_call_each() -> None:
    q, k, v, at, slot = cached(3, 1, 40, 4, 2, 16, 16, 30)
    call = partial(native.attention, scale=0.3)
    found = jax.vmap(call)(*(a[:, None] for a in (q, k, v, at, slot)))
    np.testing.assert_array_equal(found[:, 0], call(q, k, v, at, slot))


def test_what_it_cannot_read_it_declines() -> None:
    kernel = Kernel("attention", ("native", "xla"))
    q, k, v, at, slot = cached(1, 1, 40, 4, 2, 32, 32, 30)
    assert kernel.resolve(q, k, v, at, slot, scale=1.0).backend == "native"
    assert "F16" in kernel.resolve(q, k.astype(np.float16), v.astype(np.float16), at, slot, scale=1.0).reasons
    assert "lie differently" in kernel.resolve(q, k, v.astype(ml_dtypes.bfloat16), at, slot, scale=1.0).reasons
    packed = quantize(k, MXFP4)
    choice = kernel.resolve(q, packed, packed, at, slot, scale=1.0)
    assert (choice.backend, "one f32 scale a head" in choice.reasons) == ("xla", True)
    found = kernel(q, packed, packed, at, slot, scale=0.3)
    agree(reference(q, packed, packed, at, slot, scale=0.3), jnp.asarray(found))
