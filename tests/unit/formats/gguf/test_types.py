"""Blocks of every ggml type against the `gguf` package: its tables, its quantizers, its dequantizers."""

from dataclasses import replace

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ValueRangeError
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec, dtype_name, numpy_dtype
from pipeline.tensors.views import JoinedStore, leaf_box, split, stored_leaves
from pipeline.testing.memory import MemoryStore, same
from plugins.facts.ggml_blocks import DECODERS, TILE_ELEMS
from plugins.formats.gguf.decode import decode
from plugins.formats.gguf.packing import Ggml, OfStack, PerMatrix, pack, unpack
from plugins.formats.gguf.types import FILE_TYPES, GGML, KEPT_WHOLE, NVFP4, SCHEMES, UNREADABLE, type_of
from tests.cases.quantized import quantized
from tests.oracles.blocks_by_hand import dequantize


def random_blocks(kind, shape, seed=0):
    """Bytes of a leaf whose values have `shape`, with scales that are ordinary numbers."""
    t, rng = GGML[kind], np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // t.block, t.nbytes), dtype=np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(0, 250, blocks.shape[:-1])
    elif kind == "NVFP4":
        blocks[..., :4] = rng.integers(0, 0x7F, (*blocks.shape[:-1], 4))
    else:
        for at in (0, 2)[: 2 if kind == "Q4_1" else 1]:
            scale = rng.standard_normal((*blocks.shape[:-1], 1)).astype("<f2")
            blocks[..., at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(*shape[:-1], -1)


def test_tables_are_the_packages():
    assert {n: (t.number, t.block, t.nbytes) for n, t in GGML.items()} == {
        q.name: (q.value, *GGML_QUANT_SIZES[q]) for q in GGMLQuantizationType
    }
    names = {k: LlamaFileType(v).name for k, v in FILE_TYPES.items()}
    assert all(k in name for k, name in names.items())


@pytest.mark.parametrize("kind", SCHEMES)
def test_values_are_those_of_the_package(kind):
    blocks = random_blocks(kind, (3, 5, 192))
    theirs = gguf.dequantize(blocks, GGMLQuantizationType[kind])
    q = unpack(kind, blocks)
    assert q.shape == (3, 5, 192)
    assert {n: a.shape for n, a in q.components.items()} == q.scheme.components(q.shape)
    assert np.array_equal(dequantize(q).astype(np.float32), theirs)


@pytest.mark.parametrize("kind", SCHEMES)
def test_every_byte_survives(kind):
    blocks = random_blocks(kind, (2, 7, 256), seed=1)
    assert np.array_equal(pack(kind, unpack(kind, blocks)), blocks)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "MXFP4"])
def test_what_the_package_quantizes(kind):
    weights = np.random.default_rng(2).standard_normal((6, 224)).astype(np.float32)
    blocks = gguf.quantize(weights, GGMLQuantizationType[kind])
    q = unpack(kind, blocks)
    assert np.array_equal(pack(kind, q), blocks)
    assert np.array_equal(dequantize(q).astype(np.float32), gguf.dequantize(blocks, GGMLQuantizationType[kind]))


@given(
    st.sampled_from(sorted(SCHEMES)), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99), st.sampled_from([0, 8])
)
def test_pack_and_unpack_are_inverse(kind, rows, blocks, seed, head):
    """From the side of the QTensor, heads reordered or not."""
    shape = (rows * (head or 3), blocks * GGML[kind].block)
    q = quantized(SCHEMES[kind], shape, seed)
    packing = Ggml(kind, head=head)
    leaf = packing.pack(q)
    assert leaf.dtype == np.uint8
    assert leaf.shape == tuple(s.stop for s in packing.box(tuple(slice(0, n) for n in shape)))
    assert same(packing.unpack(leaf), q)


OTHERS = sorted(
    set(GGML) - {*SCHEMES, *KEPT_WHOLE} - UNREADABLE - {n for n, t in GGML.items() if t.block == 1} - {"Q8_K"}
)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_types_are_decoded(kind):
    """They have no scheme: their values are what the package says, in any box of whole blocks."""
    t = GGML[kind]
    rng = np.random.default_rng(3)
    leaf = rng.integers(0, 60, (4, 2 * t.nbytes), dtype=np.uint8)
    packing = Ggml(kind)
    theirs = gguf.dequantize(leaf, GGMLQuantizationType[kind])
    box = packing.box((slice(1, 3), slice(t.block, 2 * t.block)))
    got = packing.unpack(leaf[box])
    assert got.dtype == np.float32
    assert np.array_equal(got, theirs[1:3, t.block :], equal_nan=True)
    with pytest.raises(AssertionError):
        packing.pack(got)


@pytest.mark.parametrize("kind", sorted(DECODERS.keys() - {"Q8_K"}))
@pytest.mark.parametrize("rows", [3, 2 * TILE_ELEMS // 256 + 1])
def test_decoders_are_those_of_the_package(kind, rows):
    """Bit for bit, whatever the bytes: every code, scales that are subnormal, Inf or NaN; more blocks than a tile."""
    t = GGML[kind]
    blocks = np.random.default_rng(4).integers(0, 256, (rows, 256 // t.block * t.nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(blocks, GGMLQuantizationType[kind])
    ours = decode(kind, blocks.reshape(rows, 1, -1)).reshape(rows, -1)
    assert ours.dtype == np.float32
    assert np.isfinite(theirs).mean() > 0.9
    finite = ~np.isnan(theirs)
    assert np.array_equal(ours.view(np.uint32)[finite], theirs.view(np.uint32)[finite])
    assert np.isnan(ours[~finite]).all()


def test_q8_k_by_hand():
    """block_q8_K: an fp32 factor, 256 signed bytes, 16 sums of no consequence. The package has no decoder."""
    codes = np.arange(-128, 128, dtype=np.int8)
    sums = np.full(16, 999, "<i2")
    rows = [np.float32(scale).tobytes() + codes.tobytes() + sums.tobytes() for scale in (0.5, -3.0)]
    leaf = np.frombuffer(b"".join(rows), np.uint8).reshape(1, -1)
    assert np.array_equal(decode("Q8_K", leaf), np.concatenate([codes * 0.5, codes * -3.0], dtype=np.float32)[None])


def test_boxes_of_decoded_types_are_widened_to_blocks():
    """A box may cut a block of a type that becomes plain values: whole blocks are read, and the rest cut off."""
    leaf = np.random.default_rng(5).integers(0, 60, (7, 3 * 136), dtype=np.uint8)
    bound = Bound(TensorSpec((7, 768), "F32"), (Part("w", steps=(Ggml("IQ4_XS"),)),))
    store = JoinedStore(MemoryStore({"w": leaf}), Binding({"x": bound}, stored_leaves({"x": bound}), {}))
    whole = gguf.dequantize(leaf, GGMLQuantizationType.IQ4_XS)
    assert np.array_equal(store.read("x", (slice(2, 5), slice(250, 520))), whole[2:5, 250:520])


def test_norms_plus_one():
    """Gemma's: the fp32 sum in the file, the weight again outside; as a file that llama.cpp made has it."""
    weights = np.array([0.0, 1.5, -0.25, 3.0, 2.0**-16 * 1.5, -0.9921875], np.float32)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        packing = Ggml("F32", dtype_name(np.dtype(dtype)), plus=True)
        leaf = packing.pack(weights.astype(dtype))
        assert leaf.dtype == np.float32
        assert np.array_equal(leaf, weights + np.float32(1))
        back = packing.unpack(leaf)
        assert back.dtype == dtype
        assert np.array_equal(back, weights.astype(dtype))


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "NVFP4"])
def test_matrices_of_a_stack(kind):
    """Experts that are tensors of their own lie stacked in one leaf, their second scales in one vector."""
    packings = [OfStack(e, Ggml(kind)) for e in range(3)]
    spec = TensorSpec((5, 64), "BF16", SCHEMES.get(kind))
    if kind == "NVFP4":
        spec = replace(spec, scheme=replace(NVFP4, second="f32"))
    component = "values" if kind == "BF16" else "*"
    bounds = {}
    for e, packing in enumerate(packings):
        scale = (Part("s", "second", (PerMatrix(e),)),) if kind == "NVFP4" else ()
        bounds[f"x{e}"] = Bound(spec, (Part("w", component, (packing,)), *scale))
    leaves = stored_leaves(bounds)
    width = 64 // GGML[kind].block * GGML[kind].nbytes if spec.scheme else 64
    assert leaves["w"].shape == (3, 5, width)
    rng = np.random.default_rng(6)
    values = {
        n: quantized(spec.scheme, spec.shape, i)
        if spec.scheme
        else rng.standard_normal((5, 64)).astype(ml_dtypes.bfloat16)
        for i, n in enumerate(bounds)
    }
    arrays = {n: np.zeros(s.shape, numpy_dtype(s.dtype)) for n, s in leaves.items()}
    for name, bound in bounds.items():
        for leaf, box, array in split(bound, (), values[name]):
            arrays[leaf][box] = array
    store = JoinedStore(MemoryStore(arrays), Binding(bounds, leaves, {}))
    for name, value in values.items():
        assert same(store.read(name), value)
    if kind == "NVFP4":
        assert arrays["s"].shape == (3,)
        assert [values[n].second.item() for n in values] == arrays["s"].tolist()


def test_rows_of_heads_move_as_in_the_conversion():
    """By hand: ggml's row 2i + p of a head is Hugging Face's row p · d/2 + i."""
    heads, d, n = 3, 10, 4
    weight = np.arange(heads * d * n, dtype=np.float32).reshape(heads * d, n)
    packed = Ggml("F32", head=d).pack(weight)
    for h in range(heads):
        for p in range(2):
            for i in range(d // 2):
                assert np.array_equal(packed[h * d + 2 * i + p], weight[h * d + p * d // 2 + i])
    assert np.array_equal(Ggml("F32", head=d).unpack(packed), weight)
    bias = np.arange(heads * d, dtype=np.float32)
    assert np.array_equal(Ggml("F32", head=d).pack(bias), packed[:, 0] // n)


def test_widening_is_undone():
    values = np.arange(0, 0x7F80, 7, dtype=np.uint16).view(ml_dtypes.bfloat16).reshape(1, -1)
    wide = Ggml("F32", "BF16").pack(values)
    assert wide.dtype == np.float32
    back = Ggml("F32", "BF16").unpack(wide)
    assert np.array_equal(back.view(np.uint16), values.view(np.uint16))


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        (MXFP4, "MXFP4"),
        (NVFP4, "NVFP4"),
        (Scheme("e2m1", 16, "e4m3", second="f32"), "NVFP4"),
        (Scheme("e2m1", 16, "e4m3", second="inverse_f32"), None),
        (Scheme("int8", 32, "f16"), "Q8_0"),
        (Scheme("int8", 32, "f16", second="f32"), None),
        (Scheme("int8", 0, "f32"), None),
        (Scheme("nf4", 64, "f32"), None),
    ],
)
def test_which_schemes_have_a_type(scheme, kind):
    assert type_of(TensorSpec((64, 64), "BF16", scheme)) == kind


def test_scales_that_nvfp4_cannot_hold():
    q = quantized(NVFP4, (1, 64))
    scales = q.scales.view(np.uint8)
    for bad in (0x7F, 0x80, 0xB8):
        scales[...] = 0x38
        scales[0, 2] = bad
        with pytest.raises(ValueRangeError, match="block scale 2 is negative or NaN"):
            pack("NVFP4", q)


def test_boxes_cut_no_block_and_no_head():
    spec = TensorSpec((24, 128), "BF16", SCHEMES["Q4_0"])
    part = Part("w", "*", (Ggml("Q4_0", head=8),))
    assert leaf_box(part, spec, (slice(8, 16), slice(32, 128))) == (slice(8, 16), slice(18, 72))
    with pytest.raises(IndexError, match="cuts a head of 8 rows"):
        leaf_box(part, spec, (slice(4, 16),))
    with pytest.raises(IndexError, match="cuts a block of 32"):
        leaf_box(part, spec, (slice(8, 16), slice(16, 64)))


@pytest.mark.parametrize("shape", [(96, 64), (5, 96, 64)])
def test_second_scales_lie_beside_the_blocks(shape):
    blocks = random_blocks("NVFP4", shape)
    second = np.arange(np.prod(shape[:-2]), dtype=np.float32).reshape(*shape[:-2], 1, 1)
    q = replace(unpack("NVFP4", blocks), scheme=replace(NVFP4, second="f32"), second=second)
    bound = Bound(
        TensorSpec(shape, "BF16", q.scheme),
        (Part("w", "*", (Ggml("NVFP4"),)), Part("s", "second", (PerMatrix(None if len(shape) > 2 else 0),))),
    )
    leaves = stored_leaves({"q": bound})
    assert leaves["s"] == TensorSpec(shape[:-2] or (1,), "F32")
    arrays = {leaf: array for leaf, _, array in split(bound, (), q)}
    store = JoinedStore(MemoryStore(arrays), Binding({"q": bound}, leaves, {}))
    assert same(store.read("q"), q)
    for rows in (slice(1, 3), slice(2, 3)):
        got = store.read("q", (rows, *(slice(0, n) for n in shape[1:]))).second
        assert same(got, q.second[rows] if len(shape) == 3 else q.second)
