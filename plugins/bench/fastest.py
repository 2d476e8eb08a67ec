"""`python -m pipeline tune` on a GPU: time calls of all sizes by every backend that may do them, for `kernels=auto`.

Each size is at most sixteen times the one before, so that between them every call has one near it. What a backend
gives is compared with what XLA does before its time counts; where it gives up, or XLA does, that is said, and nothing
is kept. Where JAX has no GPU nothing is timed.
"""

from collections.abc import Callable, Iterator
from itertools import product
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
FORMATS: Final = ("mxfp4", "nvfp4", "int4_128", "int4_64", "int8", "fp8_tensor")  # as `quant=` makes them
OUT: Final = (1024, 16384, 131072)
INTO: Final = (1024, 8192)
ROWS: Final = (1, 16, 256, 4096)
EXPERTS: Final = ((32, 4, 2048, 2048), (8, 2, 4096, 16384))  # about as gpt-oss-20b and Mixtral have them
HEADS: Final = ((64, 8, 64), (32, 8, 128), (8, 2, 64))
SLOTS: Final = (1024, 16384)
PROMPTS: Final = (256, 4096)
WINDOW: Final = 128
APART: Final = 0.02  # of the size of all results together: bfloat16 rounds each by 0.002


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
        if (row := timed(case, device, say)) is not None:
            table.keep(device, [row])
            best = next(iter(row.faster), table.USUAL)
            told.append((f"{case.op} of {case.name}", table.USUAL, best, row.us[table.USUAL] / row.us[best]))
    return told


def cases() -> Iterator[Case]:
    """Of weights that are packed, times bfloat16, and of attention in bfloat16 without sinks."""
    yield from MatMul(tuple(product(OUT, INTO)), ROWS, FORMATS, None, "bf16").cases()
    for shape in EXPERTS:
        yield from Moe(shape, ROWS, FORMATS, "bf16").cases()
    attention = Attention(HEADS[0], SLOTS, PROMPTS, WINDOW, HEADS[1:])
    yield from (case for case in attention.cases() if "sinks" not in case.options)


def timed(case: Case, device: str, say: Callable[[str], None]) -> Row | None:
    """What a call took, by every backend that could do it; None where XLA could not."""
    us: dict[str, float] = {}
    wanted = None
    for backend in (table.USUAL, *table.OURS):
        try:
            program: Any = Ours(backend).call(case)
            if isinstance(program, str | None):  # it declines, and says so wherever it is asked
                continue
            found = program()
            wanted = found if wanted is None else wanted
            if not (off := _apart(found, wanted)) < APART:
                say(f"{backend}: {case.op} of {case.name}: results are {off:.2g} of their size from {table.USUAL}'s")
                continue
            us[backend] = round(program.took(SECONDS).seconds * 1e6, 2)
        except Exception as why:  # a kernel that does not compile for this device, or has no memory there
            say(f"{backend}: {case.op} of {case.name}: {short(str(why))}")
        if table.USUAL not in us:
            return None
    request = Kernel(case.op, (table.USUAL,), "gpu", device).request(*case.args, **case.options)
    known = sizes.of(request)
    assert known is not None
    return Row(case.op, *known, us)


def _apart(found: Any, wanted: Any) -> float:
    """How far results lie from others, of the size of these; NaN where one has none."""
    import jax.numpy as jnp

    found, wanted = (a.astype(jnp.float32).ravel() for a in (found, wanted))
    return float(jnp.linalg.norm(found - wanted) / jnp.linalg.norm(wanted))
