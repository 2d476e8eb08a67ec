"""Quantized and decoded inside compiled programs: the bits of the host's codecs, and gradients straight through."""

from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pipeline.backends import load
from pipeline.errors import StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.kernels.codecs.scales import powers
from plugins.kernels.dequantize import mxfp4
from plugins.kernels.quantize.mxfp4 import errors, tile
from plugins.train.rounding import Hosted, through_host
from tests.unit.kernels.test_number_formats import NAMES, VARIANTS, built, on

BF16 = ml_dtypes.bfloat16
OP = Kernel("quantize_dequantize", ("xla",))
UNSUPPORTED = {"nf4 twice": "does not quantize scales across a whole tensor"}
KNOWN = [n for n in (*NAMES, *VARIANTS) if n not in UNSUPPORTED]


def array(dtype: Any, seed: int = 0) -> Any:
    """[2, 6, 128]: rows of many sizes, zeros of both signs, ties, and rows whose values are subnormal floats."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, 6, 128)) * np.exp2(rng.integers(-14, 6, (2, 6, 1)))
    x[0, 1, :64], x[0, 1, 5] = 0, -0.0
    x[0, 2] = np.resize([0.0, -0.0, 0.25, 0.75, -1.25, 1.75, 2.5, -3.5, 5.0, 6.0, 7.0, -2.5], 128)
    x[1, 3] *= 2.0**-125
    x[1, 4] = -np.abs(x[1, 4])
    return x.astype(dtype)


def options(method: Any) -> dict[str, Any]:
    return asdict(method.recipe)


def on_host(method: Any, x: Any) -> Any:
    q = method.encode(x)
    return method.decode(q, "BF16" if x.dtype == BF16 else "F32")


def check(want: Any, got: Any) -> None:
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    kind = np.uint16 if want.dtype == BF16 else np.uint32
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32)), nan)
    wrong = np.argwhere((want.view(kind) != got.view(kind)) & ~nan)
    assert not len(wrong), f"{len(wrong)} differ, first {wrong[0]}: {want[tuple(wrong[0])]}, got {got[tuple(wrong[0])]}"


def traced(method: Any, **more: Any) -> Any:
    return jax.jit(partial(OP, scheme=method.scheme, **options(method), **more))


OTHERS_HAVE = ("nvfp4 as torchao", "mxfp4 as ModelOpt")  # `test_as_libraries_do_it`


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.brief(
    when=lambda name: (
        name.startswith(("mx", "nvfp4", "nf4", "fp8 tiles", "q4_1", "int8 a matrix")) and name not in OTHERS_HAVE
    )
)
def test_bits_are_the_host_s(name: str) -> None:
    method, x = built(name), array(np.float32)
    check(on_host(method, x), traced(method)(x))


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.brief("nvfp4", "uint4 with a zero point", "nf4")
@pytest.mark.usefixtures("quick_at_first")
def test_with_a_gradient_the_bits_are_the_same_and_it_passes(name: str) -> None:
    method, x = built(name), array(BF16)
    direction = np.random.default_rng(1).standard_normal(x.shape).astype(BF16)

    @jax.jit
    def call(x: Any, direction: Any) -> Any:
        y, pull = jax.vjp(partial(OP, scheme=method.scheme, **options(method)), x)
        return y, pull(direction)[0]

    y, dx = call(x, direction)
    check(on_host(method, x), y)
    check(direction, dx)


@pytest.mark.parametrize(
    ("name", "like"),
    [
        *product(["mxfp4"], ["ggml", "modelopt", "microxcaling", "qwix"]),
        ("nvfp4", "torchao"),
        *product(["int4", "uint4 with a zero point"], ["compressed_tensors"]),
        *product(["q4_0", "q4_1"], ["ggml"]),
        ("int8", "qwix"),
    ],
)
@pytest.mark.usefixtures("quick_at_first")
def test_as_libraries_do_it(name: str, like: str) -> None:
    method, x = built(name, like=like), array(np.float32, seed=2)
    check(on_host(method, x), traced(method)(x))


RULES = [
    *product(["mxfp4"], [{"scale_rule": r} for r in ("floor", "ceil", "even", "rceil")]),
    *product(["mxfp4"], [{"ties": t} for t in ("zero", "away", "down")]),
    *product(["mxfp4"], [{"tiny": "torchao"}, {"tiny": "torchao", "scale_rule": "rceil"}]),
    *product(["mxfp4"], [{"zero": "minus"}, {"zero": "positive"}]),
    *product(["mxfp8_e4m3"], [{"scale_rule": "even", "ties": "away"}]),
    *product(["mxint8"], [{"scale_rule": r} for r in ("ceil", "rceil")]),  # whose largest subnormals round up
    *product(["mxint8"], [{"ties": "up"}]),
]


@pytest.mark.parametrize(("name", "how"), RULES, ids=str)
@pytest.mark.usefixtures("quick_at_first")
def test_rules_of_powers_of_two(name: str, how: dict[str, Any]) -> None:
    method, x = built(name, **how), array(np.float32, seed=3)
    check(on_host(method, x), traced(method)(x))


@pytest.mark.parametrize(
    ("scheme", "how"),
    [
        (Scheme("int4", 32, "f32"), {"scale_rule": "half_range", "ties": "away"}),
        (Scheme("int4", 32, "f16"), {"scale_rule": "signed", "ties": "up", "quotient": "reciprocal"}),
        (Scheme("e4m3", 32, "bf16"), {"scale_rule": "amax", "least_scale": 1e-5, "zero_scale": 1.0}),
        (Scheme("e2m1", 16, "e4m3"), {"scale_rule": "amax", "zero_scale": 0.125}),
        (Scheme("e2m1", 16, "f16", second="f32"), {"scale_rule": "amax", "quotient": "reciprocal"}),
        (Scheme("uint8", 64, "bf16", zero="int"), {"scale_rule": "minmax", "zero_block": "middle"}),
        (Scheme("e2m1", 1, "f32", 4), {"scale_rule": "amax"}),
        (Scheme("nf4", 64, "e8m0"), {"scale_rule": "ceil", "ties": "down"}),
    ],
    ids=str,
)
@pytest.mark.brief(when=lambda scheme: scheme.element in ("int4", "uint8", "nf4"))
@pytest.mark.usefixtures("quick_at_first")
def test_recipes_of_real_scales(scheme: Scheme, how: dict[str, Any]) -> None:
    x = array(np.float32, seed=4)
    q = Kernel("quantize", ("numpy",))(x, scheme, **how)
    want = Kernel("dequantize", ("numpy",))(q, "F32")
    check(want, jax.jit(partial(OP, scheme=scheme, **how))(x))


@pytest.mark.usefixtures("quick_at_first")
def test_a_vector_no_elements_and_vmap() -> None:
    x = array(np.float32)
    row = partial(OP, scheme=MXFP4)
    want = np.asarray(jax.jit(row)(x))
    check(want[0, 0], jax.jit(row)(x[0, 0]))
    check(want[0], jax.jit(jax.vmap(row))(x[0]))
    assert jax.jit(row)(x[:0]).shape == (0, 6, 128)


@pytest.mark.parametrize("name", ["mxfp4", "int8", "q4_1", "nvfp4"])
@pytest.mark.usefixtures("quick_at_first")
def test_what_the_host_refuses_is_nan(name: str) -> None:
    """Of the block; of the matrix, where its scales share one."""
    method, x = built(name), array(np.float32)
    x[0, 2, 40] = np.inf
    with pytest.raises(ValueRangeError):
        on_host(method, x)
    got = np.isnan(np.asarray(traced(method)(x)))
    width = method.scheme.block_elems or 128
    block = slice(40 // width * width, (40 // width + 1) * width)
    want = np.zeros_like(got)
    want[(0,) if method.scheme.second else (0, 2, block)] = True
    assert np.array_equal(got, want)


@pytest.mark.usefixtures("quick_at_first")
def test_a_scale_past_its_encoding_is_nan() -> None:
    x = np.ones((2, 64), np.float32)
    x[1, 3] = 1e30  # / 7 is past F16
    method = built("q4_0")
    with pytest.raises(ValueRangeError):
        on_host(method, x)
    got = np.asarray(traced(method)(x))
    assert np.isnan(got[1, :32]).all()
    assert np.isfinite(got).sum() == 96


@pytest.mark.parametrize("name", ["mxfp4", "q4_0", "fp8_e4m3", "uint4 with a zero point"])
@pytest.mark.brief("mxfp4", "q4_0")
@pytest.mark.usefixtures("quick_at_first")
def test_a_clipped_gradient_is_0_where_values_were_saturated(name: str) -> None:
    """OCP's floor rule saturates: up to 8 in a block of scale 1, whose largest element is 6."""
    method = built(name)
    x = np.linspace(-7.9, 7.9, 64, dtype=np.float32).reshape(2, 32)
    dx = np.asarray(jax.jit(jax.grad(lambda x: traced(method, clipped_gradient=True)(x).sum()))(x))
    y = on_host(method, x)
    saturated = {"mxfp4": np.abs(x) > 6, "q4_0": None, "fp8_e4m3": np.abs(x) > np.abs(y).max()}.get(name)
    if saturated is None:  # beyond all values that the block's codes stand for
        saturated = (x > y.max(axis=-1, keepdims=True)) | (x < y.min(axis=-1, keepdims=True))
    assert set(np.unique(dx)) <= {0.0, 1.0}
    assert np.array_equal(dx == 0, saturated)
    if name == "mxfp4":
        assert saturated.any()


def test_it_trains() -> None:
    """Straight-through: weights that are quantized on the way learn what their codes can say."""
    rng = np.random.default_rng(0)
    x, target = (rng.standard_normal(s).astype(np.float32) for s in ((64, 32), (64, 8)))
    loss = jax.jit(lambda w: ((x @ OP(w, MXFP4).T - target) ** 2).mean())
    w = rng.standard_normal((8, 32)).astype(np.float32)
    first = float(loss(w))
    step = jax.jit(jax.grad(loss))
    for _ in range(60):
        w = w - 0.5 * step(w)
    assert float(loss(w)) < first / 4
    assert float(jnp.abs(step(w)).max()) > 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((array(np.float32), Scheme("nf4", 64, "dynamic8", second="dynamic8"), {}), UNSUPPORTED["nf4 twice"]),
        ((array(np.float32), MXFP4, {"search": "mse"}), "does not search"),
        ((array(np.float32), MXFP4, {"stochastic": True}), "does not round at random"),
        ((array(np.float16), MXFP4, {}), "gives F32 and BF16, not F16"),
    ],
)
def test_what_it_does_not_do_is_said_before_tracing(given: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, scheme, how = given
    choice = OP.resolve(x, scheme, **how)
    assert choice.backend is None
    assert said in choice.reasons
    monkeypatch.setattr(jax, "jit", None)  # nothing is called
    with pytest.raises(StageError, match=said):
        OP(x, scheme, **how)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "q4_1", "int8"])
def test_the_definition_is_the_codecs_one_after_the_other(name: str) -> None:
    method, x = built(name), array(np.float32)[:, 2:4, :64]
    check(on_host(method, x), load("quantize_dequantize", "reference")(x, method.scheme, **options(method)))


def test_what_a_scale_is_worth_is_no_matter_of_the_thread_that_asks_first() -> None:
    """Threads of XLA flush subnormal numbers, and 2^-127 is one."""
    powers.cache_clear()
    like = jax.ShapeDtypeStruct((256,), jnp.float32)
    jax.block_until_ready(jax.jit(lambda: jax.pure_callback(lambda: powers().copy(), like))())
    assert powers()[:3].tolist() == [2.0**-127, 2.0**-126, 2.0**-125]
    assert powers()[127] == 1
    assert powers()[254] == 2.0**127
    assert np.isnan(powers()[255])


ANSWER = jax.ShapeDtypeStruct((), jnp.bool_)
TABLES = {
    "decoded": partial(mxfp4.table, "F32"), "thresholds": partial(tile.thresholds, "even"),
    "halves": partial(errors._half_scales, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_nor_is_it_to_what_a_table_holds(name: str) -> None:
    table = TABLES[name]
    table.func.cache_clear()
    expected = table().copy()
    table.func.cache_clear()
    jax.block_until_ready(jax.jit(lambda: jax.pure_callback(lambda: table().size == 1, ANSWER))())
    assert table().tobytes() == expected.tobytes()


@pytest.mark.parametrize("kernels", ["numpy", "native"])
def test_a_method_of_the_host_rounds_in_a_program_as_outside(kernels: str) -> None:
    x = np.ldexp(np.resize(np.float32([1, -0.5, 0.75, 0.25, -0.125, 1.5, 0.0]), (4, 64)), -np.arange(124, 128)[:, None])
    by = Hosted(on(built("mxfp4"), kernels), stack=False)
    found = by(x)
    assert np.any((found != 0) & (np.abs(found) < 2.0**-126))
    check(found, jax.jit(lambda x: through_host(x, by))(x))


ONE = {
    "int8": Scheme("int8", 0, "f32"),
    "int8 matrix": Scheme("int8", 0, "f32", block_rows=0),
    "fp8_e4m3": Scheme("e4m3", 0, "f32", block_rows=0),
    "fp8_e5m2": Scheme("e5m2", 0, "f32", block_rows=0),
    "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
    "nvfp4 inverse": Scheme("e2m1", 16, "e4m3", second="inverse_f32"),
}


@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.parametrize("name", ONE)
@pytest.mark.brief(each=["name"])
@pytest.mark.usefixtures("quick_at_first")
def test_under_a_scale_that_was_made_before_bits_are_the_definition_s(name: str, dtype: Any, thorough: bool) -> None:
    """Values past it saturate: some of the first scale's."""
    x, scheme = array(dtype), ONE[name]
    scales = (0.013, 0.4) if "inverse" not in name else (70.0, 2.6)
    for scale in scales if thorough else scales[:1]:
        how = {"scale_rule": "amax", "scale": scale}
        want = load("quantize_dequantize", "reference")(x, scheme, **how)
        check(np.asarray(want, dtype), jax.jit(partial(OP, scheme=scheme, **how))(x))


@pytest.mark.usefixtures("quick_at_first")
def test_integers_under_a_given_scale_use_all_their_codes() -> None:
    """Spelt out: as vLLM and compressed-tensors round inputs under a calibrated scale."""
    x, s = np.linspace(-9, 9, 800, dtype=np.float32)[None], np.float32(0.0437)
    call = jax.jit(partial(OP, scale=float(s), scale_rule="amax"), static_argnums=1)
    found = np.asarray(call(x, ONE["int8"]))
    np.testing.assert_array_equal(found, np.clip(np.rint(x / s), -128, 127).astype(np.float32) * s)
    fp8 = np.asarray(call(x * 400, ONE["fp8_e4m3"]))
    codes = np.clip(x * 400 / s, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(fp8, codes.astype(np.float32) * s)


@pytest.mark.usefixtures("quick_at_first")
def test_under_nvfp4_s_second_level_scale_blocks_are_those_of_any_matrix_that_reaches_it() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 64)).astype(np.float32)
    reaches = np.concatenate([x, np.full((1, 64), 7.5, np.float32)])
    scheme, how = ONE["nvfp4"], {"scale_rule": "amax"}
    scale = float(np.float32(7.5) / np.float32(448 * 6))
    given = jax.jit(partial(OP, scheme=scheme, scale=scale, **how))
    wanted = np.asarray(jax.jit(partial(OP, scheme=scheme, **how))(reaches))[:5]
    np.testing.assert_array_equal(np.asarray(given(np.resize(x, (6, 64))))[:5], wanted)
    large = np.asarray(given(4 * reaches))
    assert np.abs(large).max() == np.float32(448 * 6) * np.float32(scale)


@pytest.mark.parametrize("scheme", [MXFP4, Scheme("int8", 32, "f32"), Scheme("uint8", 0, "f32", zero="int")])
def test_blocks_take_no_scale_that_was_made_before(scheme: Scheme) -> None:
    with pytest.raises(StageError, match="made before, is fp32"):
        OP(np.ones((2, 64), np.float32), scheme, scale=0.5)
