"""Every Mosaic GPU kernel, lowered for Hopper on a machine that has none: the program that would be compiled there.

Which register of which thread holds what is worked out while lowering, so this says that every operation has a layout
that it can have, and copies and products the shapes that the device takes; not that a device's compiler takes it, nor
that it is right, which the corpus says interpreted (tests/unit/kernels/test_mosaic_gpu.py), nor that it is fast.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import backends_of, rooms
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.memory import quantized
from plugins.kernels.attention.mosaic_gpu import TUNING, attention
from plugins.kernels.attention.mosaic_gpu_kernel import Shape
from plugins.kernels.cases import SCHEMES
from plugins.kernels.matmul.mosaic_gpu import matmul
from plugins.kernels.moe.mosaic_gpu import PRODUCTS, moe
from plugins.kernels.mosaic_gpu.by_bits import SHAPES, Tile
from plugins.kernels.mosaic_gpu.coding import coding_of
from plugins.kernels.mosaic_gpu.launch import Device, registers
from plugins.kernels.mosaic_gpu.packed import Packed
from tests.unit.kernels.test_pallas_lowering import ROOT, floats, lowered, shaped

CALL = "@mosaic_gpu_v2("
F32 = jnp.float32
MORE = {
    "int2": Scheme("int2", 64, "f16"), "int4 a row": Scheme("int4", 0, "f32"), "int4, f16": Scheme("int4", 128, "f16"),
    "int8, f32": Scheme("int8", 32, "f32"), "uint8 with zero": Scheme("uint8", 64, "bf16", zero="int"),
    "mxint8": Scheme("mxint8", 32, "e8m0"), "e4m3 a matrix": Scheme("e4m3", 0, "f32", block_rows=0),
    "e5m2 a row": Scheme("e5m2", 0, "f32"), "mxfp8, e5m2": Scheme("e5m2", 32, "e8m0"),
}  # fmt: skip
SMEM_NBYTES = 227 << 10  # of a block, at most (CUDA C++ Programming Guide, compute capability 9.0)


def configurations() -> Iterator[Any]:
    for d, e in ((64, 64), (128, 128), (64, 128)):
        for queries, options in (
            (200, {}), (1, {"window": 128}), (200, {"softcap": 30.0}), (200, {"causal": False, "window": 128}),
        ):  # fmt: skip
            for dtype in (jnp.bfloat16, jnp.float16):
                q, k, v = (shaped(2, *s, dtype=dtype) for s in ((queries, 8, d), (256, 2, d), (256, 2, e)))
                name = f"attention, {d} and {e} dims, {queries} queries, {options}, {dtype.dtype}"
                yield name, partial(_attention, **options), (q, k, v, shaped(8, dtype=F32)), None if options else (0, 3)
    for name, scheme in {**SCHEMES, **MORE}.items():
        if 8 % scheme.element_bits == 0:
            w = quantized(scheme, (128, 640))
            for rows, dtype in ((1, jnp.float16), (33, jnp.bfloat16), (300, jnp.bfloat16)):
                name_ = f"matmul, {name}, {min(rows, 2)} rows or more, {rows}"
                yield name_, matmul, (shaped(rows, 640, dtype=dtype), w), None
    for name in ("mxfp4", "nvfp4", "int8 a row", "int4 a group", "mxfp8", "fp8 in tiles"):
        scheme = {**SCHEMES, **MORE}[name]
        w_in, w_out = quantized(scheme, (5, 192, 640)), quantized(scheme, (5, 640, 96 * 2))
        for tokens in (1, 256):
            yield f"moe, {name}, {tokens}", _moe, (shaped(tokens, 640), w_in, w_out), None
    for name, n_in in (("nvfp4", 14336), ("uint4 with zero", 14336)):  # whose scales are copied step by step
        w = quantized(SCHEMES[name], (64, n_in))
        yield f"matmul, {name}, long rows, 1", matmul, (shaped(1, n_in), w), None
        w_in, w_out = quantized(SCHEMES[name], (2, 64, n_in)), quantized(SCHEMES[name], (2, 64, 64))
        yield f"moe, {name}, long rows, 256", _moe, (shaped(256, n_in), w_in, w_out), None
    packed = tuple(shaped(2, 200, n, 64) for n in (4, 2, 2))
    yield "attention, segments", _of_documents, packed, None


def _attention(q: Any, k: Any, v: Any, sinks: Any, **options: Any) -> Any:
    at, slot = (jnp.zeros(a.shape[:2], jnp.int32) for a in (q, k))
    return attention(q, k, v, at, slot, scale=0.1, sinks=sinks, **options)


def _of_documents(q: Any, k: Any, v: Any) -> Any:
    at = jnp.zeros(q.shape[:2], jnp.int32)
    return attention(q, k, v, at, at, scale=0.1, segments=at)


def _moe(x: Any, w_in: Any, w_out: Any) -> Any:
    chosen, weights = jnp.zeros((len(x), 2), jnp.int32), jnp.ones((len(x), 2), jnp.float32)
    bias = jnp.zeros(w_in.shape[:2])
    return moe(x, chosen, weights, (w_in,), (bias,), w_out, None, activation=jax.nn.relu)


def taken(scratch: dict[str, Any]) -> int:
    """Bytes of shared memory without barriers, which have eight each."""
    buffers = [ref.inner_aval for name, ref in scratch.items() if not name.endswith(("there", "done"))]
    return sum(buffer.size * buffer.dtype.itemsize for buffer in buffers)


def few(call: dict[str, Any]) -> Any:
    """Of attention each kind of kernel with one dtype, of dims that differ one of all; of products each scheme, with a
    few rows or with many in turn."""
    kind: str = call["name"].rpartition(", ")[0]
    return re.sub(r", \d rows or more$", "", kind.partition(" dims")[0] if "64 and 128" in kind else kind)


@pytest.mark.brief(each=few)
@pytest.mark.parametrize(
    ("name", "f", "args", "of"), [pytest.param(*c, id=f"{i} {c[0]}") for i, c in enumerate(configurations())]
)
def test_lowers_for_hopper(name: str, f: Callable[..., Any], args: tuple[Any, ...], of: Any, thorough: bool) -> None:
    """Forward, and where that is asked both ways: one kernel of ours, of moe one for a projection; nothing calls back
    to the host. What is XLA's of a gradient is, in `make test`, lowered once."""
    text = lowered("cuda", f, *args)
    assert text.count(CALL) == (2 if name.startswith("moe") else 1)
    assert "callback" not in text
    if of is not None and (thorough or "64 and 64 dims" in name):
        both = jax.value_and_grad(lambda *args: f(*args).astype(F32).sum(), of)
        assert lowered("cuda", both, *args).count(CALL) == 1


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8 a row"])
@pytest.mark.brief("mxfp4")
def test_there_is_no_buffer_as_large_as_a_decoded_weight(name: str) -> None:
    """Nor, of experts, as large as that of one."""
    w = quantized(SCHEMES[name], (512, 1024))
    for rows in (1, 33):
        assert floats(lowered("cuda", matmul, shaped(rows, 1024), w), 512 * 1024) == []
    stacks = quantized(SCHEMES[name], (3, 512, 1024)), quantized(SCHEMES[name], (3, 1024, 512))
    for tokens in (1, 33):
        assert floats(lowered("cuda", _moe, shaped(tokens, 1024), *stacks), 512 * 1024) == []


def test_codes_of_published_shapes_are_read_where_they_lie() -> None:
    """gpt-oss's experts, of two: neither copied nor made longer, as what no tile divides would be."""
    for out, n_in in ((5760, 2880), (2880, 2880)):
        codes = jax.ShapeDtypeStruct((2, out, n_in // 2), jnp.uint8)
        w = QTensor(codes, jax.ShapeDtypeStruct((2, out, n_in // 32), jnp.uint8), MXFP4)
        text = lowered(
            "cuda", lambda x, w: PRODUCTS.product(16, jnp.zeros(1, jnp.int32), x, w, None, F32), shaped(16, n_in), w
        )
        takes = re.findall(rf"stablehlo\.(\w+)[^\n]*\btensor<2x{out}x{n_in // 2}xui8>", text)
        assert takes == ["custom_call"]


@pytest.mark.parametrize(("step", "high", "warpgroups"), [(64, 128, 2), (64, 16, 1), (32, 128, 2)])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "q4_1", "mxfp8", "int8 a row"])
@pytest.mark.brief
def test_products_fit_shared_memory(name: str, step: int, high: int, warpgroups: int) -> None:
    scheme = SCHEMES[name]
    shared = (("scales", jnp.float32), ("zeros", jnp.float16))[: 1 + (scheme.zero is not None)]
    held = scheme.block_elems * scheme.element_bits // 8 or step
    p = Packed(Device("cuda", False), scheme, False, jnp.bfloat16, step, 9, held, shared, high, warpgroups)
    assert 2 <= p.ahead <= 4
    assert taken(p.scratch()) < SMEM_NBYTES


@pytest.mark.parametrize("high", [8, 32, 128])
@pytest.mark.parametrize("by_step", [False, True])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int4 a group", "e4m3 a matrix", "int8, f32"])
@pytest.mark.brief
def test_products_by_bits_fit_shared_memory(name: str, high: int, by_step: bool) -> None:
    """With as much of what rows share as is taken."""
    scheme = {**SCHEMES, **MORE}[name]
    n_in = 256
    while scheme.block_elems and not coding_of(scheme, jnp.bfloat16, 128, 2 * n_in).by_step:  # type: ignore[union-attr]
        n_in *= 2
    coding = coding_of(scheme, jnp.bfloat16, 128, n_in)
    assert coding is not None
    assert coding.row_nbytes == (512 if scheme.block_elems else 0)
    coding = replace(coding, by_step=by_step and scheme.block_elems > 0)
    most, budget = next(shape for rows, shape in SHAPES.items() if high <= rows)
    kinds = dict.fromkeys(coding.shared, {"f32": F32, "bf16": jnp.bfloat16}.get(scheme.scale, jnp.uint8))
    tile = Tile(Device("cuda", False), coding, kinds, 99, 9, high, most, budget, False, False)
    assert 2 <= tile.ahead <= 8
    assert taken(tile.scratch()) < SMEM_NBYTES


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (64, 128), (128, 64)])
def test_attention_fits_shared_memory(dims: tuple[int, int]) -> None:
    names = ("at", "own", "sinks"), ("slot", "of_slot")
    shape = Shape(Device("cuda", False), dims, jnp.bfloat16, 1, 2, TUNING[max(dims)], (1, 1, 1), 1, *names)
    assert SMEM_NBYTES // 2 < taken(shape.scratch()) < SMEM_NBYTES


@pytest.mark.parametrize(("multiplying", "each"), [(1, 256), (2, 232), (3, 152)])
def test_registers_are_shared_out(multiplying: int, each: int) -> None:
    assert registers(multiplying) == each
    assert each % 8 == 0
    assert multiplying * each + 40 <= 512


def test_no_option_but_its_own_chooses_mosaic_gpu() -> None:
    """Nothing of it has run on a device yet."""
    chosen = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "kernels").glob("*.yaml")}
    named = {option: {op for op, backends in ops.items() if "mosaic_gpu" in backends} for option, ops in chosen.items()}
    assert named.pop("mosaic_gpu") == {op for op in rooms() if "mosaic_gpu" in backends_of(op)}
    assert "auto" in named
    assert not any(named.values())


def test_calls_of_several_models_at_once_are_lowered() -> None:
    """As members of a population are trained, by `vmap`, which branches for other platforms have to bear as well."""
    q, k = shaped(2, 1, 128, 8, 64), shaped(2, 1, 128, 2, 64)
    assert CALL in lowered("cuda", jax.vmap(partial(_attention)), q, k, k, shaped(2, 8, dtype=F32))
