"""Which native kernels run: those of the best instruction set of the machine (src/core.cc), or of one that is forced.

Plans ask whether there are any (`missing`) and compile nothing; a run compiles first (`prepare`), so that what will not
compile is known before it is planned.
"""

import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Final

from pipeline.errors import ConfigError, Unsupported, did_you_mean
from plugins.kernels.native import build

ISAS: Final = ("portable", "avx2", "avx512")  # as in src/targets.h
ISA: Final = "WEIGHTMILL_ISA"
"""Environment variable: an instruction set to take instead of the best that the machine has, for tests and reports."""
SELDOM: Final = ("gradient", "limits", "rounded", "superblocks")
"""Units that few runs need: to train, to benchmark, to round activations, to make k-quants. They are compiled when they
are first called, or asked for (in_bytes.py): all of them together take a third of the time that compiling takes."""
_CORE: Final = "core"


def load(unit: str, isa: int | None = None) -> Any:
    """The compiled `src/<unit>.cc`, made first if it is not there, and loaded.

    Args:
        isa: index in `ISAS` of what calls of it will name.

    Raises:
        as `build.library`.
    """
    return ctypes.CDLL(str(build.library(unit, isa)))


@cache
def core() -> Any:
    """src/core.cc, loaded.

    Raises:
        as `build.library`.
    """
    found = load(_CORE)
    found.wm_isa.restype = ctypes.c_int
    return found


def isa() -> int:
    """Index in `ISAS` of the instruction set that runs.

    Raises:
        ConfigError: WEIGHTMILL_ISA is none, or one that this machine lacks.
    """
    best: int = core().wm_isa()
    given = forced()
    if given is None:
        return best
    if given not in ISAS[: best + 1]:
        raise ConfigError(f"{ISA}={given}: is none that this machine has{did_you_mean(given, ISAS[: best + 1])}")
    return ISAS.index(given)


def forced() -> str | None:
    """The instruction set that WEIGHTMILL_ISA says, without whatever extensions of it the machine has; else None."""
    return os.environ.get(ISA) or None


@cache
def missing() -> str | None:
    """Why there are no native kernels here; None when there are, or can be made. Nothing is compiled or started.

    Raises:
        ConfigError: as `isa`, where that is known already.
    """
    try:
        there, why = build.looked_for(_CORE)
        if why is not None or not there:
            return why
        others = [unit for unit in build.units() if unit != _CORE]
        return next((why for unit in others if (why := build.why_none(unit, _isa_of(unit))) is not None), None)
    except Unsupported as why_not:
        return why_not.reason


def prepare(say: Callable[[str], None], seldom: Collection[str] = ()) -> None:
    """Make what is not there yet; what cannot be made is `missing` from then on.

    Args:
        say: hears that it is compiled.
        seldom: those of `SELDOM` that are wanted too.

    Raises:
        ConfigError: as `isa`.
    """
    missing.cache_clear()
    try:
        build.make([_CORE], None, say, announced=False)  # in a tenth of a second; the others are for what it says
        if build.is_there(_CORE):
            wanted = [u for u in build.units() if u != _CORE and (u not in SELDOM or u in seldom)]
            build.make(wanted, isa(), say)
    except Unsupported:  # `missing` says why
        return
    finally:
        missing.cache_clear()


def _isa_of(unit: str) -> int | None:
    return None if unit == _CORE else isa()
