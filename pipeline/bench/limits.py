"""What a machine can do at most, measured in the same rounds as what is held against it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.bench.turns import Turns
from pipeline.errors import StageError

NAME = "limits of the machine"


class Limits(Protocol):
    """Who measures them."""

    def of(self, threads: int) -> Mapping[str, Any]:
        """`read`, bytes a second, and `multiply_add`, float32 operations a second; of a GPU bytes that a copy reads and
        writes, bf16 operations, and `device`, which one it is and how fast it was clocked."""


@dataclass(frozen=True)
class Limit:
    """A process that measures them."""

    limits: Limits
    threads: int

    def __call__(self) -> Mapping[str, Any]:
        return dict(self.limits.of(self.threads))


def reached(turns: Turns) -> dict[str, float]:
    """The best of all rounds.

    Raises:
        StageError: they could not be measured.
    """
    if NAME in turns.failed:
        raise StageError(f"bench: {NAME}: {turns.failed[NAME]}")
    return {key: max(seen[key] for seen in turns.found(NAME)) for key in ("read", "multiply_add")}


def said(found: Mapping[str, Any]) -> str:
    """What a round found, in a line; empty: it found something else."""
    if "read" not in found:
        return ""
    device = "".join(f", {name} {value}" if name != "name" else f" of {value}" for name, value in _of_device(found))
    return f"{found['read'] / 1e9:.1f} GB/s, {found['multiply_add'] / 1e9:.0f} GFLOP/s{device}"


def _of_device(found: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Its name first."""
    return sorted(found.get("device", {}).items(), key=lambda item: item[0] != "name")
