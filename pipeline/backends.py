"""Which backends there are: the file tree is the registry, and nothing is imported until it is called.

An op is a room `plugins/kernels/<op>/`; a backend of it is a module or package of that room which is named like one of
`BACKENDS` and holds a callable named like the op. `reference` is the definition: plain, slow, the meaning of the op.
Somebody else's backend is the dotted name of a module that holds such a callable (`acme.fast_matmul`). `FASTEST` in a
list stands for those that a table of this kind of device says are fastest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, util
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pipeline.errors import ConfigError, StageError, did_you_mean

ROOM: Final = "plugins.kernels"
DEFINITION: Final = "reference"
FASTEST: Final = "fastest"
"""In a list of backends: those that were measured on this kind of GPU and took less time than XLA, the fastest first
(`plugins/kernels/fastest/`); none where nothing was measured, nor on CPUs."""
MEASURED: Final = ("gpu",)
"""Platforms of whose devices there are tables."""
_NATIVE: Final = f"{ROOM}.native.library"


@dataclass(frozen=True, slots=True)
class Backend:
    """What is true of a backend, whatever the op.

    Attributes:
        platforms: devices whose arrays it works on, as JAX names them; None: whichever, by way of the host's memory.
        traced: what it does becomes a part of compiled JAX programs; otherwise it works on buffers of the host.
        resident: bytes that a process which converts with it keeps, where that is much.
        built: module of what it needs that is made on this machine: `missing()` is why that is not there and cannot be
            made, None where it can, quickly; `prepare(say)` makes it, and tells `say` that it does.
        package: of others, that it calls; an extra of ours has its name.
        tuned: module of how it divides its work: `tune(say)` measures what is fastest on this machine, keeps it, and
            gives (what, by default, now, times as fast) of all; nothing where there is none of what it measures.
        unit: what results may be off by, as a share of their size, where that is more than roundings of sums; such a
            backend runs only where it is named.
    """

    platforms: tuple[str, ...] | None = None
    traced: bool = True
    resident: int = 0
    built: str | None = None
    package: str | None = None
    tuned: str | None = None
    unit: float = 0.0


BACKENDS: Final[Mapping[str, Backend]] = MappingProxyType(
    {
        DEFINITION: Backend(traced=False),
        "numpy": Backend(traced=False),
        # Converting with XLA keeps JAX, its threads, and programs of a few shapes.
        "xla": Backend(platforms=("cpu", "gpu", "tpu"), resident=512 << 20),
        # Kernels for GPUs and TPUs; on CPUs they are interpreted, which is for checking them.
        "pallas": Backend(platforms=("cpu", "gpu", "tpu"), resident=512 << 20),
        # The same for NVIDIA's Hopper alone; on CPUs JAX interprets them, in seconds for a block.
        "mosaic_gpu": Backend(platforms=("cpu", "gpu"), resident=512 << 20, tuned="plugins.bench.fastest"),
        # Attention of others', by name only: what comes with JAX, and a package of kernels.
        "cudnn": Backend(platforms=("gpu",)),
        "tokamax": Backend(platforms=("gpu",), package="tokamax"),
        # C++: over buffers for conversion, as handlers of XLA's for models.
        "native": Backend(platforms=("cpu",), built=_NATIVE, tuned=f"{ROOM}.native.tune"),
        # The same with activations as integers, in blocks of 32.
        "native_int16": Backend(platforms=("cpu",), built=_NATIVE, unit=2.0**-11),
        "native_int8": Backend(platforms=("cpu",), built=f"{ROOM}.native.in_bytes", unit=2.0**-6),
    }
)
"""The names that a backend in a room may have, in the order in which errors and tests list them."""


def rooms() -> list[str]:
    """Names of all ops, found without importing them; those of the user's folder too."""
    names = {path.name for folder in _folders() for path in Path(folder).iterdir()}
    return sorted(name for name in names if DEFINITION in backends_of(name))


def backends_of(op: str) -> list[str]:
    """Names of the backends that the room of an op holds, found without importing them; none where there is no room."""
    spec = PathFinder.find_spec(f"{ROOM}.{op}", _folders()) if op.isidentifier() else None
    inside = list((spec and spec.submodule_search_locations) or ())
    return [name for name in BACKENDS if PathFinder.find_spec(f"{ROOM}.{op}.{name}", inside)]


def check(op: str, backends: tuple[str, ...]) -> None:
    """Raise ConfigError unless there is such an op with such backends."""
    known = backends_of(op)
    if DEFINITION not in known:
        raise ConfigError(f"there is no op {op!r}{did_you_mean(op, rooms())}")
    if not backends:
        raise ConfigError(f"{op}: no backend chosen{did_you_mean('', known)}")
    for name in backends:
        if name == FASTEST:
            if op not in (timed := _module(f"{ROOM}.fastest.sizes").OPS):
                raise ConfigError(f"{op}: {FASTEST!r} is for what is timed: {', '.join(timed)}")
            continue
        if "." in name and not _exists(name):
            raise ConfigError(f"{op}: backend {name!r}: there is no such module{_nearest_module(name)}")
        if "." not in name and name not in known:
            hint = did_you_mean(name, [*known, FASTEST, "the dotted name of a module"])
            raise ConfigError(f"{op}: backend {name!r} is unknown{hint}")


def _nearest_module(name: str) -> str:
    """What lies beside a module that is not there, of the innermost of its packages that is."""
    import pkgutil  # for an error alone

    package, parts = name.rpartition(".")[0], name.split(".")
    while package and not _exists(package):
        package = package.rpartition(".")[0]
    spec = util.find_spec(package) if package else None
    inside = [f"{package}.{m.name}" for m in pkgutil.iter_modules((spec and spec.submodule_search_locations) or ())]
    return did_you_mean(".".join(parts[: package.count(".") + 2]), inside) if inside else ""


def about(backend: str) -> Backend:
    """What is true of a backend. The module of a dotted one may say it as `BACKEND`."""
    if backend == FASTEST:
        return Backend(platforms=MEASURED, resident=max(BACKENDS[name].resident for name in _table().OURS))
    if "." not in backend:
        return BACKENDS[backend]
    found = getattr(_module(backend), "BACKEND", Backend())
    if not isinstance(found, Backend):
        raise ConfigError(f"{backend}.BACKEND is {found!r}; a pipeline.backends.Backend is expected")
    return found


def load(op: str, backend: str) -> Callable[..., Any]:
    """The callable that a backend is.

    Raises:
        ConfigError: there is none, or what it needs is not installed.
    """
    module = _module(backend if "." in backend else f"{ROOM}.{op}.{backend}")
    found: Callable[..., Any] | None = getattr(module, op, None)
    if not callable(found):
        raise ConfigError(f"{op}: backend {backend!r}: {module.__name__} holds nothing callable named {op!r}")
    return found


def modules(op: str, backend: str) -> list[str]:
    """Names of the modules that a backend is made of: its own, and the one that says what it leaves to others."""
    if "." in backend:
        return [backend]
    if backend == FASTEST:  # what it may choose counts where there is a choice: `measured`
        return [f"{ROOM}.fastest.table", f"{ROOM}.fastest.sizes"]
    return [name for name in (f"{ROOM}.{op}.{backend}", f"{ROOM}.{op}.declines") if _exists(name)]


def fastest(request: Any) -> tuple[list[str], str]:
    """What `FASTEST` stands for in a call, a `pipeline.ops.Request`, and why it is not more; see `table.order`."""
    if request.platform not in MEASURED:
        return [], f"there are tables of what calls take on {', '.join(MEASURED)}, and none of {request.platform}"
    found: tuple[list[str], str] = _table().order(request)
    return found


def measured(device: str, ops: Iterable[str]) -> tuple[str, list[str]]:
    """What `FASTEST` depends on, on a kind of device as JAX names it: a digest of what is chosen there, and the modules
    of what may be."""
    ours = [(op, name) for op in ops for name in backends_of(op) if name in _table().OURS]
    return _table().told(device), [module for op, name in ours for module in modules(op, name)]


def declines(op: str, backend: str) -> Callable[[Any], str | None] | None:
    """What says beforehand which requests a backend cannot do; None: it does everything.

    It is `declines` of the backend's module; for backends of our own rooms it is the function of the backend's name in
    the room's `declines.py`, so that plans ask without importing what the backend is made of.
    """
    module, name = (backend, "declines") if "." in backend else (f"{ROOM}.{op}.declines", backend)
    return getattr(_module(module), name, None) if _exists(module) else None


def together(op: str, backend: str) -> Callable[..., list[Any]] | None:
    """What does several calls that need nothing of each other at once: `together(calls)`, each the positional arguments
    of one, gives a result for each. It is `together` of the backend's module; None where that has none."""
    module = _module(backend if "." in backend else f"{ROOM}.{op}.{backend}")
    return getattr(module, "together", None)


def missing(backend: str) -> str | None:
    """Why a backend does nothing on this machine, whatever it is asked; None where it does, or will once built."""
    built, package = about(backend).built, about(backend).package
    if package is not None and not _exists(package):
        return f"{package} is not installed: pip install 'weightmill[{package}]'"
    why: str | None = _module(built).missing() if built else None
    return why


def prepare(names: Iterable[str], say: Callable[[str], None]) -> None:
    """Build what backends need, before anything is planned with them; `say` hears that, and what could not be built."""
    for built, name in {built: name for name in names if (built := about(name).built)}.items():
        _module(built).prepare(say)
        if why := missing(name):
            say(f"no {built.split('.')[-2]} kernels: {why}")


def tune(say: Callable[[str], None]) -> list[tuple[str, str, str, float]]:
    """Measure how backends had best divide their work on this machine, and which are fastest on its GPU; see
    `Backend.tuned`. `say` hears what is being timed, and of backends that are not here why.

    Raises:
        StageError: none of them is here.
        StorageError: what was found cannot be kept.
    """
    found: list[tuple[str, str, str, float]] = []
    lacking = []
    for name, backend in BACKENDS.items():
        if backend.tuned:
            prepare([name], lambda said: None)
            if why := missing(name):
                lacking.append(f"no {name} kernels: {why}")
            else:
                found += _module(backend.tuned).tune(say)
    if not found:
        raise StageError("; ".join(lacking) or "JAX has no device here of which anything is timed")
    for why in lacking:
        say(why)
    return found


def _table() -> Any:
    return _module(f"{ROOM}.fastest.table")


@cache
def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as why:
        raise ConfigError(f"{name} cannot be imported: {why}") from why


@cache
def _exists(module: str) -> bool:
    """Imports the packages above it, not the module."""
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _folders() -> list[str]:
    return list(import_module(ROOM).__path__)
