"""Which instruction set the native kernels run with: the best of the machine (src/core.cc), or one that is forced."""

import ctypes
import os
from functools import cache
from typing import Any, Final

from pipeline.errors import ConfigError, did_you_mean
from plugins.kernels.native import build

ISAS: Final = ("portable", "avx2", "avx512")  # as in src/targets.h
ISA: Final = "WEIGHTMILL_ISA"
"""Environment variable: an instruction set to take instead of the best that the machine has, for tests and reports."""


@cache
def core() -> Any:
    """The library, loaded.

    Raises:
        as `build.library`.
    """
    found = ctypes.CDLL(str(build.library()))
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
        has = f"this machine has {', '.join(ISAS[: best + 1])}"
        raise ConfigError(f"{ISA}={given}: {has}{did_you_mean(given, ISAS[: best + 1])}")
    return ISAS.index(given)


def forced() -> str | None:
    """The instruction set that WEIGHTMILL_ISA says, without whatever extensions of it the machine has; else None."""
    return os.environ.get(ISA) or None
