"""decode inside jit gives what the dequantize op gives, for every scheme, shape and pattern of its components."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401
from pipeline.errors import ConfigError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import ELEMENT_BITS, Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.dequantize.numpy import dequantize
from plugins.kernels.dequantize.traced import decode

TO = {"F32": jnp.float32, "BF16": jnp.bfloat16}
SIGNED = [name for name in ELEMENT_BITS if not name.startswith("uint")]
jitted = jax.jit(decode, static_argnums=1)


def tensor(scheme, shape, seed=0, spread=6):
    """Random codes, all of them likely; scales within 2^±spread, of E8M0 all bytes; everything that real ones have."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, dims in scheme.components(shape).items():
        dtype = numpy_dtype(scheme.dtypes[name])
        if dtype == np.uint8:
            found[name] = rng.integers(0, 1 << scheme.element_bits if name == "zeros" else 256, dims, dtype=np.uint8)
        else:
            found[name] = (rng.uniform(1, 2, dims) * 2.0 ** rng.integers(-spread, spread + 1, dims)).astype(dtype)
            if name == "zeros":
                found[name] *= rng.choice([-1, 1], dims).astype(dtype)
    return QTensor(scheme=scheme, **found)


def same(q, smallest=0.0):
    """Bit for bit, but for values below `smallest` and the payload of NaN."""
    for dtype, kind in TO.items():
        want, got = dequantize(q, dtype), np.asarray(jitted(q, kind))
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        a, b = (np.array(v, np.float32) for v in (want, got))
        a[np.abs(a) < smallest], b[np.abs(b) < smallest] = 0, 0
        differ = ~(np.isnan(a) & np.isnan(b)) & (a.view(np.uint32) != b.view(np.uint32))
        at = np.argwhere(differ)[:3]
        assert not differ.any(), (q.scheme, dtype, [(tuple(i), a[tuple(i)], b[tuple(i)]) for i in at])


@pytest.mark.parametrize("element", SIGNED)
def test_every_code_under_every_power_of_two(element):
    scheme = Scheme(element, 256, "e8m0")
    bits = scheme.element_bits
    stream = np.unpackbits((np.arange(256) % (1 << bits)).astype(np.uint8)[:, None], axis=1, bitorder="little")
    codes = np.packbits(stream[:, :bits].reshape(-1), bitorder="little")
    same(QTensor(np.tile(codes, (256, 1)), np.arange(256, dtype=np.uint8)[:, None], scheme))


REAL = [
    *(Scheme(e, 32, s) for e, s in itertools.product(("int8", "e4m3", "nf4"), ("f32", "bf16", "f16", "e4m3"))),
    *(Scheme(e, 24, "f32") for e in SIGNED),
    *(Scheme(u, 8, s, zero=z) for u in ("uint2", "uint3", "uint4", "uint8") for s, z in
      (("f32", "int"), ("bf16", "int"), ("f32", "min_f16"), ("f16", "min_f16"))),
    Scheme("e2m1", 16, "e4m3", second="f32"),
    Scheme("e2m1", 16, "e4m3", second="inverse_f32"),
    Scheme("int4", 16, "f16", second="inverse_f32"),
    Scheme("nf4", 24, "dynamic8", second="dynamic8"),
]  # fmt: skip


def part_of(call):
    """Every element under float32 scales, and every other kind of scales, of whichever element."""
    s = call["scheme"]
    return s.element if s.scale == "f32" else (s.scale, s.zero, s.second)


@pytest.mark.parametrize("scheme", REAL, ids=str)
@pytest.mark.brief(each=part_of)
def test_real_scales(scheme):
    same(tensor(scheme, (3, 5, 96 if scheme.block_elems else 40)))


@pytest.mark.parametrize(
    "scheme", [Scheme("int8", 0, "f32"), Scheme("e4m3", 0, "f32", 0), Scheme("e2m3", 8, "e8m0", 0)]
)
@pytest.mark.parametrize("shape", [(6, 40), (2, 3, 6, 40), (2, 7, 0), (0, 16)])
@pytest.mark.usefixtures("quick_at_first")
def test_shared_rows_and_columns(scheme, shape):
    if scheme.block_elems and not shape[-1]:
        pytest.skip("no columns, no blocks")
    same(tensor(scheme, shape))


BANDED = (
    Scheme("e4m3", 16, "f32", 4), Scheme("int3", 16, "e8m0", 4), Scheme("uint4", 16, "f32", 4, zero="int"),
    Scheme("e2m1", 1, "e8m0", 4),
)  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "lead", "rows"),
    [  # any two of these meet
        pytest.param(scheme, ((), (2,), (2, 5))[(i + j) % 3], rows, id=f"{scheme}-{rows}")
        for i, scheme in enumerate(BANDED)
        for j, rows in enumerate((3, 4, 8, 10))
    ],
)
@pytest.mark.brief(each=("scheme",))
@pytest.mark.usefixtures("quick_at_first")
def test_bands_of_rows(scheme, lead, rows):
    same(tensor(scheme, (*lead, rows, 48)))


@pytest.mark.parametrize("scheme", [
    Scheme("e2m1", 32, "e8m0"), Scheme("e2m1", 16, "e4m3", second="f32"), Scheme("uint4", 32, "f16", zero="min_f16"),
    Scheme("nf4", 32, "dynamic8", second="dynamic8"), Scheme("int8", 0, "f32"),
], ids=str)  # fmt: skip
@pytest.mark.usefixtures("quick_at_first")
def test_vectors(scheme):
    same(tensor(scheme, (96,)))


@pytest.mark.parametrize("scheme", [s for s in REAL if s.scale in ("f32", "bf16")], ids=str)
@pytest.mark.brief(each=lambda call: call["scheme"].element)
@pytest.mark.usefixtures("quick_at_first")
def test_the_whole_exponent_range_but_subnormals(scheme):
    with np.errstate(all="ignore"):
        same(tensor(scheme, (64, 96), spread=120), smallest=2.0**-124 if scheme.zero is None else 2.0**-100)


@pytest.mark.usefixtures("quick_at_first")
def test_any_scale_pattern():
    rng = np.random.default_rng(1)
    q = tensor(Scheme("e2m1", 16, "e4m3", second="inverse_f32"), (4096, 64))
    scales = rng.integers(0, 256, q.scales.shape, dtype=np.uint8).view(q.scales.dtype)
    seconds = np.array([1.0, 3.0, 2688 / 0.7, 1e-30, 1e30], np.float32)
    for second in seconds:
        same(QTensor(q.codes, scales, q.scheme, second=second.reshape(1, 1)), smallest=2.0**-126)


@pytest.mark.usefixtures("quick_at_first")
def test_is_one_program_of_traced_arrays_and_differentiates_nothing_else():
    q = tensor(Scheme("e2m1", 32, "e8m0"), (2, 6, 64))
    stacked = jax.lax.map(lambda one: decode(one, jnp.float32), jax.tree.map(jnp.asarray, q))
    batched = jax.jit(jax.vmap(lambda one: decode(one, jnp.float32)))(jax.tree.map(jnp.asarray, q))
    want = dequantize(q, "F32")
    for got in (stacked, batched):
        np.testing.assert_array_equal(np.asarray(got), want)


@pytest.mark.usefixtures("quick_at_first")
def test_float16_is_refused():
    with pytest.raises(ConfigError, match="not float16"):
        decode(tensor(Scheme("int8", 8, "f32"), (2, 8)), jnp.float16)
