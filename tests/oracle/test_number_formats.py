"""Other people's codecs, bit for bit: torchao, ggml, compressed-tensors, and bitsandbytes' rule written out."""

import warnings

import ml_dtypes
import numpy as np
import pytest

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from plugins.facts.codebooks import dynamic8
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.quant.blockwise import Blockwise
from tests.cases.mx import mx_method
from tests.oracle.conftest import tensor
from tests.unit.kernels.test_number_formats import built, on, same, spread

BF16 = ml_dtypes.bfloat16


def blocks(seed=0, dtype=BF16):
    """Blocks over the whole range of exponents, wide and narrow ones, and exact values of the elements among them."""
    rng = np.random.default_rng(seed)
    base = rng.integers(2, 250, (6000, 1))
    exponent = np.clip(base - rng.integers(0, rng.integers(1, 30, (6000, 1)), (6000, 64)), 1, 253).astype(np.uint32)
    coarse = rng.integers(0, 128, (6000, 64), np.uint32) << 16
    fine = 0 if dtype == BF16 else rng.integers(0, 1 << 16, (6000, 64), np.uint32)
    sign = rng.integers(0, 2, (6000, 64), np.uint32) << 31
    return (sign | exponent << 23 | coarse | fine).astype(np.uint32).view(np.float32).astype(dtype)


@pytest.mark.oracle
@pytest.mark.parametrize("rule", ["floor", "ceil", "even", "rceil"])
@pytest.mark.parametrize("name", ["e2m3", "e3m2", "e4m3", "e5m2"])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.brief
def test_torchao_mx(torch, mx_tensor, name, rule, dtype):
    kinds = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2,
             "e2m3": mx_tensor.DTYPE_FP6_E2M3, "e3m2": mx_tensor.DTYPE_FP6_E3M2}  # fmt: skip
    for x in (blocks(dtype=dtype), spread((500, 64), dtype=dtype)):
        scale, data = mx_tensor.to_mx(tensor(torch, x), kinds[name], 32, mx_tensor.ScaleCalculationMode(rule))
        ours = mx_method(element=name, scale_rule=rule, tiny="torchao").encode(x)
        theirs = scale.view(torch.uint8).numpy()
        if rule == "rceil" and dtype is np.float32:  # its float32 log2 loses the last bits of amax far from 1
            keep = np.repeat(theirs == ours.scales, 32, axis=-1)
            assert keep.mean() > 0.999
        else:
            assert np.array_equal(ours.scales, theirs)
            keep = np.ones(x.shape, bool)
        codes = bits.unpack(ours.codes, element(name).bits)
        assert np.array_equal(codes[keep], data.view(torch.uint8).numpy()[keep])


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_torchao_nvfp4(torch, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nvfp4 = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    for x in (spread((300, 96), dtype=dtype), spread((300, 96), -3, 3, 1, dtype)):
        t = tensor(torch, x)
        second = nvfp4.per_tensor_amax_to_scale(t.abs().max())
        scale, data = nvfp4.nvfp4_quantize(t, 16, second)
        ours = built("nvfp4", like="torchao").encode(x)
        assert ours.second.item() == second.item()
        assert np.array_equal(ours.scales.view(np.uint8), scale.view(torch.uint8).numpy().reshape(300, 6))
        assert np.array_equal(ours.codes, data.view(torch.uint8).numpy())
        scale, data = nvfp4.nvfp4_quantize(t, 16)
        ours = built("nvfp4", like="torchao", second=None).encode(x)
        assert np.array_equal(ours.scales.view(np.uint8), scale.view(torch.uint8).numpy().reshape(300, 6))
        assert np.array_equal(ours.codes, data.view(torch.uint8).numpy())


def ggml(name, x):
    """(scales, minima or None, codes one a byte as ggml counts them, decoded) by the gguf package."""
    import gguf

    kind = getattr(gguf.GGMLQuantizationType, name)
    raw = gguf.quants.quantize(x.astype(np.float32), kind)
    head = 4 if name == "Q4_1" else 2
    b = raw.reshape(-1, head + (32 if name == "Q8_0" else 16))
    d = b[:, :2].copy().view(np.float16)[:, 0]
    m = b[:, 2:4].copy().view(np.float16)[:, 0] if name == "Q4_1" else None
    q = b[:, head:]
    codes = q if name == "Q8_0" else np.concatenate([q & 15, q >> 4], axis=1)
    return d, m, codes, gguf.quants.dequantize(raw, kind)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16])
def test_ggml_bytes(name, dtype):
    x = spread((4000, 96), dtype=dtype)
    x[:40] = np.round(x[:40] * 4) / 4  # ties and exact values
    x[40:44] = 0
    x[44:46] = -0.0
    x[46:48] = 1
    x[48:50] = -1
    d, m, codes, decoded = ggml(name, x)
    method = built(name.lower())
    q = method.encode(x)
    assert np.array_equal(q.scales.view(np.uint16).ravel(), d.view(np.uint16))
    if m is not None:
        # Of zeros of both signs ggml keeps the first, as the reference does; NumPy's minimum, here, any.
        assert np.array_equal(q.zeros.ravel(), m)
    ours = bits.unpack(q.codes, q.scheme.element_bits).reshape(-1, 32)
    assert np.array_equal((ours + 8) & 15 if name == "Q4_0" else ours, codes)
    y = method.decode(q, "F32")
    assert np.array_equal(y.view(np.uint32), decoded.reshape(y.shape).view(np.uint32))


@pytest.mark.oracle
@pytest.mark.parametrize("nbits", [8, 4])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["group", "channel", "tensor"])
def test_compressed_tensors_integers(torch, nbits, symmetric, strategy):
    x = spread((70, 128), -6, 3, nbits, np.float32)
    x[3] = np.abs(x[3])
    x[5], x[9] = 0, -0.0  # its zero point is 0 / 0, cast to an integer
    x[11], x[13], x[15] = -1e-45, 1e-45, 0
    x[15, ::2] = -1e-45  # too small for a scale: minus a few over 0 is an infinity, clamped
    x[7] = np.round(x[7] * 2) / 2 + 1
    elems, rows = {"group": (32, 1), "channel": (0, 1), "tensor": (0, 0)}[strategy]
    kind = {"element": f"int{nbits}"} if symmetric else {"element": f"uint{nbits}", "zero_point": "int"}
    method = Blockwise(**kind, block_elems=elems, block_rows=rows, scale="f32", like="compressed_tensors")
    q = method.encode(x)
    scale, zero, codes, decoded = by_compressed_tensors(torch, x, nbits, "int", symmetric, strategy)
    assert np.array_equal(q.scales.reshape(scale.shape), scale)
    if not symmetric:
        assert np.array_equal(q.zeros.reshape(zero.shape).astype(int), zero.astype(int) + (1 << (nbits - 1)))
    ours = bits.unpack(q.codes, nbits).astype(int)
    theirs = codes.astype(int)
    assert np.array_equal(ours, theirs & ((1 << nbits) - 1) if symmetric else theirs + (1 << (nbits - 1)))
    assert np.array_equal(method.decode(q, "F32"), decoded)
    if not symmetric:
        nothing = np.zeros_like(x)
        q = method.encode(nothing)
        _, zero, codes, _ = by_compressed_tensors(torch, nothing, nbits, "int", symmetric, strategy)
        assert np.array_equal(q.zeros.reshape(zero.shape).astype(int), zero.astype(int) + (1 << (nbits - 1)))
        assert np.array_equal(bits.unpack(q.codes, nbits).astype(int), codes.astype(int) + (1 << (nbits - 1)))
        for backend in ("reference", "xla"):
            same(on(method, backend).encode(x), method.encode(x))
            same(on(method, backend).encode(nothing), q)


@pytest.mark.oracle
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_compressed_tensors_fp8(torch, strategy):
    x = spread((70, 128), -6, 3, 3, np.float32)
    method = built("fp8_e4m3", like="compressed_tensors", block_rows=0 if strategy == "tensor" else 1)
    q = method.encode(x)
    scale, _, codes, decoded = by_compressed_tensors(torch, x, 8, "float", True, strategy)
    assert np.array_equal(q.scales.reshape(scale.shape), scale)
    assert np.array_equal(q.codes, codes.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    assert np.array_equal(method.decode(q, "F32"), decoded)


@pytest.mark.oracle
def test_compressed_tensors_nvfp4(torch):
    x = spread((40, 128), -3, 3, 3, np.float32)
    method = built("nvfp4", like="compressed_tensors", second="inverse_f32")
    q = method.encode(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from compressed_tensors.quantization.utils import generate_gparam
    t = torch.from_numpy(x)
    theirs = generate_gparam(t.min().reshape(1), t.max().reshape(1))
    assert q.second.item() == theirs.item()
    scale, _, codes, decoded = by_compressed_tensors(torch, x, 4, "float", True, "tensor_group", 16, theirs)
    assert np.array_equal(q.scales.astype(np.float32), scale)
    assert np.array_equal(element("e2m1").values[bits.unpack(q.codes, 4)], codes)
    assert np.array_equal(method.decode(q, "F32"), decoded)


def by_compressed_tensors(torch, x, nbits, kind, symmetric, strategy, group=32, global_scale=None):
    """(scales, zero points, codes, decoded) by the functions that its compressors call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ct = pytest.importorskip("compressed_tensors.quantization")
        from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
        from compressed_tensors.quantization.utils import calculate_qparams
    more = {"group_size": group} if "group" in strategy else {}
    if strategy == "tensor_group":
        more["scale_dtype"] = torch.float8_e4m3fn
    args = ct.QuantizationArgs(num_bits=nbits, type=kind, symmetric=symmetric, strategy=strategy, **more)
    t = torch.from_numpy(x)
    parts = (
        t.reshape(len(x), -1, group) if "group" in strategy else t[:, None] if strategy == "channel" else t[None, None]
    )
    axes = (1, 2) if strategy == "tensor" and parts.ndim == 3 and parts.shape[0] == 1 else (-1,)
    if strategy == "tensor":
        low, high = t.min().reshape(1), t.max().reshape(1)
    else:
        low, high = parts.amin(dim=axes), parts.amax(dim=axes)
    scale, zero = calculate_qparams(low, high, args, global_scale=global_scale)
    codes = quantize(t, scale, zero, args, global_scale=global_scale)
    decoded = dequantize(codes, scale, None if symmetric else zero, args=args, global_scale=global_scale)
    return scale.float().numpy(), zero.float().numpy(), codes.float().numpy(), decoded.float().numpy()


def test_bitsandbytes_nf4_by_its_rule():
    """Its reference: multiply by 1 / absmax in float32, take the first of the nearest table values."""
    x = spread((200, 128), dtype=np.float32)
    q = built("nf4").encode(x)
    b = x.reshape(-1, 64)
    amax = np.abs(b).max(axis=1, keepdims=True)
    scaled = np.clip(b * (np.float32(1) / amax), -1, 1)
    codes = np.argmin(np.abs(scaled[..., None] - element("nf4").values), axis=-1)
    assert np.array_equal(q.scales.ravel(), amax.ravel())
    assert np.array_equal(bits.unpack(q.codes, 4).reshape(b.shape), codes)
    twice = built("nf4", scale="dynamic8", second="dynamic8")
    d = twice.encode(x)
    assert np.array_equal(d.codes, q.codes)
    offset = amax.mean(dtype=np.float64).astype(np.float32)
    rest = (amax.ravel() - offset).astype(np.float32)
    largest = np.array([np.abs(rest[i : i + 256]).max() for i in range(0, rest.size, 256)], np.float32)
    assert np.array_equal(d.second, [*largest, offset])
    ratio = rest * np.repeat(np.float32(1) / largest, 256)[: rest.size]
    assert np.array_equal(d.scales.ravel(), np.argmin(np.abs(ratio[:, None] - dynamic8()), axis=1))
    bits_a_value = 8 * TensorSpec((4096, 4096), "BF16", d.scheme).nbytes / 4096**2
    assert bits_a_value == pytest.approx(4 + 8 / 64 + 32 / 64 / 256, abs=1e-4)


@pytest.mark.oracle
def test_dynamic_map_is_made_as_published(torch):
    """The map's definition, with torch's own linspace: 2^i parts of [0.1, 1] in decade i."""
    found = [0.0, 1.0]
    for i in range(7):
        ends = torch.linspace(0.1, 1, (1 << i) + 1)
        middles = (10 ** (i - 6)) * ((ends[:-1] + ends[1:]) / 2.0)
        found += [*middles.tolist(), *(-middles).tolist()]
    found.sort()
    theirs = torch.tensor(found).numpy()
    assert theirs.size == 256
    assert np.array_equal(dynamic8(), theirs)


def test_modelopt_signs():
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [4, 0.25, -0.25, 0.0, 0.1]
    codes = bits.unpack(mx_method(like="modelopt").encode(x).codes, 4)
    assert codes[0, :5].tolist() == [6, 0, 8, 8, 0]


def test_ggml_mxfp4_through_like():
    x = spread((50, 64))
    a, b = mx_method(like="ggml").encode(x), mx_method(scale_rule="floor", ties="zero", zero="positive").encode(x)
    assert isinstance(a, QTensor)
    assert np.array_equal(a.codes, b.codes)
    assert np.array_equal(a.scales, b.scales)
