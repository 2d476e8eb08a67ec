"""`bench --against BASELINE`: what got worse by more than the tolerance, and by more than rounds lie apart."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.files import spoken
from pipeline.records import schemas
from pipeline.records.registry import find
from pipeline.units import show_bytes

NAME = "bench.json"
SPREADS = 3.0  # of the rounds: a change that is less is noise
CODE = 9


def tolerance(given: str) -> float:
    """`5%` as a share.

    Raises:
        ConfigError: it is no share.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%\s*", str(given))
    if found is None:
        raise ConfigError(f"bench.tolerance={given}: a percentage is expected, such as 5%")
    return float(found[1]) / 100


def baseline(given: str, outputs: Path, machine: str, benchmark: str) -> dict[str, Any]:
    """What an earlier benchmark wrote.

    Args:
        given: its folder, its name below `outputs`, or a JSON file that it is in.
        machine: which this one is.
        benchmark: which one is to be held against it.

    Raises:
        ConfigError: it is of another kind of machine or of another benchmark, or several runs are meant.
        SourceError: there is no such run, or it is no benchmark.
    """
    place = Path(given).expanduser()
    if place.suffix != ".json":
        runs = find(outputs, [given])
        if len(runs) != 1:
            raise ConfigError(f"bench.against={given}: one run is expected; that are {len(runs)}")
        place = runs[0].folder / NAME
        if not place.is_file():
            raise ConfigError(
                f"bench.against={given}: {spoken(runs[0].folder)} has no {NAME}; it is no whole benchmark"
            )
    found = schemas.read("benchmark", place)
    if found["benchmark"] != benchmark:
        raise ConfigError(
            f"bench.against={given}: is a benchmark of {found['benchmark']}, and this is one of {benchmark}"
        )
    known = found["machine"]["kind"] if isinstance(found["machine"], Mapping) else found["machine"]
    if known != machine:
        raise ConfigError(
            f"bench.against={given}: was measured on {known}, and this is {machine}; figures of different kinds of "
            "machines are not compared"
        )
    return found


def regressions(now: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]], most: float) -> list[str]:
    """What got worse, of the cells that both have; of those that were measured before and are not any more, that.

    Args:
        now, before: rows of bench.json.
        most: as a share.
    """
    known = {(row["engine"], row["quant"]): row for row in now}
    found = []
    for was in before:
        row, name = known.get((was["engine"], was["quant"])), f"{was['engine']} {was['quant']}"
        if row is None or was["state"] != "measured":
            continue
        if row["state"] != "measured":
            found.append(f"{name}: was measured, and is {row['state']} now: {row['why']}")
            continue
        if row["wrong"] and not was["wrong"]:
            found.append(f"{name}: was right, and is wrong now: {row['wrong']}")
        for metric, a in was["metrics"].items():
            if (b := row["metrics"].get(metric)) is not None:
                found += [f"{name}: {said}"] if (said := _worse(metric, a, b, most)) else []
    return found


def _worse(metric: str, before: Mapping[str, Any], after: Mapping[str, Any], most: float) -> str:
    """In words; empty: it is not worse by more than is allowed."""
    a, b = before["value"], after["value"]
    if not a:
        return ""
    worse = (b - a if after["better"] == "lower" else a - b) / a
    noise = SPREADS * max(before["spread"], after["spread"])
    if worse <= max(most, noise):
        return ""
    show = show_bytes if after["unit"] == "B" else lambda v: f"{v:.4g}{' ' if after['unit'] else ''}{after['unit']}"
    allowed = f"three times the spread, {noise:.1%}" if noise > most else f"{most:.1%}"
    return f"{metric} {show(a)} → {show(b)}, {worse:.1%} worse; allowed is {allowed}"
