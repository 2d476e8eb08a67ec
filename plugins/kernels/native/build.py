"""Compile the native kernels: once for each version of their sources, compiler and flags, into the user's cache folder.

Each `src/<unit>.cc` is a library of its own, called after a hash of all that it is made of, so that a changed source is
a new library and an old one is never taken for it. It is compiled for the architecture, not for this machine:
instruction sets are chosen when it runs (src/targets.h), and a cache folder that several machines share serves them
all. A wheel may have brought the libraries along (setup.py); they are taken where they are of these sources and can be
loaded, so that machines without a compiler have native kernels too. Plans ask whether there are native kernels
(`missing`) and compile nothing; a run compiles first (`prepare`), so that what will not compile is known before it is
planned.
"""

import ctypes
import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pipeline.digest import identity
from pipeline.errors import StageError, StorageError, Unsupported
from pipeline.files import cache_folder, write_json
from pipeline.places import hindrance
from pipeline.running import text_stream
from plugins.kernels.native import compiler

SOURCES: Final = Path(__file__).parent / "src"
SHIPPED: Final = Path(__file__).parent / "shipped"
"""Libraries that came in a wheel."""
# No -march: the sources say which function has which instructions. -ffp-contract: a product and a sum are fused where
# it is written so, and nowhere else.
FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden")
SANITIZE: Final = "WEIGHTMILL_SANITIZE"
"""Environment variable: sanitizers to compile with (`address,undefined`), for tests."""
# Compiled in a third of the time: without optimization, checks of memory as calls, without checks for null everywhere.
# A warning is an error here, where it keeps nobody from having kernels.
SANITIZED: Final = (
    "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
    "-O0", "-g1", "--param=asan-instrumentation-with-call-threshold=0", "-fno-sanitize-recover=all",
    "-fno-sanitize=null,object-size,pointer-overflow",
)  # fmt: skip
SELDOM: Final = ("gradient", "limits", "rounded", "superblocks")
"""Units that few runs need: to train, to benchmark, to round activations, to make k-quants. They are compiled when they
are first called, or asked for (in_bytes.py): all of them together take a quarter of the time that compiling takes."""
MOST_LINES: Final = 20  # of what a compiler says
QUICK_S: Final = 5.0
RETRY_S: Final = 24 * 3600.0
"""What did not compile within `QUICK_S` is tried again by every run; what took longer, when `RETRY_S` have passed."""

_refused: dict[Path, str] = {}
"""Folders in which something could not be kept, although nothing spoke against it, and why: full ones."""


def units() -> list[str]:
    """Names of all libraries."""
    return sorted(p.stem for p in SOURCES.glob("*.cc"))


def folder() -> Path:
    """Where libraries are kept: weightmill/native in the user's cache folder."""
    return cache_folder() / "native"


def library(unit: str = "core") -> Path:
    """The compiled `src/<unit>.cc`, made first if it is not there.

    Raises:
        Unsupported: there is no C++ compiler, and nothing compiled before.
        StorageError: there is no place to keep it.
        StageError: the compiler does not take the sources.
    """
    if (found := _found(unit)) is not None:
        return found
    if failed := _make([unit], text_stream.say):
        raise StageError(failed[unit])
    return _place(unit)


def ship(to: Path) -> None:
    """Put all libraries where a wheel has them (`SHIPPED`), compiled first if they are not there.

    Raises:
        as `library`.
    """
    to.mkdir(parents=True, exist_ok=True)
    for unit in units():
        shutil.copyfile(library(unit), to / _shipped_name(unit))


@cache
def missing() -> str | None:
    """Why there are no native kernels here; None when there are, or can be made. Nothing is compiled or started."""
    try:
        for unit in units():
            found = _found(unit)
            why = _unloadable(found) if found is not None else _hindrance() or _failed(_place(unit))
            if why is not None:
                return why
    except Unsupported as why_not:
        return why_not.reason
    return None


def prepare(say: Callable[[str], None], seldom: Collection[str] = ()) -> None:
    """Make what is not there yet, all units at once; what cannot be made is `missing` from then on.

    Args:
        say: hears that it is compiled.
        seldom: those of `SELDOM` that are wanted too.
    """
    missing.cache_clear()
    _refused.pop(folder(), None)
    try:
        if _hindrance() is not None:
            return
        wanted = [u for u in units() if u not in SELDOM or u in seldom]
        due = [u for u in wanted if (f := _found(u)) is None or _unloadable(f) is not None]
        due = [u for u in due if _is_to_be_tried(_place(u))]
        if due:
            _make(due, say)
    except Unsupported:  # `missing` says why
        return
    except StorageError as why:
        _refused[folder()] = str(why)
    finally:
        missing.cache_clear()


def _found(unit: str) -> Path | None:
    """The library of what the sources are now, where it is made already; without a compiler, whoever made it.

    Raises:
        Unsupported: there is no compiler, and none.
    """
    try:
        place = _place(unit)
    except Unsupported:
        found = [*sorted(folder().glob(f"{unit}-{_made_of(unit, _libc())}-*.so")), *_shipped(unit)]
        if not found:
            raise
        return found[0]
    return place if place.exists() else next(iter(_shipped(unit)), None)


def _shipped(unit: str) -> list[Path]:
    """The library that a wheel brought, if it did and it loads: it may be of a machine with another C library."""
    if not SHIPPED.is_dir():
        return []
    file = SHIPPED / _shipped_name(unit)
    return [file] if file.exists() and _unloadable(file) is None else []


def _shipped_name(unit: str) -> str:
    return f"{unit}-{_made_of(unit, None)}.so"


def _place(unit: str) -> Path:
    """Where this machine's compiler puts the library.

    Raises:
        Unsupported: there is none.
    """
    by = identity(compiler.stamp(compiler.command()))[:8]
    return folder() / f"{unit}-{_made_of(unit, _libc())}-{by}.so"


def _made_of(unit: str, libc: str | None) -> str:
    """What the library is made of and for, the compiler aside."""
    texts = [
        (p.name, p.read_bytes().decode())
        for p in (*_sources(unit), *(h for i in _include(unit) for h in i.rglob("*.h")))
    ]
    return identity([sorted(texts), _flags(), platform.machine(), libc])[:16]


def _sources(unit: str) -> list[Path]:
    """`src/<unit>.cc` and the headers of ours that it names, and those that these name."""
    found, due = dict[Path, None](), [SOURCES / f"{unit}.cc"]
    while due:
        if (path := due.pop()) not in found and path.exists():
            found[path] = None
            due += [SOURCES / name for name in re.findall(r'"(\w+\.h)"', path.read_bytes().decode())]
    return [*found]


def _size(unit: str) -> int:
    return sum(p.stat().st_size for p in _sources(unit))


def _include(unit: str) -> list[Path]:
    """Folders of headers that are not ours: XLA's, beside jaxlib, for the handlers of its FFI."""
    if not any('"xla/ffi/' in p.read_bytes().decode() for p in _sources(unit)):
        return []
    jaxlib = find_spec("jaxlib")  # imports nothing
    return [Path(p) / "include" for p in (jaxlib and jaxlib.submodule_search_locations) or ()]


def _flags() -> tuple[str, ...]:
    asked = os.environ.get(SANITIZE)
    return (*FLAGS, f"-fsanitize={asked}", *SANITIZED) if asked else FLAGS


def _libc() -> str | None:
    with suppress(ValueError, OSError):  # no glibc
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def _command(unit: str, to: Path) -> list[str]:
    headers = [option for folder in _include(unit) for option in ("-isystem", str(folder))]
    return [*compiler.command(), *_flags(), *headers, "-o", str(to), str(SOURCES / f"{unit}.cc")]


def _hindrance() -> str | None:
    """Why no library could be kept and used."""
    if why := _refused.get(folder()):
        return why
    if why := hindrance(folder() / "core.so"):
        return f"what is compiled cannot be kept in {folder()}: {why}"
    there = folder()
    while not there.exists():
        there = there.parent
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        return f"what is compiled cannot be run from {folder()}, which is mounted noexec; XDG_CACHE_HOME is elsewhere"
    return None


def _unloadable(file: Path) -> str | None:
    """Why a library is none: cut short, for another C library, on a file system that lets nothing run."""
    try:
        ctypes.CDLL(str(file))
    except OSError as why:
        return f"{file.name} cannot be loaded: {str(why).removeprefix(f'{file}: ')}"
    return None


def _failed(place: Path) -> str | None:
    """Why it did not compile the last time; None where it was not tried."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads(_record(place).read_bytes().decode())["why"])
    return None


def _is_to_be_tried(place: Path) -> bool:
    try:
        tried = _record(place)
        return bool(
            json.loads(tried.read_bytes().decode())["seconds"] < QUICK_S
            or time.time() - tried.stat().st_mtime > RETRY_S
        )
    except (OSError, ValueError, TypeError, KeyError):
        return True


def _shown(said: str) -> str:
    return "\n".join(said.splitlines()[:MOST_LINES])


def _record(place: Path) -> Path:
    return place.with_suffix(".failed")


def _make(due: Iterable[str], say: Callable[[str], None]) -> dict[str, str]:
    """Compile units, all at once, each in a file of its own first: a library that is there is whole.

    Args:
        say: hears what takes its time.

    Returns:
        Those that failed: why, and what the compiler said.

    Raises:
        Unsupported: there is no compiler.
        StorageError: there is no place.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _alone(say), tempfile.TemporaryDirectory(dir=folder(), prefix=".compiling-") as scratch:
            due = [u for u in due if not (p := _place(u)).exists() or _unloadable(p) is not None]  # of another process
            due.sort(key=_size, reverse=True)  # the longest first, so that all cores end together
            if due:
                say(f"compiling the native kernels, once: {', '.join(due)}")
            done = compiler.run({u: _command(u, Path(scratch) / f"{u}.so") for u in due})
            failed = {
                unit: f"{why}\n{_shown(how.said)}"
                for unit, how in done.items()
                if (why := _keep(Path(scratch) / f"{unit}.so", _place(unit), how)) is not None
            }
    except OSError as why:
        raise StorageError(f"{folder()}: the native kernels cannot be kept there: {why.strerror}") from None
    return failed


def _keep(made: Path, place: Path, how: compiler.Done) -> str | None:
    """Put a library where it is found, or the reason why there is none, which is returned."""
    why = how.why or (_unloadable(made) if made.exists() else "it wrote nothing")
    if why is not None:
        said = f"{shlex.join(compiler.command())} does not compile the native kernels: {why}"
        write_json(_record(place), {"why": said, "seconds": how.seconds})
        return said
    with made.open("rb") as file:
        os.fsync(file.fileno())  # a machine that stops now must not leave a name without its content
    made.replace(place)
    _record(place).unlink(missing_ok=True)
    return None


@contextmanager
def _alone(say: Callable[[str], None]) -> Iterator[None]:
    """One process compiles at a time; the others say that they wait, and find the libraries. What a killed one left is
    removed."""
    with (folder() / ".lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks: two do the same work
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another process, which compiles the native kernels")
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in folder().glob(".compiling-*"):
                shutil.rmtree(left, ignore_errors=True)
        yield
