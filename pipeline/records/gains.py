"""What steps of quantizing gained, as a manifest tells it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.tensors.stats import Gain


def gain_of(row: Mapping[str, Any]) -> Gain:
    """Of a tensor, a row of a manifest, in which what is not finite is text."""
    lost = {str(step): float(value) for step, value in row["lost"].items()}
    return Gain(str(row["by"]), float(row["signal"]), lost)


def ends(gain: Gain) -> tuple[float, float]:
    """What is lost of outputs, as a share, after the first step and after the last."""
    shares = [*gain.shares.values()]
    return shares[0], shares[-1]


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], Gain]]:
    """Tensors, those first of whose outputs most is lost in the end."""
    found = [(row, gain_of(row)) for row in rows]
    return sorted(found, key=lambda of: -ends(of[1])[1])


def steps_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All steps, in order."""
    longest = sorted(rows, key=lambda row: -len(row["lost"]))
    return list(dict.fromkeys(str(step) for row in longest for step in row["lost"]))


def mean_shares(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Step → what is lost of outputs, as a share, the mean of all tensors; one that has not taken a step is as it was
    before that."""
    found = dict.fromkeys(steps_of(rows), 0.0)
    for row in rows:
        shares, last = gain_of(row).shares, 0.0
        for step in found:
            last = shares.get(step, last)
            found[step] += last / len(rows)
    return found
