"""Compile the native kernels: once for each version of their sources, compiler and flags, into the user's cache folder.

Each `src/<unit>.cc` is a library of its own, called after a hash of all that it is made of, so that a changed source is
a new library and an old one is never taken for it. It is of one instruction set (src/targets.h), which counts in the
hash, as a machine needs no other; machines that share a cache folder find there what is theirs. A wheel may have
brought libraries of all instruction sets along (setup.py), which are chosen among when they run; they are taken where
they are of these sources and can be loaded, so that machines without a compiler have native kernels too. `library`
says which are wanted, and when.
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pipeline.digest import digest, identity
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


def library(unit: str, isa: int | None = None) -> Path:
    """The compiled `src/<unit>.cc`, made first if it is not there.

    Args:
        isa: a `WmIsa` of src/targets.h, which calls of it will name; None: any.

    Raises:
        Unsupported: there is no C++ compiler, and nothing compiled before.
        StorageError: there is no place to keep it.
        StageError: the compiler does not take the sources.
    """
    if (found := _found(unit, isa)) is not None:
        return found
    if failed := _make([unit], isa, text_stream.say):
        raise StageError(failed[unit])
    return _place(unit, isa)


def ship(to: Path) -> None:
    """Put all libraries, of all instruction sets, where a wheel has them (`SHIPPED`), compiled first if they are not
    there.

    Raises:
        as `library`.
    """
    to.mkdir(parents=True, exist_ok=True)
    due = [unit for unit in units() if _found(unit, None) is None]
    if failed := _make(due, None, text_stream.say):
        raise StageError(next(iter(failed.values())))
    for unit in units():
        shutil.copyfile(library(unit), to / _shipped_name(unit))


def is_there(unit: str, isa: int | None = None) -> bool:
    """Whether a library is made already, and can be loaded.

    Raises:
        Unsupported: there is no compiler, and none.
    """
    return (found := _found(unit, isa)) is not None and _unloadable(found) is None


def why_none(unit: str, isa: int | None = None) -> str | None:
    """Why a library is not there and cannot be made either, quickly; None where it is, or can.

    Raises:
        Unsupported: there is no compiler, and none.
    """
    return looked_for(unit, isa)[1]


def looked_for(unit: str, isa: int | None = None) -> tuple[bool, str | None]:
    """Whether a library is made already, and `why_none`.

    Raises:
        Unsupported: there is no compiler, and none.
    """
    if (found := _found(unit, isa)) is not None:
        return True, _unloadable(found)
    return False, _hindrance() or _failed(_place(unit, isa))


def make(wanted: Iterable[str], isa: int | None, say: Callable[[str], None], announced: bool = True) -> None:
    """Make what is not there yet, all units at once; `why_none` says of each afterwards why it could not be.

    Args:
        isa: as for `library`.
        say: hears that it waits for others and, where it is `announced`, that it compiles.

    Raises:
        Unsupported: there is no compiler, and one of them is not there.
    """
    _refused.pop(folder(), None)
    if _hindrance() is not None:
        return
    due = [u for u in wanted if not is_there(u, isa) and _is_to_be_tried(_place(u, isa))]
    try:
        if due:
            _make(due, isa, say, announced)
    except StorageError as why:
        _refused[folder()] = str(why)


def _found(unit: str, isa: int | None) -> Path | None:
    """The library of what the sources are now, where it is made already; without a compiler, whoever made it.

    Raises:
        Unsupported: there is no compiler, and none.
    """
    try:
        place = _place(unit, isa)
    except Unsupported:
        made = (_made_of(unit, of, _libc()) for of in (isa, None))
        found = [*(p for each in made for p in sorted(folder().glob(f"{unit}-{each}-*.so"))), *_shipped(unit)]
        if not found:
            raise
        return found[0]
    return place if os.path.exists(place) else next(iter(_shipped(unit)), None)  # pathlib raises


def _shipped(unit: str) -> list[Path]:
    """The library that a wheel brought, if it did and it loads: it may be of a machine with another C library."""
    if not SHIPPED.is_dir():
        return []
    file = SHIPPED / _shipped_name(unit)
    return [file] if file.exists() and _unloadable(file) is None else []


def _shipped_name(unit: str) -> str:
    return f"{unit}-{_made_of(unit, None, None)}.so"


def _place(unit: str, isa: int | None) -> Path:
    """Where this machine's compiler puts the library.

    Raises:
        Unsupported: there is none.
    """
    by = identity(compiler.stamp(compiler.command()))[:8]
    return folder() / f"{unit}-{_made_of(unit, isa, _libc())}-{by}.so"


def _made_of(unit: str, isa: int | None, libc: str | None) -> str:
    """What the library is made of and for, the compiler aside."""
    ours = _sources(unit)
    files = {name: source.digest for name, source in ours.items()}
    theirs = [(h.name, _source(str(h)).digest) for i in _include(ours) for h in i.rglob("*.h")]
    return identity([sorted(files.items()), sorted(theirs), _flags(isa), platform.machine(), libc])[:16]


@dataclass(frozen=True, slots=True)
class _Source:
    """What counts of a file of C++.

    Attributes:
        digest: of its content.
        names: of the headers of ours that it includes.
        ffi: it includes those of XLA's FFI.
    """

    digest: str
    names: tuple[str, ...]
    ffi: bool


def _source(path: str) -> _Source:
    """Read once: a plan asks eleven times for most of them."""
    found = os.stat(path)
    return _read(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@lru_cache(1024)
def _read(path: str, *stamp: int) -> _Source:
    content = Path(path).read_bytes()
    text = content.decode()
    return _Source(digest(content), tuple(re.findall(r'"(\w+\.h)"', text)), '"xla/ffi/' in text)


def _sources(unit: str) -> dict[str, _Source]:
    """`src/<unit>.cc` and the headers of ours that it names, and those that these name."""
    found, due = dict[str, _Source](), [f"{unit}.cc"]
    while due:
        if (name := due.pop()) not in found:
            with suppress(FileNotFoundError):
                found[name] = _source(os.path.join(SOURCES, name))
                due += found[name].names
    return found


def _size(unit: str) -> int:
    return sum((SOURCES / name).stat().st_size for name in _sources(unit))


def _include(sources: dict[str, _Source]) -> list[Path]:
    """Folders of headers that are not ours: XLA's, beside jaxlib, for the handlers of its FFI."""
    if not any(source.ffi for source in sources.values()):
        return []
    jaxlib = find_spec("jaxlib")  # imports nothing
    return [Path(p) / "include" for p in (jaxlib and jaxlib.submodule_search_locations) or ()]


def _flags(isa: int | None) -> tuple[str, ...]:
    if asked := os.environ.get(SANITIZE):  # what tests run under all of them is compiled once
        return (*FLAGS, f"-fsanitize={asked}", *SANITIZED)
    return FLAGS if isa is None else (*FLAGS, f"-DWM_ONLY={isa}")


def _libc() -> str | None:
    with suppress(ValueError, OSError):  # no glibc
        return os.confstr("CS_GNU_LIBC_VERSION")
    return None


def _command(unit: str, isa: int | None, to: Path) -> list[str]:
    headers = [option for folder in _include(_sources(unit)) for option in ("-isystem", str(folder))]
    return [*compiler.command(), *_flags(isa), *headers, "-o", str(to), str(SOURCES / f"{unit}.cc")]


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


def _make(due: Iterable[str], isa: int | None, say: Callable[[str], None], announced: bool = True) -> dict[str, str]:
    """Compile units, all at once, each in a file of its own first: a library that is there is whole.

    Args:
        say: hears what takes its time; that it compiles, where that is `announced`.

    Returns:
        Those that failed: why, and what the compiler said.

    Raises:
        Unsupported: there is no compiler.
        StorageError: there is no place.
    """
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _alone(say), tempfile.TemporaryDirectory(dir=folder(), prefix=".compiling-") as scratch:
            places = {u: _place(u, isa) for u in due}
            due = [u for u, p in places.items() if not p.exists() or _unloadable(p) is not None]  # of another process
            due.sort(key=_size, reverse=True)  # the longest first, so that all cores end together
            if due and announced:
                say(f"compiling the native kernels, once: {', '.join(due)}")
            done = compiler.run({u: _command(u, isa, Path(scratch) / f"{u}.so") for u in due})
            failed = {
                unit: f"{why}\n{_shown(how.said)}"
                for unit, how in done.items()
                if (why := _keep(Path(scratch) / f"{unit}.so", places[unit], how)) is not None
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
