"""Every number format: reference and numpy byte for byte, elements against ml_dtypes, slices, layouts, refusals."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from pipeline.coded_store import CodedStore
from pipeline.config.resolve import Resolver
from pipeline.errors import ConfigError, NotLossless, PlanError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.matrices import Extremes
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.stats import ErrorStats
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.quant.blockwise import Blockwise
from tests.cases import model_runs
from tests.cases.memory_store import MemoryStore
from tests.cases.mx import mx_method

CONF = Path(__file__).parents[3] / "conf" / "quant"
NAMES = model_runs.QUANTIZING
BF16 = ml_dtypes.bfloat16
FLOATS = {
    "e2m1": "float4_e2m1fn", "e2m3": "float6_e2m3fn", "e3m2": "float6_e3m2fn", "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}  # fmt: skip
VARIANTS = {
    "uint4 with a zero point": {"element": "uint4", "block_elems": 32, "scale": "f32", "zero_point": "int"},
    "uint8 a row, bf16": {"element": "uint8", "block_elems": 0, "scale": "bf16", "zero_point": "int"},
    "uint2": {"element": "uint2", "block_elems": 16, "scale": "f16", "zero_point": "int", "like": "compressed_tensors"},
    "uint3 with a minimum": {"element": "uint3", "block_elems": 32, "scale": "f16", "zero_point": "min_f16"},
    "int8 a matrix": {"element": "int8", "block_elems": 0, "block_rows": 0, "scale": "f32"},
    "fp8 tiles": {"element": "e4m3", "block_elems": 64, "block_rows": 4, "scale": "f32"},
    "nvfp4, inverse": {"element": "e2m1", "block_elems": 16, "scale": "e4m3", "second": "inverse_f32"},
    "nvfp4 as torchao": {"element": "e2m1", "block_elems": 16, "scale": "e4m3", "second": "f32", "like": "torchao"},
    "nf4 twice": {"element": "nf4", "block_elems": 64, "scale": "dynamic8", "second": "dynamic8", "ties": "down",
                  "codes_from": "unrounded", "quotient": "reciprocal"},
    "mxint8 down": {"element": "mxint8", "block_elems": 32, "scale": "e8m0", "ties": "down"},
    "int4 in powers of two": {"element": "int4", "block_elems": 64, "scale": "e8m0", "scale_rule": "rceil"},
    "mxfp4 as ModelOpt": {"element": "e2m1", "block_elems": 32, "scale": "e8m0", "like": "modelopt"},
}  # fmt: skip


def built(name, **changes):
    """The method of conf/quant/NAME.yaml, or of VARIANTS."""
    if name in VARIANTS:
        return Blockwise(**{**VARIANTS[name], **changes})
    if name in ("int3", "int4"):  # blocks that rows of 64 have room for
        changes = {"block_elems": 32, "scale": "f32", **changes}
    tree = OmegaConf.create({"quant": OmegaConf.load(CONF / f"{name}.yaml")})
    for elsewhere in {"quantize", "dequantize", "seed"} & set(tree.quant):
        del tree.quant[elsewhere]
    node = OmegaConf.to_container(tree.quant, resolve=True)
    resolver = Resolver()
    method = resolver.build({**node, **changes}, "quant")
    assert not resolver.problems
    return method


def on(method, backend):
    return replace(method, quantize=Kernel("quantize", (backend,)), dequantize=Kernel("dequantize", (backend,)))


def same(a, b):
    assert a.scheme == b.scheme
    assert a.components.keys() == b.components.keys()
    for name, array in a.components.items():
        other = b.component(name)
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        assert np.array_equal(np.ascontiguousarray(array).view(np.uint8), np.ascontiguousarray(other).view(np.uint8)), (
            name
        )


def spread(shape, low=-12, high=4, seed=0, dtype=BF16):
    rng = np.random.default_rng(seed)
    exponents = rng.integers(low, high, (*shape[:-1], 1)) if len(shape) > 1 else 0
    return (rng.standard_normal(shape) * np.exp2(exponents)).astype(dtype)


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
@pytest.mark.parametrize("more", [{}, {"search": "mse"}, {"stochastic": True, "seed": 7}], ids=["", "search", "random"])
@pytest.mark.brief(each=("name",))
def test_backends_agree(name, more):
    known = built(name)
    if "search" in more and not known.search_grid and known.scale != "e8m0":
        more = {**more, "search_grid": (0.8, 0.95)}
    if "search" in more and (0 in (known.block_elems, known.block_rows) or known.second == "dynamic8"):
        pytest.skip("refused, see below")
    method = replace(known, **more)
    for shape, dtype in [((6, 128), BF16), ((2, 3, 128), np.float32), ((5, 64), np.float16)]:
        x = spread(shape, dtype=dtype)
        x[..., :3] *= -0.0
        (a, sa), (b, sb) = (on(method, k).encode(x, measure=True) for k in ("reference", "numpy"))
        same(a, b)
        assert {c: v.shape for c, v in a.components.items()} == a.scheme.components(shape)
        assert np.allclose(sa.to_json(), sb.to_json(), rtol=1e-6)
        for to in ("F32", "BF16", "F16"):
            y, z = (on(method, k).decode(a, to) for k in ("reference", "numpy"))
            assert y.tobytes() == z.tobytes()
        want = ErrorStats.between(x.astype(np.float32), method.decode(a, "F32"))
        assert np.allclose(sb.to_json(), want.to_json(), rtol=1e-6)
        assert sb.sqnr_db > (0 if a.scheme.element.endswith("int2") else 9)


@pytest.mark.parametrize("name", FLOATS)
def test_elements_against_ml_dtypes(name):
    """All codes' values; every float32 upper half, and neighbours, as codes (saturating where ml_dtypes does not)."""
    theirs = np.dtype(getattr(ml_dtypes, FLOATS[name]))
    e = element(name)
    codes = np.arange(1 << e.bits, dtype=np.uint8)
    values = codes.view(theirs).astype(np.float32)
    assert np.array_equal(e.values, values, equal_nan=True)
    assert np.array_equal(np.signbit(e.values), np.signbit(values))
    patterns = np.arange(1 << 16, dtype=np.uint32) << 16
    v = np.concatenate([patterns, patterns | 1, patterns | 0x8000]).view(np.float32)
    v = v[np.abs(v) <= np.float32(e.max)]
    assert np.array_equal(encode(e, v.copy(), "even", "signed"), v.astype(theirs).view(np.uint8))
    past = np.array([np.nextafter(np.float32(e.max), np.float32(np.inf)), 1e30, np.inf], np.float32)
    assert np.array_equal(e.values[encode(e, past.copy(), "even", "signed")], [e.max] * 3)


@pytest.mark.parametrize("nbits", [2, 3, 4, 6, 8])
def test_bits_pack_and_unpack(nbits):
    codes = np.random.default_rng(0).integers(0, 1 << nbits, (3, 5, 48), np.uint8)
    packed = bits.pack(codes, nbits)
    assert packed.shape == (3, 5, 48 * nbits // 8)
    assert np.array_equal(bits.unpack(packed, nbits), codes)
    stream = int.from_bytes(packed[1, 2].tobytes(), "little")
    assert [stream >> (nbits * j) & ((1 << nbits) - 1) for j in range(48)] == codes[1, 2].tolist()


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
def test_slices_and_layouts(name):
    """A box encodes to the box of the whole, wherever it lies in memory; a tile's borders change nothing."""
    method = built(name)
    x = spread((2, 264, 640), seed=3)
    q = method.encode(x)
    same(method.encode(np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)), q)
    same(method.encode(np.repeat(x, 2, axis=2)[..., ::2]), q)
    if method.scheme.whole_only:
        return
    observed = Extremes.of(x[1:2].astype(np.float32)) if method.needs_extremes else None
    part = method.encode(x[1:2, 128:264], **({"observed": observed} if observed else {}))
    assert np.array_equal(part.codes, q.codes[1:2, 128:264])
    assert np.array_equal(method.decode(part), method.decode(q)[1:2, 128:264])


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
@pytest.mark.parametrize("backend", ["reference", "numpy"])
def test_zero_blocks_and_nonfinite(name, backend):
    method = on(built(name), backend)
    x = np.zeros((4, 128), BF16)
    assert not method.decode(method.encode(x)).any()
    x[1, 5] = 3
    y = method.decode(method.encode(x))
    assert abs(float(y[1, 5]) - 3) <= (0.5 if "min" in name else 0.3)
    assert np.count_nonzero(y) == 1
    for bad in (np.nan, np.inf, -np.inf):
        x[2, 70] = bad
        with pytest.raises(ValueRangeError, match=f"^flat index {2 * 128 + 70}: "):
            method.encode(x)
        if method.second is None and method.block_rows == 1:
            poisoned = replace(method, nonfinite="poison")
            q, stats = poisoned.encode(x, measure=True)
            y = poisoned.decode(q)
            assert np.isnan(y[2, 70])
            assert np.isnan(y).sum() == (method.block_elems or 128)
            assert stats.count == x.size - np.isnan(y).sum()


@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize(
    ("name", "like"), [("mxfp6_e2m3", 7.5), ("mxfp6_e3m2", 28), ("mxfp8_e4m3", 448), ("mxfp8_e5m2", 57344)]
)
def test_power_rules_at_their_thresholds(name, like, rule):
    """floor and ceil bracket amax; rceil just holds it; even goes up half a step before a power of two."""
    e = element(built(name).element)
    top = 2.0**e.emax
    step = 2.0 ** -(e.mantissa_bits + 1)
    for mantissa, up in [(1.0, ()), (1.01, ("ceil",)), (like / top, ("ceil",)),
                         (like / top + 2**-20, ("ceil", "rceil")),
                         (2 - step - 2**-20, None), (2 - step, None)]:  # fmt: skip
        x = np.zeros((1, 32), np.float32)
        x[0, 3] = mantissa * top
        expected = 127 + (rule in up) if up is not None else None
        if rule == "even":
            expected = 127 + (mantissa >= 2 - step)
        for backend in ("reference", "numpy"):
            found = on(built(name, scale_rule=rule), backend).encode(x).scales[0, 0]
            assert expected is None or found == expected, (mantissa, backend)


def test_e8m0_at_the_ends():
    """Subnormal scales and values survive; the largest float32 does not overflow."""
    for name in ("mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8"):
        method = built(name)
        e = element(method.element)
        x = np.zeros((2, 32), np.float32)
        x[0, :2] = [2.0**-127 * min(e.max, 1.0), -(2.0**-128)]
        x[1, 0] = np.finfo(np.float32).max
        a, b = (on(method, k).encode(x) for k in ("reference", "numpy"))
        same(a, b)
        assert a.scales[0, 0] == 0
        y = method.decode(a, "F32")
        assert y[0, 0] == x[0, 0] or e.name == "mxint8"
        assert np.isfinite(y).all()


def test_nf4_table_and_ties():
    e = element("nf4")
    published = [-1, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0, 0.0795803,
                 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1]  # fmt: skip
    assert np.allclose(e.values, published, rtol=0, atol=5e-9 + 2**-25)
    values = e.values.astype(np.float64)
    v = np.random.default_rng(0).uniform(-1, 1, 200_000).astype(np.float32)
    near = np.argmin(np.abs(v[:, None].astype(np.float64) - values), axis=1)
    assert np.array_equal(encode(e, v.copy(), "down", "signed"), near)
    assert np.array_equal(encode(e, e.values.copy(), "even", "signed"), np.arange(16))


def test_ties_of_every_rule():
    v = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    want = {"even": [0, 2, 2, 0, -2, -2], "zero": [0, 1, 2, 0, -1, -2], "away": [1, 2, 3, -1, -2, -3],
            "down": [0, 1, 2, -1, -2, -3], "up": [1, 2, 3, 0, -1, -2]}  # fmt: skip
    for ties, expected in want.items():
        assert element("int4").values[encode(element("int4"), v.copy(), ties, "signed")].tolist() == expected
    v = np.array([0.25, 0.75, 1.25, -0.25, -0.75, 5.0, -5.0], np.float32)
    want = {"even": [0, 1, 1, 0, -1, 4, -4], "zero": [0, 0.5, 1, 0, -0.5, 4, -4],
            "away": [0.5, 1, 1.5, -0.5, -1, 6, -6], "down": [0, 0.5, 1, -0.5, -1, 4, -6]}  # fmt: skip
    for ties, expected in want.items():
        assert element("e2m1").values[encode(element("e2m1"), v.copy(), ties, "signed")].tolist() == expected


def test_stochastic_rounding_is_unbiased_and_depends_on_place_only():
    method = built("int4", stochastic=True, seed=5)
    x = np.full((512, 64), 0.3, np.float32)
    x[:, ::32] = 7  # scale 1
    q = method.encode(x, place=("w", x.shape, (0, 0)))
    values = method.decode(q, "F32")[:, 1::2]
    assert set(np.unique(values)) == {0, 1}
    assert values.mean() == pytest.approx(0.3, abs=0.01)
    part = method.encode(x[100:200], place=("w", x.shape, (100, 0)))
    assert np.array_equal(part.codes, q.codes[100:200])
    assert not np.array_equal(method.encode(x, place=("v", x.shape, (0, 0))).codes, q.codes)
    assert not np.array_equal(replace(method, seed=6).encode(x, place=("w", x.shape, (0, 0))).codes, q.codes)


def test_search_never_loses():
    x = spread((64, 256), seed=9, dtype=np.float32)
    for name in ("mxfp4", "mxfp6_e2m3", "int4", "nvfp4", "q4_0", "nf4"):
        plain, searched = (built(name, search=s).encode(x, measure=True)[1] for s in ("none", "mse"))
        assert searched.sq_error <= plain.sq_error
    x = np.random.default_rng(0).normal(0, 0.02, (4096, 32)).astype(np.float32)
    assert built("mxfp4", search="mse").encode(x, measure=True)[1].sqnr_db == pytest.approx(19.04, abs=0.02)


def test_what_means_nothing_is_refused():
    for bad, why in [
        ({"element": "nf4", "block_elems": 32, "scale": "e8m0", "scale_rule": "even"}, "mantissa"),
        ({"element": "int8", "block_elems": 32, "scale": "f32", "scale_rule": "floor"}, "power of two"),
        ({"element": "e2m1", "block_elems": 32, "scale": "e8m0", "scale_rule": "amax"}, "real number"),
        ({"element": "uint4", "block_elems": 32, "scale": "f32", "zero_point": "int", "scale_rule": "amax"}, "minmax"),
        ({"element": "e2m1", "block_elems": 32, "scale": "e8m0", "second": "f32"}, "second-level"),
        ({"element": "e2m1", "block_elems": 16, "scale": "f32", "second": "f32"}, "narrow"),
        ({"element": "e2m1", "block_elems": 16, "scale": "e4m3", "ties": "up"}, "ggml"),
        ({"element": "int8", "block_elems": 32, "block_rows": 0, "scale": "f32"}, "all rows"),
        ({"element": "int4", "block_elems": 0, "scale": "f32", "block_rows": 0, "search": "mse", "search_grid": (0.9,)},
         "one block after the other"),
        ({"element": "int4", "block_elems": 8, "scale": "f32", "block_rows": 1 << 14, "search": "mse",
          "search_grid": (0.9,)}, "at most"),
        ({"element": "int4", "block_elems": 0, "scale": "f32", "block_rows": 2, "search": "mse", "search_grid": (0.9,)},
         "band of whole rows"),
        ({"element": "e2m1", "block_elems": 32, "scale": "e8m0", "search": "mse", "search_steps": 0}, "1 to 254"),
        ({"element": "e4m3", "block_elems": 0, "scale": "f32", "zero_scale": math.nan}, "positive"),
        ({"element": "e2m1", "block_elems": 32, "scale": "e8m0", "least_scale": 0.5}, "of real scales"),
        ({"element": "int8", "block_elems": 32, "scale": "f32", "tiny": "torchao"}, "least scale of e8m0"),
        ({"element": "e2m1", "block_elems": 32, "scale": "e8m0", "like": "ggml", "ties": "even"}, "contradicts"),
        ({"element": "nf4", "block_elems": 64, "scale": "f32", "like": "ggml"}, "not known"),
        ({"element": "nf4", "block_elems": 64, "scale": "dynamic8", "second": "dynamic8"}, "too late"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=why):
            Blockwise(**bad)
    for bad, why in [
        ({"element": "int4", "block_elems": 8, "scale": "f32", "search": "mse", "search_grid": (0.9, 0.0)}, "above 0"),
        ({"element": "int4", "block_elems": 8, "scale": "f32", "search": "mse", "search_grid": (1e999,)}, "below 100"),
        ({"element": "e4m3", "block_elems": 0, "scale": "f32", "least_scale": -1.0}, "0 or more"),
    ]:  # fmt: skip
        with pytest.raises(PlanError, match=why):
            Blockwise(**bad)
    with pytest.raises(ValueRangeError, match="out of range of F16"):
        built("q8_0").encode(np.full((1, 32), 1e38, np.float32))


def test_a_user_may_change_the_block_alone():
    for rows, elems in itertools.product((1, 3, 0), (8, 40, 0)):
        if rows == 0 and elems:
            continue
        method = built("int4", block_rows=rows, block_elems=elems)
        x = spread((7, 80))
        same(*(on(method, k).encode(x) for k in ("reference", "numpy")))
    assert mx_method(element="e3m2", block_elems=16).scheme == Scheme("e3m2", 16, "e8m0")


def test_every_preset_has_block_axis_and_scale_to_change():
    for name in NAMES:
        node = yaml.safe_load((CONF / f"{name}.yaml").read_text())
        assert {"element", "block_elems", "block_rows", "scale", "scale_rule", "ties"} <= node.keys(), name
        more = {"zero": None} if node["element"].startswith("e") else {}
        method = built(name, block_rows=16, block_elems=1, like=None, ties="even", **more)
        x = spread((5, 16 + 3, 24), seed=1)  # a last band that is lower than a block
        q = on(method, "numpy").encode(x)
        assert q.scales.shape == (5, 2, 24)
        same(on(method, "reference").encode(x), q)


def test_a_scale_is_searched_for_by_row_too():
    x = spread((6, 160), seed=3)
    method = built("int4", block_elems=0, search="mse")
    found = on(method, "numpy").encode(x)
    same(on(method, "reference").encode(x), found)
    plain = built("int4", block_elems=0)
    errors = [np.square(m.decode(m.encode(x), "F32") - x.astype(np.float32)).sum(-1) for m in (method, plain)]
    assert (errors[0] <= errors[1]).all()
    assert (errors[0] < errors[1]).any()


@pytest.mark.parametrize(("name", "target", "changes"), [
    ("q4_0", "q8_0", {}), ("q4_0", "int4", {}), ("int4", "int8", {"block_elems": 32}), ("int3", "int4", {}),
    ("q8_0", "int8", {"block_elems": 16, "scale": "f32"}), ("mxfp4", "fp8_e4m3", {"block_elems": 8, "block_rows": 1}),
    ("mxfp6_e2m3", "fp8_e4m3", {"block_elems": 32, "block_rows": 1}), ("q4_1", "q4_1", {"element": "uint8"}),
    ("int8", "int8", {"block_elems": 8}), ("int8", "int8", {"block_elems": 8, "block_rows": 2}),
    ("nvfp4", "fp8_e4m3", {"block_elems": 16, "block_rows": 1, "scale": "e4m3", "second": "f32"}),
])  # fmt: skip
def test_recoding_keeps_scales_where_codes_have_room(name, target, changes):
    """Encoding again would choose other scales: -8 of Q4_0 under a symmetric rule, say."""
    given, method = built(name), built(target, like=None, **changes)
    x = spread((3, 7, 64), seed=5)
    q = given.encode(x)
    if changes.get("block_rows") == 2:
        with pytest.raises(NotLossless):
            method.recode(q)
        return
    found = method.recode(q)
    assert found.scheme == method.scheme
    assert method.decode(found, "F32").tobytes() == given.decode(q, "F32").tobytes()


def test_recoding_between_schemes_is_exact_or_refused():
    rng = np.random.default_rng(0)
    q = QTensor(rng.integers(0, 256, (8, 32), np.uint8), rng.integers(115, 125, (8, 2), np.uint8), mx_method().scheme)
    wide = built("mxfp8_e4m3").recode(q)
    assert np.array_equal(mx_method().decode(wide, "F32"), mx_method().decode(q, "F32"))
    with pytest.raises(NotLossless):
        built("int4").recode(q)


@pytest.mark.parametrize("second", ["f32", "inverse_f32"])
def test_mxfp4_becomes_nvfp4_without_loss_or_not_at_all(second):
    rng = np.random.default_rng(1)
    method = built("nvfp4", second=second)
    scales = rng.integers(100, 118, (3, 8, 2), np.uint8)
    scales[1] += 60
    scales[0, 0] = [100, 117]
    scales[2, 3, 1] = 255  # NaN stays NaN
    q = QTensor(rng.integers(0, 256, (3, 8, 32), np.uint8), scales, mx_method().scheme)
    q.codes[1, 2, :16] = 0x80  # zeros have no say, but keep their sign
    q.scales[1, 2, 0] = 3
    found = method.recode(q)
    assert {c: a.shape for c, a in found.components.items()} == method.scheme.components(q.shape)
    assert np.array_equal(found.codes, q.codes)
    for backend in ("reference", "numpy"):
        assert on(method, backend).decode(found, "F32").tobytes() == mx_method().decode(q, "F32").tobytes()
    for byte in (0, 1, 254):
        q.scales[0] = byte
        assert method.decode(method.recode(q), "F32").tobytes() == mx_method().decode(q, "F32").tobytes()
    q.scales[0, 0] = [100, 118]
    with pytest.raises(NotLossless, match=r"matrix \(0,\) span 2\^-27 … 2\^"):
        method.recode(q)


@pytest.mark.parametrize("name", NAMES)
def test_the_stage_quantizes_in_pieces_as_in_one(name):
    """Whole-matrix scales and random numbers too: pieces of rows give the bytes of the whole."""
    x = spread((2, 96, 128), seed=4)
    store = MemoryStore({"w": x})
    for method in (built(name), replace(built(name), stochastic=True, ties=None, like=None)):
        coded = CodedStore(store, {"w": method}, measure=False)
        whole = coded.read("w")
        for rows in (slice(0, 32), slice(32, 96)):
            part = coded.read("w", (slice(1, 2), rows))
            assert np.array_equal(part.codes, whole.codes[1:2, rows])
            assert np.array_equal(method.decode(part), method.decode(whole)[1:2, rows])


@pytest.mark.parametrize("backend", ["reference", "numpy"])
def test_a_minimum_of_zero_has_the_sign_of_the_first(backend):
    x = np.abs(spread((6, 64), dtype=np.float32))
    x[1:, [5, 9, 38, 40]] = [0.0, -0.0, -0.0, 0.0]
    zeros = on(built("q4_1"), backend).encode(x).zeros
    assert np.signbit(zeros[1:]).tolist() == [[False, True]] * 5
    assert (zeros[0] > 0).all()


@pytest.mark.parametrize("backend", ["reference", "numpy", "xla"])
def test_the_zero_point_of_a_zero_block_is_the_librarys(backend):
    """In the middle for compressed-tensors, which divides 0 by 0; the least code for qwix, and for us."""
    for like, zero in (("compressed_tensors", 8), ("qwix", 0), (None, 0)):
        method = on(built("uint4 with a zero point", like=like, zero_scale=None), backend)
        q = method.encode(np.zeros((2, 64), np.float32))
        assert q.zeros.tolist() == [[zero] * 2] * 2
        assert bits.unpack(q.codes, 4).tolist() == [[zero] * 64] * 2
        assert not method.decode(q, "F32").any()
    with pytest.raises(ConfigError, match="zero_block=middle is where the zero point"):
        Blockwise("int4", 32, "f32", scale_rule="amax", zero_block="middle")
