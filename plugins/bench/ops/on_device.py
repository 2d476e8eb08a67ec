"""How long calls take on a GPU: by its own clock, and not by that of the host.

A call that the host waits for takes half a millisecond and more, whatever the kernel does, on a virtual machine.
So calls are dispatched one after another without waiting, over several copies of what they read, as the GPU's cache
would keep a single one; and what counts is the time in which kernels run, as CUPTI notes it in a profile of JAX. Where
a profile has none, or not all, that is said, and the host's clock over all calls counts, with the gaps between kernels.
"""

import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

KERNELS: Final = "kernels, by the profiler"
WALL: Final = "wall clock of calls dispatched without waiting"
SETS_NBYTES: Final = 192 << 20  # that copies of arguments come to: the second cache of an H100 or H200 holds 50 MiB
MOST_SETS: Final = 16
LEAST_CALLS, MOST_CALLS = 8, 1000
NO_CLOCK_S: Final = 5.0  # nvidia-smi took 0.1 to 2 s
ASKED: Final = "clocks.sm,clocks.max.sm,clocks.mem,power.draw,temperature.gpu"
COPY_ELEMENTS: Final = 1 << 27  # float32: 512 MiB are read, and as many written
MATRIX: Final = 8192  # rows and columns of what is multiplied for a limit: 1.3 ms on an H200
UNDER_LOAD: Final = 1500  # such products, two seconds of them, while the clock is asked for
PLUGINS: Final = ("jax_cuda12_plugin", "jax_cuda13_plugin", "jax_rocm60_plugin", "jax_rocm7_plugin")


@dataclass(frozen=True)
class Kernel:
    """Attributes:
    name: of a kernel, or of a copy between memories, as CUPTI has it.
    start, end: when it ran, ns.
    """

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Took:
    """How long a call took.

    Attributes:
        seconds: of a call, by `how`.
        how: `KERNELS`, or `WALL` and why.
        wall: seconds of a call by the host's clock, of calls that were dispatched without waiting.
        calls: that were profiled.
        kernels: seconds of a call, by name, the longest first.
    """

    seconds: float
    how: str
    wall: float
    calls: int
    kernels: Mapping[str, float] = field(default_factory=dict)

    @property
    def row(self) -> dict[str, Any]:
        """As rounds of a benchmark note it."""
        return {"s": self.seconds, "timed": {"how": self.how, "wall": self.wall, "calls": self.calls}}


@dataclass(frozen=True)
class Program:
    """A compiled call, with copies of its arguments on the device."""

    run: Callable[..., Any]
    sets: tuple[tuple[Any, ...], ...]

    def __call__(self) -> Any:
        return _done(self.run(*self.sets[0]))

    def took(self, seconds: float) -> Took:
        """Of as many calls as take about that long."""
        return took(lambda i: self.run(*self.sets[i % len(self.sets)]), seconds, len(self.sets))


def is_gpu() -> bool:
    """Whether JAX computes on a GPU here. JAX is not imported where none of its plugins is installed."""
    if not any(map(find_spec, PLUGINS)):
        return False
    import jax

    return jax.default_backend() == "gpu"


def compiled(run: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """What runs a program and waits for it; on a GPU a `Program`, whose time is the device's.

    Args:
        args: pytrees of arrays that are on the device.
    """
    if is_gpu():
        return Program(run, tuple(copies(args)))
    return lambda: _done(run(*args))


def copies(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """As many of what a call reads as no cache holds together, the first of them itself."""
    import jax
    import jax.numpy as jnp

    nbytes = sum(a.nbytes for a in jax.tree.leaves(args) if hasattr(a, "nbytes"))
    count = min(MOST_SETS, max(1, math.ceil(SETS_NBYTES / max(1, nbytes))))
    return [args, *(jax.tree.map(jnp.copy, args) for _ in range(count - 1))]


def _done(result: Any) -> Any:
    import jax

    return jax.block_until_ready(result)  # type: ignore[no-untyped-call]


def took(dispatch: Callable[[int], Any], seconds: float, sets: int = 1) -> Took:
    """How long calls take that do not wait for each other.

    Args:
        dispatch: makes call `i`, and returns arrays that are there when it has ended.
        seconds: about so long calls are made, twice: by the clock alone, and with the profiler.
        sets: so many calls come before the first one's arguments are read again.
    """
    for i in range(max(2, sets)):  # the first compiles; the others see each its arguments once
        _done(dispatch(i))
    start = time.perf_counter()
    _done(dispatch(0))
    calls = min(MOST_CALLS, max(LEAST_CALLS, sets, math.ceil(seconds / (time.perf_counter() - start))))
    wall = _of_all(dispatch, calls)
    with profiled() as found:
        _of_all(dispatch, calls)
    return judged(found, wall, calls)


def _of_all(dispatch: Callable[[int], Any], calls: int) -> float:
    start, result = time.perf_counter(), None
    for i in range(calls):
        result = dispatch(i)
    _done(result)
    return (time.perf_counter() - start) / calls


@contextmanager
def profiled() -> Iterator[list[Kernel]]:
    """What runs on GPUs meanwhile, in the list that is given, once it has ended; nothing where there is no profile."""
    import jax

    found: list[Kernel] = []
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's calls cost time, and say nothing of the device
    with tempfile.TemporaryDirectory(prefix="weightmill-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            yield found
        for file in Path(folder).rglob("*.xplane.pb"):
            found += kernels(jax.profiler.ProfileData.from_file(str(file)))


def kernels(profile: Any) -> list[Kernel]:
    """What ran on the GPUs of a profile.

    Args:
        profile: a `jax.profiler.ProfileData`: GPUs are planes of it, and their streams the lines.
    """
    return [
        Kernel(event.name, event.start_ns, event.start_ns + event.duration_ns)
        for plane in profile.planes if plane.name.startswith("/device:GPU")
        for line in plane.lines if line.name.startswith("Stream")
        for event in line.events
    ]  # fmt: skip


def judged(found: Iterable[Kernel], wall: float, calls: int) -> Took:
    """What a profile of `calls` equal calls comes to; the clock of the host counts where it lacks some.

    Args:
        wall: seconds of a call by that clock.
    """
    found = list(found)
    many = Counter(kernel.name for kernel in found)
    odd = next((name for name, count in many.items() if count % calls), None)
    if not found:
        how = f"{WALL}: the profile has no kernels"
    elif odd is not None:
        how = f"{WALL}: the profile has {many[odd]} of {odd[:40]} in {calls} calls"
    else:
        how = KERNELS
    if how != KERNELS:
        print(f"not by the profiler: {how}", file=sys.stderr)
    spent = Counter[str]()
    for kernel in found:
        spent[kernel.name] += kernel.end - kernel.start  # type: ignore[assignment]
    by_name = {name: ns * 1e-9 / calls for name, ns in spent.most_common()}
    return Took(busy(found) / calls if how == KERNELS else wall, how, wall, calls, by_name)


def busy(found: Iterable[Kernel]) -> float:
    """Seconds in which at least one kernel ran: those of several streams may run at once."""
    total, until = 0.0, -math.inf
    for kernel in sorted(found, key=lambda k: k.start):
        total += max(0.0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return total * 1e-9


def smi(asked: str = ASKED) -> dict[str, str]:
    """What nvidia-smi says of the first GPU, with units; empty where it is not there or says nothing."""
    if (program := shutil.which("nvidia-smi")) is None:
        return {}
    command = [program, f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=NO_CLOCK_S)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(asked.split(","), map(str.strip, said.stdout.strip().split(",")), strict=False))


def device() -> dict[str, Any]:
    """The GPU, and its clocks at this moment."""
    import jax

    first = jax.devices()[0]
    return {"name": first.device_kind, "platform": first.platform, **smi()}


def limits(seconds: float = 0.2) -> dict[str, Any]:
    """What the GPU reaches: bytes a second of a copy, read and written, and operations a second of a product of two
    large bf16 matrices, and its clocks while it multiplies."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros(COPY_ELEMENTS, jnp.float32)
    copy = Program(jax.jit(lambda x: x + 1), ((x,),)).took(seconds)
    key = jax.random.key(0)
    a, b = (jax.random.normal(k, (MATRIX, MATRIX), jnp.bfloat16) for k in jax.random.split(key))
    product = Program(jax.jit(jnp.matmul), ((a, b),)).took(seconds)

    def again(a: Any, b: Any) -> Any:
        return jax.lax.fori_loop(0, UNDER_LOAD, lambda i, x: x @ b * (1 / MATRIX), a)

    busy_now = jax.jit(again).lower(a, b).compile()(a, b)
    loaded = smi()
    _done(busy_now)
    return {
        "read": 2 * x.nbytes / copy.seconds, "multiply_add": 2.0 * MATRIX**3 / product.seconds,
        "how": sorted({copy.how, product.how}), "device": {**device(), **loaded},
    }  # fmt: skip
