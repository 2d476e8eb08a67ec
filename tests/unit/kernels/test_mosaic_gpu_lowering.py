"""Every Mosaic GPU kernel, lowered for Hopper on a machine that has none: the program that would be compiled there.

Which register of which thread holds what is worked out while lowering, so this says that every operation has a layout
that it can have, and copies and products the shapes that the device takes; not that a device's compiler takes it, nor
that it is right, which the corpus says interpreted (tests/unit/kernels/test_mosaic_gpu.py), nor that it is fast.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import yaml

from pipeline.backends import backends_of, rooms
from plugins.kernels.attention.mosaic_gpu import AHEAD, attention
from plugins.kernels.attention.mosaic_gpu_kernel import Shape
from plugins.kernels.mosaic_gpu.launch import Device, registers
from tests.unit.kernels.test_pallas_lowering import ROOT, lowered, shaped

CALL = "@mosaic_gpu_v2("
F32 = jnp.float32
SMEM_NBYTES = 227 << 10  # of a block, at most (CUDA C++ Programming Guide, compute capability 9.0)


def configurations() -> Iterator[Any]:
    for d, e in ((64, 64), (128, 128), (64, 128)):
        for queries, options in (
            (1, {"window": 128}), (200, {}), (200, {"softcap": 30.0}), (200, {"causal": False, "window": 128}),
        ):  # fmt: skip
            for dtype in (jnp.bfloat16, jnp.float16):
                q, k, v = (shaped(2, *s, dtype=dtype) for s in ((queries, 8, d), (256, 2, d), (256, 2, e)))
                name = f"attention, {d} and {e} dims, {queries} queries, {options}, {dtype.dtype}"
                yield name, partial(_attention, **options), (q, k, v, shaped(8, dtype=F32)), (0, 1, 2, 3)
    packed = tuple(shaped(2, 200, n, 64) for n in (4, 2, 2))
    yield "attention, segments", _of_documents, packed, None


def _attention(q: Any, k: Any, v: Any, sinks: Any, **options: Any) -> Any:
    at, slot = (jnp.zeros(a.shape[:2], jnp.int32) for a in (q, k))
    return attention(q, k, v, at, slot, scale=0.1, sinks=sinks, **options)


def _of_documents(q: Any, k: Any, v: Any) -> Any:
    at = jnp.zeros(q.shape[:2], jnp.int32)
    return attention(q, k, v, at, at, scale=0.1, segments=at)


def few(call: dict[str, Any]) -> Any:
    """Of each kind of kernel, one dtype."""
    return call["name"].rpartition(", ")[0]


@pytest.mark.brief(each=few)
@pytest.mark.parametrize(
    ("name", "f", "args", "of"), [pytest.param(*c, id=f"{i} {c[0]}") for i, c in enumerate(configurations())]
)
def test_lowers_for_hopper(name: str, f: Callable[..., Any], args: tuple[Any, ...], of: Any) -> None:
    """Forward, and where there is a gradient both ways, with one kernel of ours; nothing calls back to the host."""
    text = lowered("cuda", f, *args)
    assert text.count(CALL) == 1
    assert "callback" not in text
    if of is not None:
        both = jax.value_and_grad(lambda *args: f(*args).astype(F32).sum(), of)
        assert lowered("cuda", both, *args).count(CALL) == 1


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (64, 128), (128, 64)])
def test_attention_fits_shared_memory(dims: tuple[int, int]) -> None:
    names = ("at", "own", "sinks"), ("slot", "of_slot")
    held = Shape(Device("cuda", False), dims, jnp.bfloat16, 1, 2, AHEAD[max(dims)], *names).scratch()
    buffers = [ref.inner_aval for name, ref in held.items() if not name.endswith(("there", "done"))]
    nbytes = sum(buffer.size * buffer.dtype.itemsize for buffer in buffers)
    assert SMEM_NBYTES // 2 < nbytes < SMEM_NBYTES


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
