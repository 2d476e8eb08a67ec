"""The codec beside other people's, bit for bit: torchao, ml_dtypes, ggml, compressed-tensors, transformers.

Where one of them departs from the specification the test says how, and holds it to that too.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from tests.cases.mx import RULES
from tests.oracle.conftest import tensor
from tests.oracles import mx
from tests.unit.kernels.test_mx_codec import every_pattern, unpack

BF16 = ml_dtypes.bfloat16
quantize, dequantize = Kernel("quantize", ("numpy", "reference")), Kernel("dequantize", ("numpy",))


@pytest.fixture(scope="module")
def to_mx(torch, mx_tensor):
    """torchao's encoder as a NumPy function: (packed codes, scales) of bfloat16 or float32 `[..., n]`."""

    def call(x, rule):
        mode = mx_tensor.ScaleCalculationMode(rule)
        t = tensor(torch, np.ascontiguousarray(x))
        scale, data = mx_tensor.to_mx(t, torch.float4_e2m1fn_x2, 32, scaling_mode=mode)
        return data.view(torch.uint8).numpy(), scale.view(torch.uint8).numpy()

    return call


def assert_same(x, rule, theirs, name=""):
    codes, scales = theirs
    ours = quantize(x, MXFP4, scale_rule=rule, tiny="torchao", overflow="inf")
    assert np.array_equal(ours.scales, scales), name
    assert np.array_equal(ours.codes, codes), name
    # Without `tiny`, only codes of blocks with scale byte 0 may differ.
    spec = quantize(x, MXFP4, scale_rule=rule, overflow="inf")
    assert np.array_equal(spec.scales, scales), name
    differs = (spec.codes != codes).reshape(*scales.shape, 16).any(axis=-1)
    assert not (differs & (scales != 0)).any(), name


@pytest.mark.oracle
@pytest.mark.parametrize("rule", RULES)
def test_torchao_on_every_pattern(to_mx, rule):
    for name, x in every_pattern():
        assert_same(x, rule, to_mx(x, rule), name)


@pytest.mark.oracle
@pytest.mark.parametrize("rule", RULES)
def test_torchao_on_ten_million_values(to_mx, rule):
    """Over the whole range of exponents, with blocks that are wide and blocks that are narrow."""
    rng = np.random.default_rng(RULES.index(rule))
    for spread in (0, 1, 3, 250):
        base = rng.integers(0, 255, (80_000, 1))
        exponent = np.clip(base - rng.integers(0, spread + 1, (80_000, 32)), 0, 254).astype(np.uint16)
        bits = exponent << 7 | rng.integers(0, 128, exponent.shape, np.uint16)
        bits |= rng.integers(0, 2, exponent.shape, np.uint16) << 15
        assert_same(bits.view(BF16), rule, to_mx(bits.view(BF16), rule), f"spread {spread}")


@pytest.mark.oracle
@pytest.mark.parametrize("rule", RULES)
def test_torchao_on_float32(to_mx, rule):
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((4000, 64)) * np.exp2(rng.integers(-140, 125, (4000, 1)))).astype(np.float32)
    assert_same(x, rule, to_mx(x, rule))


@pytest.mark.oracle
def test_what_torchao_does_with_tiny_blocks(to_mx):
    """It stores scale byte 0, 2^-127, but divides by 2^-126 (rceil: by 1): what it wrote decodes to half, or to 0."""
    x = np.zeros((1, 32), BF16)
    x[0, 0] = 4 * 2.0**-127
    for rule, value in (("floor", 2.0**-126), ("rceil", 0.0)):
        codes, scales = to_mx(x, rule)
        assert scales.tolist() == [[0]]
        assert dequantize(QTensor(codes, scales, MXFP4), "F32")[0, 0] == value
        assert dequantize(quantize(x, MXFP4, scale_rule=rule), "F32")[0, 0] == 2.0**-125


@pytest.mark.oracle
@pytest.mark.parametrize("rule", RULES)
def test_what_torchao_does_with_nan_and_infinity(to_mx, rule):
    """NaN: scale 0xFF, as ours under `poison`. Infinity: a finite scale, where ours is 0xFF: it is no finite weight."""
    x = np.ones((2, 32), BF16)
    x[0, 3], x[1, 3] = np.nan, np.inf
    _, scales = to_mx(x, rule)
    assert scales[0, 0] == 255
    assert scales[1, 0] != 255
    assert quantize(x, MXFP4, scale_rule=rule, nonfinite="poison").scales.tolist() == [[255], [255]]


def test_ml_dtypes_element_cast_on_every_pattern():
    """Under scale 1 the codec is a saturating cast to float4_e2m1fn; a leading 4 keeps the scale at 1."""
    patterns = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    patterns = patterns[(patterns.view(np.uint16) & 0x7FFF) < 0x4100]  # magnitudes below 8
    x = np.full((-(-patterns.size // 31), 32), 4, BF16)
    x[:, 1:].flat[: patterns.size] = patterns
    q = quantize(x, MXFP4)
    assert np.array_equal(unpack(q.codes), x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8))
    assert (q.scales == 127).all()


def test_ml_dtypes_values_of_codes_and_scales():
    codes = np.arange(16, dtype=np.uint8)
    assert np.array_equal(mx.VALUES, codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64))
    scales = np.arange(255, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    assert np.array_equal(mx.SCALES, scales)


def ggml_order(codes):
    """Our packed `[blocks, 16]` in ggml's order: byte j holds elements j and j + 16."""
    c = unpack(codes)
    return c[:, :16] | c[:, 16:] << 4


@pytest.mark.parametrize("make", ["patterns", "normal"])
def test_ggml(make):
    """ggml: floor, ties toward zero, -0 as +0. Its scale wraps below byte 0 and its distances overflow at the top."""
    import gguf

    if make == "normal":
        rng = np.random.default_rng(3)
        blocks = [rng.standard_normal((20_000, 32)) * np.exp2(rng.integers(-118, 124, (20_000, 1)))]
        blocks += [np.zeros((4, 32)), np.full((4, 32), -0.0)]
        x = np.concatenate(blocks).astype(BF16)
    else:
        x = np.concatenate([x.reshape(-1, 32) for _, x in every_pattern()])
    amax = np.abs(x.astype(np.float32)).max(axis=1)
    x = x[(amax >= 2.0**-125) & (amax < 2.0**126) | (amax == 0)]
    want = gguf.quants.quantize(x.astype(np.float32), gguf.GGMLQuantizationType.MXFP4)
    q = quantize(x, MXFP4, ties="zero", zero="positive")
    assert np.array_equal(want[:, :1], q.scales)
    assert np.array_equal(want[:, 1:], ggml_order(q.codes))
    decoded = gguf.quants.dequantize(want, gguf.GGMLQuantizationType.MXFP4)
    assert np.array_equal(decoded, dequantize(q, "F32"))


@pytest.mark.oracle
def test_compressed_tensors_scales(torch):
    """Its rounding of amax is the rule `even`, on bfloat16 and float32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utils = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
    patterns = np.arange(0x0100, 0x7F00, dtype=np.uint16).view(BF16)  # scales that its arithmetic can say
    x = np.zeros((patterns.size, 32), BF16)
    x[:, 9] = patterns
    ours = quantize(x, MXFP4, scale_rule="even").scales[:, 0]
    for dtype in (torch.bfloat16, torch.float32):
        theirs = utils.generate_mx_scales(torch.from_numpy(patterns.view(np.int16)).view(torch.bfloat16).to(dtype))
        assert np.array_equal(ours, np.clip(theirs.float().numpy(), 0, 254).astype(np.uint8))


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_transformers_decodes_alike(torch, dtype):
    """Every byte under every finite scale, including where both overflow to infinity."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("transformers.integrations.mxfp4")
    codes = np.broadcast_to(np.arange(256, dtype=np.uint8), (255, 256)).copy()
    scales = np.broadcast_to(np.arange(255, dtype=np.uint8)[:, None], (255, 16)).copy()
    kind = torch.bfloat16 if dtype == "BF16" else torch.float32
    theirs = module.convert_moe_packed_tensors(
        torch.from_numpy(codes.reshape(1, 255, 16, 16)), torch.from_numpy(scales[None]), dtype=kind
    )
    theirs = theirs[0].T.contiguous()  # it returns the transposed expert
    bits = theirs.view(torch.int16 if dtype == "BF16" else torch.int32).numpy()
    ours = dequantize(QTensor(codes, scales, MXFP4), dtype)
    assert np.array_equal(ours.view(bits.dtype), bits)
