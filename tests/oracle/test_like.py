"""`like=` against the libraries it names: byte for byte what their own encoders made of every bfloat16 amax.

Where a library cannot be installed beside the others, or only a version with other rules, what it made is recorded as
digests of `every_amax()`. Made with: triton-lang/triton 018a674, `downcast_to_mxfp_torch` (ROUND_UP);
NVIDIA/TensorRT-Model-Optimizer 0991404, `MXFP4QTensor.quantize`, and NVIDIA/Model-Optimizer a8d544b,
`MXFP8QTensor.quantize`; microsoft/microxcaling 7bc4195, `_quantize_mx`; google/qwix aa623ac, `quantize_api`. Those of
microxcaling and qwix are made again by `PYTHONPATH=CHECKOUT python -m tests.oracle.like_records LIBRARY`.
"""

import hashlib
import warnings

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.quant.blockwise import Blockwise
from tests.cases.mx import mx_method

MAX = {"e2m1": 6.0, "e4m3": 448.0, "e5m2": 57344.0}
# (library, element): digest of its scale bytes, then of one code a byte; of float32 values for microxcaling.
RECORDED: dict[tuple[str, str], str] = {
    ("triton", "e2m1"): "fdab7127d5060a27",
    ("triton", "e4m3"): "f5b9d523f83d2713",
    ("triton", "e5m2"): "de238754bdc897d3",
    ("modelopt", "e2m1"): "f4ae04273c17ef4e",
    ("modelopt", "e4m3"): "eb893845361a2d11",
    ("microxcaling", "e2m1"): "de33c10e68c9c2c3",
    ("microxcaling", "e2m3"): "a84f05cc6b1e4905",
    ("microxcaling", "e3m2"): "abadc7a135fa638c",
    ("microxcaling", "e4m3"): "b2ab63b4d182f2be",
    ("microxcaling", "e5m2"): "0b07eff7e24372b6",
    ("microxcaling", "mxint8"): "9789b64c2c49b67a",
    ("qwix", "e2m1"): "b689d7e5885f1e79",
}


def every_amax():
    """float32 `[blocks, 32]` of bfloat16 values: a block for every finite amax, the rest within six binades of it."""
    amax = np.arange(0x7F80, dtype=np.uint32)[:, None]
    at = np.arange(amax.size * 32, dtype=np.uint32).reshape(-1, 32) * np.uint32(2654435761)
    at ^= at >> np.uint32(15)
    at *= np.uint32(2246822519)
    at ^= at >> np.uint32(13)
    down = at % np.uint32(6 << 7)
    down[:, 0] = 0
    magnitude = np.where(amax > down, amax - down, 0)
    return (magnitude << np.uint32(16) | (at & np.uint32(1 << 31))).view(np.float32)


def blocks_of(like, name):
    """`every_amax()` without the blocks where plugins/quant/like.py says that nobody's rule is ours."""
    x = every_amax()
    amax = np.abs(x).max(axis=1)
    least = {"triton": MAX.get(name, 0) * 2.0**-127, "qwix": 6 * 2.0**-63}
    return x[amax > least[like]] if like in least else x


def digest(*arrays):
    found = hashlib.sha256()
    for a in arrays:
        found.update(np.ascontiguousarray(a).tobytes())
    return found.hexdigest()[:16]


def ours(like, name):
    x = blocks_of(like, name)
    method = mx_method(element=name, like=like, overflow="inf")
    q = method.encode(x)
    if like == "microxcaling":
        return digest(method.decode(q, "F32") + np.float32(0))  # -0 + 0 is +0
    return digest(q.scales, bits.unpack(q.codes, element(name).bits))


@pytest.mark.parametrize(("like", "name"), RECORDED)
def test_bytes_are_those_recorded(like, name):
    assert ours(like, name) == RECORDED[like, name]


def test_other_rules_have_other_digests():
    assert len(set(RECORDED.values())) == len(RECORDED)
    for like, name in RECORDED:
        other = "torchao" if like != "microxcaling" else None
        q = mx_method(element=name, like=other, ties="zero" if other is None else None, overflow="inf").encode(
            blocks_of(like, name)
        )
        assert digest(q.scales, bits.unpack(q.codes, element(name).bits)) != RECORDED[like, name]


@pytest.mark.oracle
def test_qwix_0_1_8_has_another_rule_for_mxfp4():
    """`rceil`, but where amax is 6 · 2^e: XLA may multiply by the reciprocal of 6, and come out past a power of two."""
    import jax.numpy as jnp
    import qwix

    x = blocks_of("qwix", "e2m1")
    x = x[np.frexp(np.abs(x).max(axis=1))[0] != 0.75]
    theirs = qwix.quantize(jnp.asarray(x), "mxfp4", channelwise_axes=(0,), tiled_axes={1: 32})
    q = mx_method(scale_rule="rceil", overflow="inf").encode(x)
    assert np.array_equal(q.scales.astype(int), np.log2(np.asarray(theirs.scale)).astype(int) + 127)
    assert np.array_equal(bits.unpack(q.codes, 4), np.asarray(theirs.qvalue).view(np.uint8))


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["int8", "int4", "int3", "int2", "e4m3", "e5m2", "nf4", "uint8", "uint4"])
def test_qwix_itself(name):
    """Scales to the last bit, which XLA has its own way with; codes wherever that bit does not decide a tie."""
    import jax.numpy as jnp
    import qwix

    rng = np.random.default_rng(2)
    x = (rng.standard_normal((500, 64)) * np.exp2(rng.integers(-12, 4, (500, 1)))).astype(np.float32)
    x[5], x[11] = 0, np.abs(x[11])
    kinds = {"int8": jnp.int8, "int4": jnp.int4, "e4m3": jnp.float8_e4m3fn, "e5m2": jnp.float8_e5m2}
    unsigned = name.startswith("u")
    how = {"calibration_method": "minmax"} if unsigned else {}
    kind = kinds.get(name.removeprefix("u"), name)
    theirs = qwix.quantize(jnp.asarray(x), kind, channelwise_axes=(0,), tiled_axes={1: 32}, **how)
    zero = {"zero_point": "int"} if unsigned else {}
    q = Blockwise(element=name, block_elems=32, scale="f32", like="qwix", **zero).encode(x)
    assert np.allclose(q.scales, np.asarray(theirs.scale), rtol=2**-23, atol=0)
    half = 1 << (int(name[-1]) - 1) if unsigned else 0
    if unsigned:
        assert np.array_equal(q.zeros.astype(int), np.asarray(theirs.zero_point).astype(int) + half)
    codes = bits.unpack(q.codes, element(name).bits)
    values = codes if name == "nf4" else element(name).values[codes]
    ratio = np.abs(x / np.repeat(q.scales, 32, axis=1))
    tied = (np.abs(ratio % 1 - 0.5) < 1e-4) if "int" in name else np.zeros(x.shape, bool)
    assert tied.mean() < 0.05
    assert np.array_equal(values[~tied], (np.asarray(theirs.qvalue).astype(np.float32) + half)[~tied])


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "nbits"), [("e2m1", 4), ("e2m3", 6)])
def test_compressed_tensors_mx(name, nbits):
    """Its scales and its casts, on every amax whose scale it can say (it neither clamps nor codes zero blocks)."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        utils = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
        args = pytest.importorskip("compressed_tensors.quantization.quant_args")
    cast = {4: args.FP4_E2M1_DATA, 6: args.FP6_E2M3_DATA}[nbits]
    x = every_amax()
    amax = np.abs(x).max(axis=1)
    x = x[(amax >= 2.0**-120) & (amax < 1.75 * 2.0**127)]
    theirs = utils.generate_mx_scales(torch.from_numpy(np.abs(x).max(axis=1)), nbits).numpy()
    scaled = torch.from_numpy(np.ldexp(x, 127 - theirs[:, None].astype(int))).clamp(-cast.max, cast.max)
    values = (cast.cast_to_fp4 if nbits == 4 else cast.cast_to_fp6)(scaled).float().numpy()
    q = mx_method(element=name, like="compressed_tensors").encode(x)
    assert np.array_equal(q.scales[:, 0], theirs)
    assert np.array_equal(element(name).values[bits.unpack(q.codes, element(name).bits)], values)


def test_qwix_reaches_half_a_step_past_the_largest_integer():
    """numerics.get_symmetric_bound: 127.5 for int8, 3.5 for int3; absmax / bound, and 1 where that would be 0."""
    x = np.zeros((3, 32), np.float32)
    x[0, :4] = [127.5, -127.5, 1.5, -2.5]
    x[1, :4] = [3.5, -3.5, 0.5, -1.5]
    for row, name, codes in ((0, "int8", [127, -128, 2, -2]), (1, "int3", [3, -4, 0, -2])):
        method = Blockwise(element=name, block_elems=32, scale="f32", like="qwix")
        q = method.encode(x)
        assert q.scales[[row, 2], 0].tolist() == [1, 1]
        assert element(name).values[bits.unpack(q.codes, element(name).bits)][row, :4].tolist() == codes
    # minmax: (max - min) / 255 and qmin - min / scale, as its int8 zero point; ours counts from 0.
    q = Blockwise(element="uint8", block_elems=32, scale="f32", zero_point="int", like="qwix").encode(x[:1] + 0.5)
    assert q.scales[0, 0] == 1
    assert q.zeros[0, 0] == 127


def test_triton_nvfp4_has_one_level():
    """downcast_to_mxfp_torch with E4M3 scales: amax / 6 rounded to E4M3, values times its reciprocal, ties to even."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((200, 64)) * np.exp2(rng.integers(-4, 9, (200, 1)))).astype(np.float32)
    x[3] = 0
    q = Blockwise(element="e2m1", block_elems=16, scale="e4m3", like="triton").encode(x)
    scale = (np.abs(x).reshape(-1, 16).max(axis=1) / np.float32(6)).astype(ml_dtypes.float8_e4m3fn)
    with np.errstate(divide="ignore"):
        by = np.where(scale == 0, np.float32(0), np.float32(1) / scale.astype(np.float32))
    want = (x.reshape(-1, 16) * by[:, None]).astype(ml_dtypes.float4_e2m1fn)
    assert np.array_equal(q.scales.view(np.uint8).ravel(), scale.view(np.uint8))
    assert np.array_equal(bits.unpack(q.codes, 4).reshape(-1, 16), want.view(np.uint8))


@pytest.mark.parametrize(
    ("like", "scheme", "instead"),
    [
        ("qwix", {"element": "e4m3", "block_elems": 32, "scale": "e8m0"}, "modelopt, triton, microxcaling are"),
        ("compressed_tensors", {"element": "e4m3", "block_elems": 32, "scale": "e8m0"}, "are"),
        ("ggml", {"element": "e3m2", "block_elems": 32, "scale": "e8m0"}, "torchao, microxcaling are"),
        ("triton", {"element": "mxint8", "block_elems": 32, "scale": "e8m0"}, "microxcaling is"),
        ("modelopt", {"element": "e2m1", "block_elems": 16, "scale": "e4m3", "second": "f32"}, "torchao is"),
        ("qwix", {"element": "uint4", "block_elems": 32, "scale": "f16", "zero_point": "min_f16"}, "ggml is"),
        ("compressed_tensors", {"element": "nf4", "block_elems": 64, "scale": "dynamic8", "second": "dynamic8",
                                "codes_from": "unrounded"}, "no library is"),
    ],
)  # fmt: skip
def test_what_a_library_does_not_have_is_refused_with_those_that_do(like, scheme, instead):
    with pytest.raises(ConfigError, match=f"like={like} is not known for .*; .*{instead}$"):
        Blockwise(**scheme, like=like)
