"""Compile the native kernels: once for each version of their sources, compiler and flags, into the user's cache folder.

The library is called after a hash of all that it is made of, so that a changed source is a new library and an old one
is never taken for it. It is compiled for the architecture, not for this machine: instruction sets are chosen when it
runs (src/targets.h), and a cache folder that several machines share serves them all.
"""

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from pipeline.digest import identity
from pipeline.errors import StageError, StorageError, Unsupported
from pipeline.files import cache_folder
from pipeline.places import hindrance

SOURCES: Final = Path(__file__).parent / "src"
# No -march: the sources say which function has which instructions. -ffp-contract: a product and a sum are fused where
# it is written so, and nowhere else.
FLAGS: Final = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden")
COMPILERS: Final = ("c++", "g++", "clang++")


def library(unit: str = "core", include: tuple[str, ...] = ()) -> Path:
    """The compiled `src/<unit>.cc`, made first if it is not there.

    Args:
        unit: which.
        include: folders of headers of other people's, whose content counts as the sources do.

    Raises:
        Unsupported: there is no C++ compiler, and nothing compiled before.
        StageError: the compiler does not take the sources.
    """
    file = folder() / f"{unit}-{_version(unit, include)}.so"
    if not file.exists():
        _compile(SOURCES / f"{unit}.cc", include, file)
    return file


def folder() -> Path:
    """Where libraries are kept: weightmill/native in the user's cache folder."""
    return cache_folder() / "native"


@cache
def compiler() -> tuple[str, ...]:
    """The command that compiles C++: $CXX, or the first of `COMPILERS` on the path.

    Raises:
        Unsupported: there is none.
    """
    if given := os.environ.get("CXX"):
        return tuple(shlex.split(given))
    for name in COMPILERS:
        if found := shutil.which(name):
            return (found,)
    raise Unsupported(f"no C++ compiler: neither CXX is set nor {', '.join(COMPILERS)} on the path")


@cache
def missing() -> str | None:
    """Why there are no native kernels here; None when there are."""
    try:
        _compiler_version(compiler())
    except Unsupported as why:
        return why.reason
    if why_not := hindrance(folder() / "core.so"):
        return f"what is compiled cannot be kept in {folder()}: {why_not}"
    return None


def _version(unit: str, include: tuple[str, ...]) -> str:
    """What the library is made of and for."""
    own = [p for p in sorted(SOURCES.iterdir()) if p.suffix == ".h" or p.stem == unit]
    texts = [(p.name, p.read_text()) for p in (*own, *(h for i in include for h in sorted(Path(i).rglob("*.h"))))]
    return identity([texts, FLAGS, _compiler_version(compiler()), platform.machine(), platform.libc_ver()])[:16]


@cache
def _compiler_version(command: tuple[str, ...]) -> str:
    try:
        # The command is the user's own, or one on the path.
        said = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as why:
        raise Unsupported(f"the C++ compiler {shlex.join(command)!r} does not run: {why}") from None
    return said.stdout


def _compile(source: Path, include: tuple[str, ...], to: Path) -> None:
    """In a file of its own first, so that a library that is there is whole, however many processes make it at once."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        own = tempfile.TemporaryDirectory(dir=to.parent, prefix=".compiling-")
    except OSError as why:
        raise StorageError(f"{to.parent}: the native kernels cannot be kept there: {why.strerror}") from None
    with own as scratch:
        made = Path(scratch) / to.name
        headers = [option for folder in include for option in ("-isystem", folder)]
        command = [*compiler(), *FLAGS, *headers, "-o", str(made), str(source)]
        said = subprocess.run(command, capture_output=True, text=True)  # noqa: S603  the user's compiler, our sources
        if said.returncode:
            shown = "\n".join(said.stderr.splitlines()[:20])
            raise StageError(f"the native kernels do not compile ({shlex.join(command)}):\n{shown}")
        made.replace(to)
