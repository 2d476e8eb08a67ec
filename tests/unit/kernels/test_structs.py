"""Structs of ggml where models multiply by them: in jnp and in C++, bit for bit as NumPy decodes them."""

import itertools

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import INSIDE, STRUCT_HALVES, STRUCTS, Scheme
from pipeline.testing.memory import quantized
from plugins.kernels.cases import BF16, normal
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.matmul.reference import values
from plugins.kernels.native import ffi, library
from tests.cases.native import BEST, instruction_set, needs_compiler

KINDS = sorted(STRUCTS)


@pytest.fixture(params=(*library.ISAS, BEST))
def isa(request, monkeypatch):
    return instruction_set(request.param, monkeypatch)


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
    for at in STRUCT_HALVES[kind]:
        blocks[:, at : at + 2] = np.frombuffer(np.uint16(1).tobytes(), np.uint8)
    expected = Kernel("dequantize", ("numpy",))(q, "F32")
    assert (expected != 0).mean() > 0.5
    assert np.asarray(jax.jit(decode, static_argnums=1)(q, jnp.float32)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("quick_at_first")
def test_models_look_up(kind):
    w = packed(kind, 9, 256)
    ids = np.array([[3, 8], [0, 3]], np.int32)
    found = jax.jit(lambda i, w: Kernel("embed", ("xla",))(i, w, dtype=np.float32))(ids, w)
    assert np.array_equal(found, values(w, np.float32)[ids])


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_the_cpp_decodes_what_gguf_does(isa, kind):
    """Any bytes but infinite factors: whole rows, and pieces of them that begin and end within a block."""
    q = packed(kind, 3, 5, 1024)
    theirs = gguf.dequantize(q.codes, gguf.GGMLQuantizationType[kind.upper()])
    for dtype in ("F32", "BF16"):
        expected = Kernel("dequantize", ("numpy",))(q, dtype)
        assert Kernel("dequantize", ("native",))(q, dtype).tobytes() == expected.tobytes()
    assert Kernel("dequantize", ("native",))(q, "F32").tobytes() == theirs.tobytes()
    assert np.array_equal(Kernel("dequantize", ("native",))(q, "F16"), theirs.astype(np.float16))


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_the_cpp_says_what_is_past_the_range(isa, kind):
    q = packed(kind, 2, 3, 512)
    q.codes.reshape(-1, STRUCTS[kind][1])[7, STRUCT_HALVES[kind][0] : STRUCT_HALVES[kind][0] + 2] = np.frombuffer(
        b"\xff\x7b", np.uint8
    )
    said = []
    for backend in ("numpy", "native"):
        with pytest.raises(ValueRangeError) as why:
            Kernel("dequantize", (backend,))(q, "F16")
        said.append(str(why.value))
        clamped = Kernel("dequantize", (backend,))(q, "F16", overflow="clamp")
        assert np.isfinite(clamped).all()
    assert said[0] == said[1]


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_the_cpp_multiplies(isa, kind):
    """One to four rows from the blocks, more of them in turns, many after decoding; beside other formats. Rows
    have an odd number of blocks of 32."""
    rng, n = np.random.default_rng(0), 1280 if STRUCTS[kind][0] == 256 else 1312
    ws = packed(kind, 37, n), packed("q5_0" if n % 256 else "q6_k", 9, n, seed=1), normal(rng, 5, n)
    held = [(values(w, np.float32) if isinstance(w, QTensor) else w).astype(np.float64) for w in ws]
    for rows, dtype in itertools.product((1, 2, 3, 4, 5, 33), (np.float32, BF16)):
        x = normal(rng, rows, n, dtype=dtype)
        wide = x.astype(np.float64)
        for v, y in zip(held, ffi.grouped(x, None, ws), strict=True):
            bound = np.abs(wide) @ np.abs(v).T * 2.0**-24 * (4 + np.sqrt(n))  # as of a float32 sum
            assert (np.abs(np.asarray(y) - wide @ v.T) <= bound).all(), (rows, dtype)


def alike(kind, n, byte):
    """A row whose codes and scales are all bits of one byte, and whose float16 factors are 1."""
    q = packed(kind, 1, n)
    blocks = q.codes.reshape(-1, STRUCTS[kind][1])
    blocks[:] = byte
    for at in STRUCT_HALVES[kind]:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    return q


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_codes_and_activations_fit_their_sums(isa, kind):
    """All codes the largest, none, and others; activations next to a power of two, of one sign and of both."""
    most = np.nextafter(np.float32(2), np.float32(0))
    x = np.stack([np.full(768, most), np.full(768, -most), np.where(np.arange(768) % 5 < 2, most, -most)])
    for byte in (0x00, 0x77, 0x88, 0xFF):
        w = alike(kind, 768, byte)
        plain = values(w, np.float32).astype(np.float64)
        # minima are taken off sums that are larger
        added = np.abs(plain) + 2 * np.abs(plain).max() + 63 * 4
        found = np.asarray(ffi.grouped(x, None, (w,))[0])
        assert (np.abs(found - x.astype(np.float64) @ plain.T) <= 1e-6 * (np.abs(x) @ added.T)).all(), byte


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_activations_and_factors_of_any_size(isa, kind):
    """A row is multiplied as float32 where its activations are too far apart, or are no numbers; and a factor that is
    none, of the last block, is of its row alone."""
    rng, n = np.random.default_rng(5), 768 if STRUCTS[kind][0] == 256 else 800
    powers = [np.full(n, e) for e in (-60, 0, 60)]
    powers += [rng.integers(-40, 40, n), np.where(np.arange(n) == 77, 30, -30)]
    x = (rng.standard_normal((len(powers), n)) * np.exp2(powers)).astype(np.float32)
    x[1, :300] = 0
    w = packed(kind, 9, n)
    plain = np.abs(values(w, np.float32).astype(np.float64))
    exact = x.astype(np.float64) @ values(w, np.float32).astype(np.float64).T
    found = np.concatenate([np.asarray(ffi.grouped(some, None, (w,))[0]) for some in (x[:4], x[4:])])
    np.testing.assert_array_less(np.abs(found - exact) / (np.abs(x) @ (plain + plain.max()).T), 1e-6)

    x[2, n - 3] = np.nan
    again = np.asarray(ffi.grouped(x[:4], None, (w,))[0])
    assert np.isnan(again[2]).all()
    np.testing.assert_array_equal(again[[0, 1, 3]], found[[0, 1, 3]])

    w.codes.reshape(9, -1, STRUCTS[kind][1])[6, -1, STRUCT_HALVES[kind][0] : STRUCT_HALVES[kind][0] + 2] = (
        0,
        0x7C,
    )  # infinity
    spoiled = np.asarray(ffi.grouped(x[:2], None, (w,))[0])
    assert not np.isfinite(spoiled[:, 6]).any()
    np.testing.assert_array_equal(np.delete(spoiled, 6, 1), np.delete(found[:2], 6, 1))


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_integers_for_many_rows_are_as_near_as_elsewhere(kind):
    rng = np.random.default_rng(0)
    x, w = normal(rng, 40, 512), packed(kind, 33, 512)
    want = x @ values(w, np.float32).T
    for backend, most in (("native_int8", 0.03), ("native_int16", 0.002)):
        found = np.asarray(Kernel("matmul", (backend,))(x, w))
        np.testing.assert_allclose(found, want, rtol=0, atol=most * np.abs(want).max())


@pytest.mark.parametrize("backend", ["xla", pytest.param("native", marks=needs_compiler)])
@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.brief("1-xla", "5-xla", "70-native")
@pytest.mark.usefixtures("quick_at_first")
def test_experts_are_multiplied(backend, tokens):
    rng = np.random.default_rng(0)
    w_in, w_out = packed("q4_k", 3, 256, 256), packed("q6_k", 3, 7, 256, seed=1)
    x, chosen = normal(rng, tokens, 256), rng.integers(0, 3, (tokens, 2)).astype(np.int32)
    weights = rng.random((tokens, 2)).astype(np.float32)
    args = (x, chosen, weights, (w_in,), (None,), w_out, None)
    found, expected = (
        np.asarray(Kernel("moe", (name,))(*args, activation=jnp.tanh)) for name in (backend, "reference")
    )
    assert np.allclose(found, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
