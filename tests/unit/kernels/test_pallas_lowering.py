"""Every Pallas kernel, lowered for GPUs and TPUs on a machine that has none: the program that would be compiled there.

What a lowering says is that a kernel uses nothing that JAX lacks for a device, with blocks of shapes that it takes;
not that a device's compiler takes it, nor that it is right, which the corpus says in interpret mode
(tests/contract/test_model_ops.py), nor that it is fast.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml
from jax.experimental import pallas as pl

import pipeline.tensors.pytree  # noqa: F401  QTensors may be traced
from pipeline.backends import backends_of, rooms
from pipeline.errors import Unsupported
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.testing.memory import quantized
from plugins.kernels.attention.pallas import attention
from plugins.kernels.cases import SCHEMES
from plugins.kernels.dequantize.pallas import decoded
from plugins.kernels.matmul import xla
from plugins.kernels.matmul.pallas import matmul
from plugins.kernels.moe.pallas import moe
from plugins.kernels.quantize.pallas import encoded
from plugins.kernels.quantize.recipe import Recipe
from plugins.kernels.quantize_dequantize.pallas import quantize_dequantize
from plugins.kernels.softmax.pallas import softmax

ROOT = Path(__file__).parents[3]
MX = {e: Scheme(e, 32, "e8m0") for e in ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8")}
CALLS = {"cuda": "__gpu$xla.gpu.triton", "tpu": "tpu_custom_call"}
BF16, F32 = jnp.bfloat16, jnp.float32


def lowered(platform: str, f: Callable[..., Any], *args: Any) -> str:
    text: str = jax.jit(f).trace(*args).lower(lowering_platforms=(platform,)).as_text()
    return text


def shaped(*shape: int, dtype: Any = BF16) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def configurations() -> Iterator[Any]:
    for dtype in (F32, BF16):
        x, sinks = shaped(3, 300, dtype=dtype), shaped(3, 1, dtype=F32)
        yield "softmax", softmax, (x,), 0
        yield "softmax of long rows, sinks and mask", _masked_softmax, (shaped(3, 5000, dtype=dtype), sinks), (0, 1)
        for rows in (1, 33):
            yield f"matmul, {rows} rows", matmul, (shaped(rows, 640, dtype=dtype), shaped(96, 640, dtype=dtype)), None
    for name, scheme in {**SCHEMES, "int4 a row": Scheme("int4", 0, "f32"), "int2": Scheme("int2", 64, "f16")}.items():
        if 8 % scheme.element_bits == 0:
            w = quantized(scheme, (96, 640))
            for rows, dtype in ((1, BF16), (33, F32)):
                yield f"matmul, {name}, {rows} rows", matmul, (shaped(rows, 640, dtype=dtype), w), None
    for name in ("mxfp4", "nvfp4", "int8 a row", "int4 a group", "mxfp8"):
        w_in, w_out = quantized(SCHEMES[name], (5, 192, 640)), quantized(SCHEMES[name], (5, 640, 96 * 2))
        for tokens in (1, 256):
            yield f"moe, {name}, {tokens} tokens", _moe, (shaped(tokens, 640), w_in, w_out), None
    yield "moe, bfloat16, 256 tokens", _moe, (shaped(256, 640), shaped(5, 192, 640), shaped(5, 640, 192)), None
    for d in (64, 128):
        for queries, options in (
            (1, {"window": 128}), (200, {}), (200, {"window": 128}), (200, {"softcap": 30.0}), (200, {"causal": False}),
        ):  # fmt: skip
            args = (shaped(2, queries, 8, d), shaped(2, 256, 2, d), shaped(2, 256, 2, d), shaped(8, dtype=F32))
            yield (
                f"attention, {d} dims, {queries} queries, {options}",
                partial(_attention, **options),
                args,
                (0, 1, 2, 3),
            )
    for name, scheme in {**MX, "nvfp4": SCHEMES["nvfp4"]}.items():
        w = quantized(scheme, (96, 640))
        for dtype in (F32, BF16):
            x = shaped(96, 640, dtype=dtype)
            recipe = Recipe() if scheme.scale == "e8m0" else Recipe(scale_rule="amax")
            yield f"quantize, {name}", partial(encoded, scheme=scheme, recipe=recipe), (x,), None
            there = partial(quantize_dequantize, scheme=scheme, scale_rule=recipe.scale_rule)
            yield f"quantize_dequantize, {name}", there, (x,), None
            yield f"dequantize, {name}", partial(decoded, dtype=dtype), (w,), None
    for element in ("int8", "e4m3"):
        held = quantized(Scheme(element, 0, "f32"), (2, 256, 2, 64))
        args = (shaped(2, 1, 8, 64), held, held, shaped(8, dtype=F32))
        yield f"attention, cache of {element}", _attention, args, (0, 3)
    long = shaped(1, 4096, 8, 64)
    yield (
        "attention, a step over 4096 slots",
        _attention,
        (shaped(1, 1, 64, 64), long, long, shaped(64, dtype=F32)),
        None,
    )


def _masked_softmax(x: Any, sinks: Any) -> Any:
    return softmax(x, sinks=sinks, where=x > 0)


def _moe(x: Any, w_in: Any, w_out: Any) -> Any:
    chosen, weights = jnp.zeros((len(x), 2), jnp.int32), jnp.ones((len(x), 2), jnp.float32)
    bias = jnp.zeros(w_in.shape[:2])
    return moe(x, chosen, weights, (w_in,), (bias,), w_out, None, activation=jax.nn.relu)


def _attention(q: Any, k: Any, v: Any, sinks: Any, **options: Any) -> Any:
    at = jnp.zeros(q.shape[:2], jnp.int32)
    slot = jnp.zeros(k.shape[:2], jnp.int32)
    return attention(q, k, v, at, slot, scale=0.1, sinks=sinks, **options)


def kernel_of(call: Mapping[str, Any]) -> tuple[Any, ...]:
    """A kernel with its scheme and options: others differ in dtypes, in dims of heads and in rows of packed weights."""
    f, args = call["f"], call["args"]
    given = {k: str(v) for k, v in getattr(f, "keywords", {}).items() if k != "dtype"}
    schemes = [str(a.scheme) for a in args if isinstance(a, QTensor)]
    rows = args[0].shape[1] if len(args[0].shape) == 4 else args[0].shape[0]
    return getattr(f, "func", f), *given.items(), *schemes, len(args), None if schemes else rows


@pytest.mark.parametrize(
    ("f", "args", "of"), [pytest.param(*c[1:], id=f"{i} {c[0]}") for i, c in enumerate(configurations())]
)
@pytest.mark.brief(each=kernel_of)
def test_lowers_for_gpus_and_tpus(f: Callable[..., Any], args: tuple[Any, ...], of: Any) -> None:
    """Forward or, where the gradient is written here, both ways; warnings are errors."""

    def loss(*args: Any) -> Any:
        return f(*args).astype(jnp.float32).sum()

    for platform, call in CALLS.items():
        text = lowered(platform, f if of is None else jax.value_and_grad(loss, of), *args)
        assert text.count(f"@{call}(") >= (1 if of is None else 2)


@pytest.mark.parametrize(("slots", "parts"), [(64, 1), (511, 1), (512, 2), (4096, 16), (16384, 33)])
def test_a_step_of_one_sequence_fills_a_gpu(slots: int, parts: int) -> None:
    """8 key heads × parts of 256 slots or more, up to two for each of an H100's 132 multiprocessors."""
    held = shaped(1, slots, 8, 64)
    text = lowered("cuda", _attention, shaped(1, 1, 64, 64), held, held, shaped(64, dtype=F32))
    assert re.findall(r"grid_([xyz]) = (\d+)", text) == [("x", "1"), ("y", "8"), ("z", str(parts))]


@pytest.mark.parametrize("name", ["e2m1", "e2m3"])
def test_codecs_for_gpus_move_nothing_but_what_they_read_and_write(name: str) -> None:
    """XLA neither copies nor transposes what a kernel reads where it lies; on TPUs it does."""
    w = quantized(MX[name], (96, 640))
    for f, args in (
        (partial(encoded, scheme=MX[name], recipe=Recipe()), (shaped(96, 640),)), (partial(decoded, dtype=BF16), (w,))
    ):  # fmt: skip
        assert "transpose" not in lowered("cuda", f, *args)
        assert "stablehlo.pad" not in lowered("cuda", f, *args)
        assert "stablehlo.transpose" in lowered("tpu", f, *args)


def floats(text: str, elements: int) -> list[str]:
    """The types of float buffers of at least so many elements in a lowered program."""
    found = set(re.findall(r"tensor<((?:\d+x)+)(?:b?f\d+)>", text))
    return [dims for dims in found if jnp.prod(jnp.array([int(n) for n in dims.split("x")[:-1]])) >= elements]


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8 a row"])
@pytest.mark.brief("mxfp4")
def test_there_is_no_buffer_as_large_as_a_decoded_weight(name: str) -> None:
    """Nor, of experts, as large as that of one."""
    w = quantized(SCHEMES[name], (512, 1024))
    for rows in (1, 33):
        for platform in CALLS:
            assert floats(lowered(platform, matmul, shaped(rows, 1024), w), 512 * 1024) == []
    stacks = quantized(SCHEMES[name], (3, 512, 1024)), quantized(SCHEMES[name], (3, 1024, 512))
    for tokens in (1, 33):
        for platform in CALLS:
            assert floats(lowered(platform, _moe, shaped(tokens, 1024), *stacks), 512 * 1024) == []
    assert floats(lowered("cuda", xla.matmul, shaped(1, 1024), w), 512 * 1024)  # so it would be seen


def test_other_platforms_are_refused_by_name() -> None:
    with pytest.raises(
        Unsupported, match=r"no Pallas kernels for rocm: they are lowered for cuda, tpu, and interpreted"
    ):
        lowered("rocm", softmax, shaped(3, 300))


def test_triton_is_named_in_one_module_and_asked_for() -> None:
    """Without its parameters a kernel goes to Mosaic GPU, which warns: the day that changes, so may
    `plugins/kernels/pallas/triton.py`."""
    kernels = ROOT / "plugins" / "kernels"
    named = [path for path in kernels.rglob("*.py") if re.search(r"import .*triton|pallas.triton", path.read_text())]
    assert sorted(str(path.relative_to(kernels)) for path in named) == ["pallas/launch.py", "pallas/triton.py"]

    def double(x: Any, y: Any) -> None:
        y[...] = x[...] * 2

    plain = pl.pallas_call(double, out_shape=shaped(8, 128, dtype=F32))
    with pytest.warns(DeprecationWarning, match="Please migrate to ``plgpu.kernel``"):
        assert CALLS["cuda"] not in lowered("cuda", plain, shaped(8, 128, dtype=F32))


def test_no_option_but_its_own_chooses_pallas() -> None:
    """Nothing of it was measured yet."""
    chosen = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "kernels").glob("*.yaml")}
    named = {option: {op for op, backends in ops.items() if "pallas" in backends} for option, ops in chosen.items()}
    assert named.pop("pallas") == {op for op in rooms() if "pallas" in backends_of(op)}
    assert "auto" in named
    assert not any(named.values())
