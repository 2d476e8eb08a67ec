"""`python -m pipeline tune` on a GPU: time calls of all sizes by every backend that may do them, for `kernels=auto`.

Sizes are powers of two, at most sixteen times as large as the one before, so that every call up to the largest has one
near it. A backend that gives up on a call has no time of it, and that is said. Where JAX has no GPU nothing is timed.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from pipeline.bench.op import Case
from pipeline.errors import short
from pipeline.ops import Kernel
from plugins.bench.ops import on_device
from plugins.bench.ops.attention import Attention
from plugins.bench.ops.matmul import MatMul
from plugins.bench.ops.moe import Moe
from plugins.bench.ops.ours import Ours
from plugins.kernels.fastest import sizes, table
from plugins.kernels.fastest.table import Row

SECONDS: Final = 0.05  # of kernels, twice, of one call by one backend
FORMATS: Final = ("mxfp4", "nvfp4", "int4_128", "int8", "fp8_tensor")  # as `quant=` makes them
OUT: Final = (1024, 16384, 131072)
INTO: Final = (1024, 8192)
MOST: Final = 1 << 29  # values of a matrix
ROWS: Final = (1, 16, 256, 4096)
EXPERTS: Final = (32, 4, 2048, 2048)  # as gpt-oss-20b
HEADS: Final = ((64, 8, 64), (32, 8, 128), (8, 2, 64))
SLOTS: Final = (1024, 16384)
PROMPTS: Final = (256, 4096)
WINDOW: Final = 128


def tune(say: Callable[[str], None]) -> list[tuple[str, str, str, float]]:
    """(call, what is usual, what is taken now, how much faster that is) of all; each is kept as soon as it was timed.

    Raises:
        StorageError: it cannot be.
    """
    if not on_device.is_gpu():
        return []
    import jax

    device = jax.devices()[0].device_kind
    told = []
    for case in cases():
        say(f"timing {case.op} of {case.name} on {device}")
        row = timed(case, device, say)
        table.keep(device, [row])
        if table.USUAL in row.us:
            best = next(iter(row.faster), table.USUAL)
            told.append((f"{case.op} of {case.name}", table.USUAL, best, row.us[table.USUAL] / row.us[best]))
    return told


def cases() -> Iterator[Case]:
    """Of weights that are packed, times bfloat16, and of attention in bfloat16 without sinks."""
    shapes = tuple((out, into) for out in OUT for into in INTO if out * into <= MOST)
    yield from MatMul(shapes, ROWS, FORMATS, None, "bf16").cases()
    yield from Moe(EXPERTS, ROWS, FORMATS, "bf16").cases()
    attention = Attention(HEADS[0], SLOTS, PROMPTS, WINDOW, HEADS[1:])
    yield from (case for case in attention.cases() if "sinks" not in case.options)


def timed(case: Case, device: str, say: Callable[[str], None]) -> Row:
    """What a call took, by every backend that could do it."""
    us = {}
    for backend in (table.USUAL, *table.OURS):
        try:
            program: Any = Ours(backend).call(case)
            if isinstance(program, str | None):  # it declines, and says so wherever it is asked
                continue
            us[backend] = round(program.took(SECONDS).seconds * 1e6, 2)
        except Exception as why:  # a kernel that does not compile for this device, or has no memory there
            say(f"{backend}: {case.op} of {case.name}: {short(str(why))}")
    request = Kernel(case.op, (table.USUAL,), "gpu", device).request(*case.args, **case.options)
    known = sizes.of(request)
    assert known is not None
    return Row(case.op, *known, us)
