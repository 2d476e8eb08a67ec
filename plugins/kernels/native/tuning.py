"""How native kernels divide their work: what was measured here, else what is known of such CPUs, else what suits most.

Only speed depends on it: numbers are equal, whatever is chosen, so that no result's key knows of it. `tuned.json` has
the families of CPUs that were measured: what `python -m pipeline tune` (`tune.py`) kept on a quiet one of them. It
measures this machine, and nothing else ever does. A home folder may be that of several machines, so that what is kept
says for each kind of CPU what was measured there.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

from pipeline import cpu
from pipeline.files import write_json
from pipeline.running import text_stream
from plugins.kernels.native import build

TABLE: Final = Path(__file__).parent / "tuned.json"


@dataclass(frozen=True)
class Gemv:
    """Of products of a few rows.

    Attributes:
        piece_nbytes: of codes, for a thread at a time; at most.
        worth_nbytes: of codes for each thread, or it is not woken.
    """

    piece_nbytes: int = 64 << 10
    worth_nbytes: int = 32 << 10


@dataclass(frozen=True)
class Gemm:
    """Of products of many rows.

    Attributes:
        pieces: of a call, for each thread.
        least_strips: of a piece.
    """

    pieces: int = 32
    least_strips: int = 4


@dataclass(frozen=True)
class Tuned:
    gemv: Gemv = field(default_factory=Gemv)
    gemm: Gemm = field(default_factory=Gemm)


CANDIDATES: Final[Mapping[str, tuple[int, ...]]] = {
    "gemv.piece_nbytes": tuple(n << 10 for n in (16, 32, 64, 128, 256)),
    "gemv.worth_nbytes": tuple(n << 10 for n in (8, 16, 32, 64, 128)),
    "gemm.pieces": (4, 8, 16, 32, 64),
    "gemm.least_strips": (1, 2, 4, 8, 16),
}


@cache
def best() -> Tuned:
    """What is taken on this machine. Where what was kept is damaged, that is said, and it counts for nothing."""
    try:
        return _read(kept(), _here()) or known()
    except ValueError as why:
        text_stream.say(
            f"{why}; products are divided as where nothing was measured, and `weightmill tune` writes it anew"
        )
        return known()


def known() -> Tuned:
    """What is taken where nothing was measured."""
    return _read(TABLE, cpu.family()) or Tuned()


def kept() -> Path:
    """Where what was measured on this machine is kept."""
    return build.folder() / "tuned.json"


def keep(tuned: Tuned) -> None:
    """Beside what other machines keep there, if that can be read.

    Raises:
        StorageError: it cannot be written.
    """
    try:
        others = _said(kept())
    except ValueError:
        others = {}
    write_json(kept(), {**others, _here(): asdict(tuned)})
    best.cache_clear()


def _here() -> str:
    """This machine's CPUs; names alone may leave out of which family they are, on virtual machines."""
    return f"{cpu.model()} ({cpu.family()})"


def _said(path: Path) -> dict[str, Any]:
    """By CPUs; nothing where there is no file.

    Raises:
        ValueError: it cannot be read, or is no JSON object.
    """
    try:
        found = json.loads(path.read_bytes().decode())
    except FileNotFoundError:
        return {}
    except OSError as why:
        raise ValueError(f"{path}: {why.strerror}") from None
    except ValueError:
        raise ValueError(f"{path}: no JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: no JSON object")
    return found


def _read(path: Path, name: str) -> Tuned | None:
    """What a file says of the CPUs of this name; None where it says nothing.

    Raises:
        ValueError: it says what cannot be.
    """
    if (found := _said(path).get(name)) is None:
        return None
    try:
        return Tuned(_checked(Gemv, found["gemv"]), _checked(Gemm, found["gemm"]))
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path}: what it says of {name} is no such setting: {str(found)[:100]}") from None


def _checked(kind: Any, given: Mapping[str, Any]) -> Any:
    """
    Raises:
        ValueError, KeyError: something else than positive numbers, one for each field.
    """
    numbers = {f.name: given[f.name] for f in fields(kind)}
    if not all(type(n) is int and n > 0 for n in numbers.values()):
        raise ValueError(f"{numbers}: positive numbers are expected")
    return kind(**numbers)
