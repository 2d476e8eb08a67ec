"""Mosaic GPU kernels interpreted: the corpus as it is for them, several blocks of everything, who waits for whom."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import load
from pipeline.errors import Unsupported
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.kernel import Case
from pipeline.testing.memory import quantized
from pipeline.testing.model_op import ModelOpContract, agree
from plugins.kernels.attention import declines
from plugins.kernels.attention.mosaic_gpu import _reach
from plugins.kernels.attention.pallas_kernels import Options
from plugins.kernels.cases import BF16, SCHEMES, normal, rng_of
from plugins.kernels.mosaic_gpu import coding
from plugins.kernels.mosaic_gpu.coding import coding_of
from plugins.kernels.mosaic_gpu.interpreted import races
from tests.cases.model_runs import quick_compilation
from tests.cases.mosaic_interpreted import compiled_once


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick_compilation(), compiled_once():
        yield


def widened(value: Any, dims: int) -> Any:
    """Heads made up to so many dims with zeros, in bfloat16."""
    return np.pad(value, [(0, 0)] * 3 + [(0, dims - value.shape[-1])]).astype(BF16)


SEEN: tuple[tuple[str, ...], ...] = ((), ("decode, bf16", "nothing to see"))  # of gradients, and of values


def few(call: Mapping[str, Any]) -> Any:
    """What has everything that the others have one by one."""
    name = next((call[kind].name for kind in ("case", "differentiable") if kind in call), "")
    return name in ("segments, sinks and window", "softcap and sinks", *SEEN["case" in call]) and name


@pytest.mark.brief(each=few)
class TestAttention(ModelOpContract):
    """The op's corpus, in bfloat16, with heads made up to 64 dims."""

    op = "attention"
    backends = ("mosaic_gpu",)

    def cases(self) -> Iterable[Case]:
        for case in super().cases():
            q, k, v, *at = case.args
            if isinstance(k, QTensor):
                continue
            sinks = {"sinks": s.astype(BF16)} if (s := case.options.get("sinks")) is not None else {}
            args = (widened(a, max(64, a.shape[-1])) for a in (q, k, v))
            yield Case(case.name, (*args, *at), {**case.options, **sinks})


def beside_xla(args: tuple[Any, ...], of: tuple[int, ...] = (), **options: Any) -> list[str]:
    """Attention and its gradients with respect to the arguments `of`, held to XLA's; the races that were found."""

    def found(backend: str) -> Any:
        call = partial(load("attention", backend), **options)

        def loss(some: tuple[Any, ...]) -> tuple[Any, Any]:
            full = list(args)
            for i, value in zip(of, some, strict=True):
                full[i] = value
            y = call(*full[:5], sinks=full[5])
            return (y.astype(jnp.float32) * jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)).sum(), y

        if not of:
            return jax.jit(lambda *args: call(*args[:5], sinks=args[5]))(*args), ()
        (_, y), back = jax.jit(jax.value_and_grad(loss, has_aux=True))(tuple(args[i] for i in of))
        return y, back

    (expected, gradients) = found("xla")
    with races() as raced:
        y, back = jax.block_until_ready(found("mosaic_gpu"))
    agree(np.asarray(expected), np.asarray(y))
    for want, got in zip(gradients, back, strict=True):
        agree(want, got, unit=2 * 2.0**-7)
    return raced


def prompt(dtype: Any, queries: int, slots: int, dims: tuple[int, int] = (64, 64)) -> tuple[Any, ...]:
    """The last `queries` of as many tokens as there are slots, of two heads that share one."""
    rng = rng_of(f"{queries} of {slots}")
    q, k, v = (
        normal(rng, 1, *s).astype(dtype) for s in ((queries, 2, dims[0]), (slots, 1, dims[0]), (slots, 1, dims[1]))
    )
    slot = np.arange(slots, dtype=np.int32)[None]
    return q, k, v, slot[:, -queries:], slot, normal(rng, 2)


@pytest.mark.brief("window")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="causal"), pytest.param({"window": 500}, id="window"),
        pytest.param({"causal": False, "softcap": 4.0}, id="not causal"),
    ],
)  # fmt: skip
def test_attention_of_several_blocks_and_more_steps_than_there_is_room_for(options: dict[str, Any]) -> None:
    """Six steps of 128 slots where shared memory has room for four, some of them masked and some not; two blocks of 128
    queries, of which the second is not full. No warpgroup reads what another may still be writing, or the other way."""
    assert beside_xla(prompt(BF16, 190, 700), (0, 1, 2, 5), scale=0.2, **options) == []


def test_attention_of_f16_and_of_values_of_other_dims() -> None:
    assert beside_xla(prompt(np.float16, 70, 130, (64, 128)), scale=0.2) == []


def test_attention_of_a_ring() -> None:
    """Slots whose positions are in no order, which a window goes round: two of three steps see anything, none all."""
    q, k, v, at, slot, sinks = prompt(BF16, 1, 384)
    assert beside_xla((q, k, v, at, np.roll(slot, 100, axis=1), sinks), scale=0.2, window=90) == []


def test_which_steps_are_read_and_which_are_not_masked() -> None:
    """[first, whole, broken, last), by hand: 256 queries from position 256 on, 512 slots in steps of 128."""
    rows = {"at": jnp.arange(256, 512, dtype=jnp.int32).reshape(1, 256)}
    slots = {"slot": jnp.arange(512, dtype=jnp.int32).reshape(1, 512)}

    def reach(window: int | None = None, causal: bool = True, **more: Any) -> list[list[int]]:
        options = Options(1.0, None, window, causal)
        return _reach(options, (128, 128), {**rows, **more.get("rows", {})}, {**slots, **more.get("slots", {})})[
            0
        ].tolist()  # type: ignore[no-any-return]

    assert reach() == [[0, 0, 2, 3], [0, 0, 3, 4]]
    assert reach(causal=False) == [[0, 0, 4, 4], [0, 0, 4, 4]]
    assert reach(window=256) == [[0, 1, 2, 3], [1, 2, 3, 4]]  # 257 … 383 see 2 … 383 or less, and all 128 … 255
    assert reach(window=1) == [[2, 3, 3, 3], [3, 4, 4, 4]]
    later = {"slot": slots["slot"].at[0, :130].set(-1)}
    assert reach(slots=later) == [[1, 3, 3, 3], [1, 2, 3, 4]]
    assert reach(slots={"slot": slots["slot"] * 0 - 1}) == [[0, 0, 0, 0], [0, 0, 0, 0]]
    documents = jnp.arange(512, dtype=jnp.int32)[None] // 256
    own = {"own": documents[:, 256:]}, {"of_slot": documents}
    assert reach(rows=own[0], slots=own[1], causal=False) == [[2, 2, 4, 4], [2, 2, 4, 4]]


FORMATS = {
    "mxfp4": MXFP4, "nvfp4": SCHEMES["nvfp4"], "int8, blocks of 128": Scheme("int8", 128, "f16"),
    "uint4 with zero": SCHEMES["uint4 with zero"], "q4_1": SCHEMES["q4_1"], "int4 a row": Scheme("int4", 0, "f32"),
    "int4, blocks of 32": Scheme("int4", 32, "bf16"), "int8 a row": SCHEMES["int8 a row"],
    "e4m3 a matrix": Scheme("e4m3", 0, "bf16", block_rows=0), "e5m2 a row": Scheme("e5m2", 0, "f32"),
    "e4m3 in tiles": Scheme("e4m3", 128, "f32", block_rows=128), "mxfp8": SCHEMES["mxfp8"], "nf4": SCHEMES["nf4"],
}  # fmt: skip
BY_BITS = {name: scheme for name, scheme in FORMATS.items() if name not in ("q4_1", "nf4")}


@pytest.mark.brief("mxfp4", "int8, blocks of 128", "q4_1")
@pytest.mark.parametrize("name", FORMATS)
def test_matmul_of_several_tiles_and_more_steps_than_there_is_room_for(name: str) -> None:
    """Two tiles of x, the second not full, times two of weights by two warpgroups; rows of five steps or ten."""
    rng = rng_of(name)
    x, w = normal(rng, 140, 640).astype(BF16), quantized(FORMATS[name], (256, 640))
    expected = load("matmul", "reference")(x, w)
    with races() as raced:
        found = jax.block_until_ready(jax.jit(load("matmul", "mosaic_gpu"))(x, w))
    agree(expected, found)
    assert raced == []


@pytest.mark.brief("int4, blocks of 32", "e4m3 in tiles", "int8 a row")
@pytest.mark.parametrize("name", BY_BITS)
def test_matmul_of_a_few_rows_whose_last_step_is_not_full(name: str) -> None:
    """Three blocks of 64 rows, each a warpgroup's; steps of 128 codes of 4 bits or 64 of 8, and half of one."""
    rng, n_in = rng_of(name), {0: 288, 128: 384}.get(BY_BITS[name].block_elems, 320)
    x, w = normal(rng, 3, n_in).astype(BF16), quantized(BY_BITS[name], (192, n_in))
    assert coding_of(w.scheme, x.dtype, *w.shape) is not None
    with races() as raced:
        found = jax.block_until_ready(jax.jit(load("matmul", "mosaic_gpu"))(x, w))
    agree(load("matmul", "reference")(x, w), found)
    assert raced == []


@pytest.mark.brief("nvfp4")
@pytest.mark.parametrize("name", ["nvfp4", "uint4 with zero", "int4, blocks of 32"])
def test_what_blocks_share_may_come_with_their_step(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where rows are long; of a few tokens, and of many, whose rows are rounded in the kernel."""
    monkeypatch.setattr(coding, "MOST_SHARED", 0)
    rng, scheme = rng_of(name), BY_BITS[name]
    n_in = 32 * scheme.block_elems
    assert coding_of(scheme, jnp.bfloat16, 64, n_in).by_step  # type: ignore[union-attr]
    w_in, w_out = quantized(scheme, (2, 64, n_in)), quantized(scheme, (2, 64, 64), seed=1)
    for tokens in (1, 70):
        x = (normal(rng, tokens, n_in) / 16).astype(BF16)
        chosen = (np.arange(tokens, dtype=np.int32) % 2)[:, None]
        args = x, chosen, np.ones((tokens, 1), np.float32), (w_in,), (None,), w_out, None
        with races() as raced:
            found = jax.block_until_ready(jax.jit(partial(load("moe", "mosaic_gpu"), activation=jnp.tanh))(*args))
        agree(np.asarray(jax.jit(partial(load("moe", "xla"), activation=jnp.tanh))(*args)), np.asarray(found))
        assert raced == []


def test_which_weights_are_decoded_by_bits() -> None:
    """Others are too, in a way that is slower: what their shape says, and what shared memory has no room for."""
    int4 = SCHEMES["int4 a group"]
    for n_in, by_step in ((8192, False), (8192 + 256, True)):
        assert coding_of(int4, jnp.bfloat16, 128, n_in).by_step == by_step  # type: ignore[union-attr]
    assert coding_of(int4, jnp.bfloat16, 128, 8192 + 32) is None  # 257 scales of two bytes, of no 16 bytes a row
    assert coding_of(Scheme("int4", 16, "f32"), jnp.bfloat16, 128, 8192) is None  # eight of four bytes a step
    assert coding_of(int4, jnp.float16, 128, 1024) is None
    assert coding_of(int4, jnp.bfloat16, 100, 1024) is None
    assert coding_of(MXFP4, jnp.bfloat16, 128, 96) is None  # three scales of a byte: of 64 rows no 128 bytes
    assert coding_of(Scheme("e4m3", 0, "f32"), jnp.bfloat16, 128, 1000) is None  # rows of no 16 bytes
    assert coding_of(Scheme("e5m2", 64, "f32"), jnp.bfloat16, 128, 1024) is None
    for name in ("q4_1", "nf4", "nf4 twice", "int3", "e3m2"):
        assert coding_of(SCHEMES[name], jnp.bfloat16, 128, 1024) is None


def test_matmul_of_rows_in_steps_of_32_bytes_and_f16() -> None:
    """As gpt-oss's, whose rows have 1440 bytes; one warpgroup, as 192 rows are three times 64."""
    rng = rng_of("steps of 32")
    x, w = normal(rng, 20, 320).astype(np.float16), quantized(MXFP4, (192, 320))
    agree(load("matmul", "reference")(x, w), jax.jit(load("matmul", "mosaic_gpu"))(x, w))


def test_the_smallest_scale_is_half_of_the_next() -> None:
    """2^-127, which is subnormal: what it makes of codes of 1 and more is not."""
    codes = np.full((16, 32), 0x44, np.uint8)
    w = QTensor(codes, np.tile(np.array([[0, 1]], np.uint8), (16, 1)), MXFP4)
    x = np.full((1, 64), 2.0**100, BF16)
    agree(load("matmul", "reference")(x, w), jax.jit(load("matmul", "mosaic_gpu"))(x, w))


@pytest.mark.brief("mxfp4", "e4m3 a matrix")
@pytest.mark.parametrize("name", BY_BITS)
def test_moe_of_several_tiles_and_an_expert_that_nobody_chose(name: str) -> None:
    rng, scheme = rng_of("tiles of experts"), BY_BITS[name]
    x = (normal(rng, 90, 256) / 16).astype(BF16)
    chosen = rng.choice([0, 1, 3], (90, 2)).astype(np.int32)
    weights = rng.uniform(0.1, 1, (90, 2)).astype(np.float32)
    hidden = 128 if scheme.block_elems > 32 else 64
    w_in, w_out = quantized(scheme, (4, hidden, 256)), quantized(scheme, (4, 128, hidden), seed=1)
    if scheme.element == "e5m2":  # of which there are infinities and NaN
        w_in.codes[...] &= 0xBF
        w_out.codes[...] &= 0xBF
    w_in.scales[2] = 0xFF if scheme.scale == "e8m0" else np.nan  # all of it
    args = x, chosen, weights, (w_in,), (None,), w_out, None
    expected = jax.jit(partial(load("moe", "xla"), activation=jnp.tanh))(*args)
    with races() as raced:
        found = jax.block_until_ready(jax.jit(partial(load("moe", "mosaic_gpu"), activation=jnp.tanh))(*args))
    assert np.isfinite(found).all()
    agree(np.asarray(expected), np.asarray(found))
    assert raced == []


def test_what_is_declined_of_weights() -> None:
    def reasons(op: str, x: Any, w: Any) -> str:
        given = {"x": x, "w": w} if op == "matmul" else {"x": x, "w_in": (w,), "w_out": w}
        return Kernel(op, ("mosaic_gpu",), "gpu").choose(given).reasons.removeprefix("mosaic_gpu: ")

    x = TensorSpec((4, 256), "BF16")
    weights = partial(TensorSpec, (3, 8, 256), "F32")
    for op in ("matmul", "moe"):
        for scheme in FORMATS.values():
            assert reasons(op, x, weights(scheme)) == ""
        assert reasons(op, replace(x, dtype="F32"), weights(MXFP4)).startswith("F32 activations; the kernel multiplies")
        assert reasons(op, x, TensorSpec((3, 8, 256), "BF16")).startswith("plain BF16 weights, which XLA's")
        assert reasons(op, x, weights(SCHEMES["int3"])).startswith("codes of 3 bits straddle bytes")
        few = "blocks of 8 × 4 bits; the kernel takes those of at least 8 bytes"
        assert reasons(op, x, weights(Scheme("int4", 8, "f16"))) == few


def test_what_is_declined_and_why() -> None:
    def reasons(q: Any, k: Any, **options: Any) -> str:
        given = {"q": q, "k": k, "v": k, **options}
        return Kernel("attention", ("mosaic_gpu",), "gpu").choose(given).reasons.removeprefix("mosaic_gpu: ")

    heads = partial(TensorSpec, (1, 4, 2, 64))
    assert reasons(heads("BF16"), heads("BF16")) == ""
    assert reasons(heads("F16"), heads("F16"), sinks=TensorSpec((2,), "F32"), softcap=2.0, window=3) == ""
    assert reasons(heads("F32"), heads("F32")) == "F32 queries; the kernel multiplies BF16 and F16"
    other = "F16 keys or values; the kernel reads those of the queries' dtype, BF16 or F16"
    assert reasons(heads("BF16"), heads("F16")) == other
    small = TensorSpec((1, 4, 2, 80), "BF16")
    assert reasons(small, small) == "heads of 80 dims; the kernel has tiles for 64 and 128"
    packed = heads("F32", Scheme("int8", 0, "f32"))
    assert reasons(heads("BF16"), packed).startswith("int8")
    refused = Kernel("attention", ("mosaic_gpu",), "tpu").choose({}).reasons
    assert "tpu" in refused


WRONG = {"12.6.85": False, "12.8.61": True, "12.9.41": True, "12.9.86": False}


@pytest.mark.parametrize(("ptxas", "wrong"), WRONG.items())
def test_what_ptxas_compiles_wrongly_is_declined(ptxas: str, wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declines.metadata, "version", lambda name: ptxas)
    declines._miscompiled.cache_clear()
    q = TensorSpec((1, 4, 2, 64), "BF16")
    kernel = Kernel("attention", ("mosaic_gpu",), "gpu")
    text = f"mosaic_gpu: nvidia-cuda-nvcc-cu12 {ptxas} may compile it wrongly; 12.9.86 or later does not"
    assert kernel.choose({"q": q}).reasons == text * wrong
    assert kernel.choose({"q": q, "causal": False}).reasons == kernel.on("cpu").choose({"q": q}).reasons == ""
    declines._miscompiled.cache_clear()


def test_other_devices_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """`wgmma` is Hopper's alone: neither what was before it nor what came after has it."""
    args = prompt(BF16, 64, 64)
    call = jax.jit(partial(load("attention", "mosaic_gpu"), scale=1.0))
    with pytest.raises(Unsupported, match=r"no Mosaic GPU kernels for tpu: they are lowered for cuda, and interpreted"):
        call.trace(*args[:5]).lower(lowering_platforms=("tpu",))
    for capability in ("8.0", "10.0"):
        other = SimpleNamespace(compute_capability=capability)
        monkeypatch.setattr("plugins.kernels.mosaic_gpu.launch.get_default_device", lambda other=other: other)
        jax.clear_caches()
        with pytest.raises(Unsupported, match=rf"capability 9.0 \(Hopper: H100, H200\), and this GPU has {capability}"):
            call.trace(*args[:5])
    jax.clear_caches()
