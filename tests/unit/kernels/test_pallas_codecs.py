"""The MX formats made and decoded by Pallas kernels, interpreted: bytes are the definition's, of every bfloat16, every
code under every scale, and the named cases; what they leave to others."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import load
from pipeline.errors import StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.matrices import Extremes
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.memory import same
from plugins.kernels.cases import BF16, rng_of
from plugins.kernels.codecs.elements import element
from plugins.kernels.dequantize.pallas import decoded
from plugins.kernels.quantize.pallas import encoded
from plugins.kernels.quantize.recipe import Recipe
from tests.cases.model_runs import quick_compilation
from tests.cases.mx import CASES, RULES, TIES

ELEMENTS = ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8")
OTHERS = ("int2", "int3", "int4", "int8")  # which have E8M0 scales in no standard, and lie in other groups of bytes


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_compilation():
        yield


def both(op: str, *args: Any, **options: Any) -> tuple[Any, Any]:
    call = Kernel(op, ("pallas",))
    assert call.resolve(*args, **options).backend == "pallas"
    return load(op, "reference")(*args, **options), call(*args, **options)


def every_pattern(seed: int) -> Any:
    """Every bfloat16 in blocks of 32, NaN and infinities too: by value, and in an order at random."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    mixed = np.random.default_rng(seed).permutation(patterns)
    return np.concatenate([patterns, mixed]).view(BF16).reshape(-1, 32)


@pytest.mark.parametrize("name", [*ELEMENTS, *OTHERS])
@pytest.mark.brief("e2m1", "e5m2", "mxint8", "int3")
def test_every_bfloat16_as_the_definition(name: str) -> None:
    x = every_pattern(ELEMENTS.index(name) if name in ELEMENTS else 9)
    expected, found = both("quantize", x, Scheme(name, 32, "e8m0"), nonfinite="poison", overflow="inf")
    assert (expected.scales == 0xFF).any()
    assert (expected.scales == 0).any()
    assert same(expected, found)


@pytest.mark.parametrize("name", [*ELEMENTS, *OTHERS])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.brief("BF16-e2m1", "F32-e4m3", "BF16-mxint8", "F32-int3", "BF16-int8")
def test_every_code_under_every_scale_as_the_definition(name: str, dtype: str) -> None:
    """NaN as NaN; everything else bit for bit, subnormals and both zeros too."""
    bits = element(name).bits
    codes = np.arange(256 if bits in (2, 4, 8) else 1 << bits, dtype=np.uint8)
    if bits in (3, 6):  # the bit stream of all codes
        codes = np.packbits(np.unpackbits(codes[:, None], axis=1, bitorder="little")[:, :bits], bitorder="little")
    many = codes.size * 8 // bits
    block = min(32, many)
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], many // block, axis=1)
    q = QTensor(np.tile(codes, (256, 1)), scales, Scheme(name, block, "e8m0"))
    expected, found = both("dequantize", q, dtype)
    nan = np.isnan(expected)
    assert nan[255].all()
    assert np.array_equal(np.isnan(found), nan)
    wide = np.uint16 if dtype == "BF16" else np.uint32
    assert np.array_equal(np.asarray(found).view(wide)[~nan], expected.view(wide)[~nan])


@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("rule", RULES)
def test_named_cases(rule: str, dtype: Any) -> None:
    x = np.array([np.resize(np.array(case.block, np.float64), 32) for case in CASES]).astype(dtype)
    assert same(*both("quantize", x, MXFP4, scale_rule=rule, overflow="inf"))


def near_boundaries() -> Any:
    """float32 next to what codes of all elements round at, in binades from the lowest to the highest."""
    rng = rng_of("boundaries")
    halves = np.arange(1, 256, dtype=np.float32) / 64
    near = np.concatenate([np.nextafter(halves, np.float32(0)), halves, np.nextafter(halves, np.float32(9))])
    x = rng.choice(near, (60, 64)) * rng.choice([-1, 1], (60, 64)) * np.exp2(np.linspace(-147, 123, 60))[:, None]
    return x.astype(np.float32)


@pytest.mark.parametrize(
    "how", [dict(zip(("scale_rule", "ties"), pair, strict=True)) for pair in itertools.product(RULES, (*TIES, "down"))],
    ids=lambda how: " ".join(how.values()),
)  # fmt: skip
@pytest.mark.brief(4)
def test_rules_and_ties(how: dict[str, str]) -> None:
    for name, more in (("e2m1", {"tiny": "torchao"}), ("e4m3", {"zero": "positive"}), ("e2m3", {"zero": "minus"})):
        assert same(*both("quantize", near_boundaries(), Scheme(name, 32, "e8m0"), overflow="inf", **how, **more))


@pytest.mark.parametrize("block", [8, 16, 64, 256])
@pytest.mark.brief(2)
def test_other_blocks_and_shapes_that_fill_no_tile(block: int, thorough: bool) -> None:
    every = [*itertools.product(((), (3,), (2, 5)), ("e2m1", "e3m2"))]
    some = {8: [((), "e2m1"), ((3,), "e3m2"), ((2, 5), "e2m1")], 16: [((2, 5), "e3m2")]}
    for lead, name in every if thorough else some[block]:
        x = rng_of(f"{block}").standard_normal((*lead, block * 3)).astype(np.float16)
        expected, found = both("quantize", x, Scheme(name, block, "e8m0"))
        assert same(expected, found)
        assert np.array_equal(*both("dequantize", expected, "F32"))


NVFP4: dict[str, tuple[Scheme, dict[str, Any]]] = {
    "": (Scheme("e2m1", 16, "e4m3", second="f32"), {}),
    "inverse": (Scheme("e2m1", 16, "e4m3", second="inverse_f32"), {"quotient": "reciprocal"}),
    "as torchao": (Scheme("e2m1", 16, "e4m3", second="f32"), {"least_scale": 2.0**-6}),
    "zero blocks": (Scheme("e2m1", 16, "e4m3", second="f32"), {"zero_scale": 2.0**-9, "zero": "positive"}),
    "one level": (Scheme("e4m3", 32, "e4m3"), {"ties": "away"}),
}


@pytest.mark.parametrize("name", NVFP4)
@pytest.mark.brief("inverse")
def test_nvfp4_as_the_definition(name: str, thorough: bool) -> None:
    """Matrices of ordinary values, of every bfloat16 in turn, of the smallest and the largest, and of zeros; in
    `make test` each dtype is of one of them."""
    scheme, how = NVFP4[name]
    rng = rng_of("nvfp4")
    finite = np.arange(1 << 16, dtype=np.uint16)
    finite = np.resize(rng.permutation(finite[(finite & 0x7FFF) < 0x7F80]), (1020, 64)).view(BF16)
    near = rng.standard_normal((4, 12, 64)) * np.array([1, 2.0**-130, 2.0**120, 0])[:, None, None]
    near[0] *= np.exp2(rng.integers(-20, 20, (12, 64)))
    with np.errstate(under="ignore"):
        narrow, wide = near.astype(BF16), near.astype(np.float32)
    for x, back in ((finite, "BF16"), (wide, "F32"), *([(narrow, "BF16"), (finite, "F32")] if thorough else [])):
        expected, found = both("quantize", x, scheme, scale_rule="amax", overflow="inf", **how)
        assert same(expected, found)
        for dtype in (back, *(["F32"] if thorough and back == "BF16" else [])):
            y, z = both("dequantize", expected, dtype)
            nan = np.isnan(y)
            assert np.array_equal(nan, np.isnan(z))
            assert np.asarray(z)[~nan].tobytes() == y[~nan].tobytes()


def test_real_scales_of_what_is_not_finite_are_nan() -> None:
    scheme, _ = NVFP4["one level"]
    expected, found = both("quantize", every_pattern(5), scheme, scale_rule="amax", nonfinite="poison", overflow="inf")
    assert np.isnan(expected.scales.astype(np.float32)).any()
    assert same(expected, found)


ROUNDED: dict[str, tuple[Scheme, dict[str, Any]]] = {
    **{name: (Scheme(name, 32, "e8m0"), {}) for name in ELEMENTS},
    **{f"nvfp4 {name}".strip(): (scheme, {"scale_rule": "amax", **how}) for name, (scheme, how) in NVFP4.items()},
}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.brief("e3m2", "nvfp4 zero blocks")
def test_rounded_where_it_lies_as_the_definition(name: str, thorough: bool) -> None:
    """Every finite bfloat16, and float32 near boundaries; a gradient passes by. In `make test`, under scales that a
    matrix shares, the latter: of every bfloat16 the kernels that make codes and decode them say it."""
    scheme, how = ROUNDED[name]
    finite = np.arange(1 << 16, dtype=np.uint16)
    finite = np.resize(finite[(finite & 0x7FFF) < 0x7F80], (1020, 64)).view(BF16)
    for x in (near_boundaries(), *([finite] if thorough or scheme.second is None else [])):
        y, found = both("quantize_dequantize", x, scheme, overflow="inf", **how)
        assert found.dtype == x.dtype
        nan = np.isnan(y)
        assert np.array_equal(nan, np.isnan(found))
        assert np.asarray(found)[~nan].tobytes() == y[~nan].tobytes()
    x, dy = near_boundaries(), rng_of("dy").standard_normal((60, 64), np.float32)
    call = partial(load("quantize_dequantize", "pallas"), scheme=scheme, overflow="inf", **how)
    assert np.array_equal(jax.jit(lambda x, dy: jax.vjp(call, x)[1](dy)[0])(x, dy), dy)


def test_what_the_host_refuses_is_nan() -> None:
    x = np.ones((2, 64), np.float32)
    x[0, 40] = np.inf
    call = load("quantize_dequantize", "pallas")
    assert np.isnan(call(x, MXFP4)).nonzero()[0].tolist() == [0] * 32
    assert np.isnan(call(x, NVFP4[""][0], scale_rule="amax")).all()
    reasons = [
        Kernel("quantize_dequantize", ("pallas",)).resolve(x, MXFP4, **given).reasons
        for given in ({"clipped_gradient": True}, {"scale": 1.0}, {"stochastic": True})
    ]
    said = ("pallas passes gradients on as they are", "pallas makes its scales", "pallas neither searches")
    assert all(what in why for what, why in zip(said, reasons, strict=True))


def test_parts_of_a_matrix_share_its_scale() -> None:
    """Given what was observed of the whole, and where a matrix takes several pieces."""
    scheme, how = NVFP4[""]
    x = rng_of("parts").standard_normal((5, 1024, 96), np.float32)
    x[3, 1000, 5] = 60
    for given, options in ((x, {}), (x[:, 40:80], {"observed": Extremes.of(x)})):
        calls = (load("quantize", backend) for backend in ("numpy", "pallas"))
        expected, found = (call(given, scheme, scale_rule="amax", **how, **options) for call in calls)
        assert same(expected, found)
    x[2, 7, 3] = np.nan
    with pytest.raises(ValueRangeError, match=f"flat index {(2 * 1024 + 7) * 96 + 3}: nan has no E2M1 value"):
        load("quantize", "pallas")(x, scheme, scale_rule="amax")
    with pytest.raises(ValueRangeError, match="another part of this matrix"):
        load("quantize", "pallas")(x[:, 40:80], scheme, scale_rule="amax", observed=Extremes.of(x))


def test_what_is_not_finite_is_refused_where_it_lies() -> None:
    x = np.ones((2100, 128), BF16)  # more than a piece
    x[2099, 100] = np.inf
    with pytest.raises(ValueRangeError, match=f"flat index {2099 * 128 + 100}: inf has no E2M1 value"):
        Kernel("quantize", ("pallas",))(x, MXFP4)
    x[2099, 100] = 3.38e38  # 3.97 · 2^126, which is 4 of these
    with pytest.raises(ValueRangeError, match=f"flat index {2099 * 128 + 100}: .* would decode to inf"):
        Kernel("quantize", ("pallas",))(x, MXFP4, scale_rule="ceil")


def test_in_a_program_nothing_passes_through_the_host() -> None:
    """Values on a device, coded and decoded in one program."""
    x = rng_of("program").standard_normal((4, 96), np.float32)

    @jax.jit
    def there_and_back(x: Any) -> Any:
        return decoded(encoded(x, MXFP4, Recipe()), jnp.float32)

    expected = load("quantize_dequantize", "reference")(x, MXFP4)
    assert np.asarray(there_and_back(x)).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("scheme", "options", "said"),
    [
        (Scheme("int4", 32, "f32"), {"scale_rule": "amax"}, "f32 scales; the kernels make and decode codes under e8m0"),
        (Scheme("uint4", 32, "f32", zero="int"), {"scale_rule": "minmax"}, "f32 scales and zero points; "),
        (Scheme("nf4", 32, "e8m0"), {}, "nf4 has a code book"),
        (Scheme("e2m1", 96, "e8m0"), {}, "blocks of 96; the kernels have those of 2"),
        (Scheme("e2m1", 4, "e8m0"), {}, "blocks of 4; "),
        (Scheme("e2m1", 512, "e8m0"), {}, "blocks of 512; "),
        (Scheme("e4m3", 32, "e8m0", 2), {}, "blocks of 2 × 32; "),
        (MXFP4, {"search": "mse"}, "pallas neither searches nor rounds at random"),
        (MXFP4, {"stochastic": True}, "pallas neither searches nor rounds at random"),
        (Scheme("int8", 32, "e8m0"), {"ties": "up"}, "ties up is a sum of floats"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_to_others(scheme: Scheme, options: dict[str, Any], said: str) -> None:
    with pytest.raises(StageError, match=said):
        Kernel("quantize", ("pallas",))(np.ones((2, 1536), np.float32), scheme, **options)
    if not options or "scale_rule" in options:
        q = load("quantize", "reference")(np.ones((2, 1536), np.float32), scheme, **options)
        with pytest.raises(StageError, match=said):
            Kernel("dequantize", ("pallas",))(q)


def test_f16_is_left_to_others() -> None:
    q = load("quantize", "reference")(np.ones((2, 32), np.float32), MXFP4)
    with pytest.raises(StageError, match="pallas decodes to BF16 and F32, not to F16"):
        Kernel("dequantize", ("pallas",))(q, "F16")
