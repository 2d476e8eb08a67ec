"""The plain door: the functions of src/core.cc over NumPy buffers. No call keeps Python's lock."""

import ctypes
import os
from functools import cache
from typing import Any, Final

from pipeline.errors import ConfigError, did_you_mean
from plugins.kernels.native import build

ISAS: Final = ("portable", "avx2", "avx512")  # as in src/targets.h
ISA: Final = "WEIGHTMILL_ISA"
"""Environment variable: an instruction set to take instead of the best that the machine has, for tests and reports."""

_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
_QUANTIZE = (
    _INT, _POINTER, _INT, _SIZE, _SIZE, _SIZE, _SIZE, _SIZE, _INT, _POINTER, _INT, _INT, _POINTER, _SIZE, _POINTER,
    _SIZE, _POINTER,
)  # fmt: skip


@cache
def core() -> Any:
    """The library, loaded.

    Raises:
        as `build.library`.
    """
    found = ctypes.CDLL(str(build.library()))
    found.wm_isa.restype = _INT
    found.wm_mxfp4_quantize.argtypes, found.wm_mxfp4_quantize.restype = _QUANTIZE, _SIZE
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
