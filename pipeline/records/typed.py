"""What is typed in a condition, compared with what runs have: numbers, sizes, times, dates and words."""

import re
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal

from pipeline.errors import ConfigError
from pipeline.units import parse_bytes

Kind = Literal["number", "bytes", "seconds", "age", "date", "word"]
Test = Callable[[Any], bool]

ORDERS: dict[str, Callable[[float, float, float], bool]] = {
    "=": lambda x, low, high: low <= x < high or x == low,
    "!=": lambda x, low, high: not (low <= x < high or x == low),
    "<": lambda x, low, high: x < low,
    "<=": lambda x, low, high: x < high or x == low,
    ">": lambda x, low, high: x >= high and x != low,
    ">=": lambda x, low, high: x >= low,
}
"""A date that is typed has a length, from its beginning until its end; a number has none."""
LENGTHS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
DATES = {"%Y-%m": None, "%Y-%m-%d": 86400.0, "%Y-%m-%dT%H:%M": 60.0, "%Y-%m-%dT%H:%M:%S": 1.0}


def test(word: str, sign: str, typed: str, kind: Kind) -> Test:
    """Whether a value is as `typed` says; none is `!=` to everything, and nothing else.

    Args:
        word: the condition, for errors.

    Raises:
        ConfigError: `typed` is nothing of this kind, or words are to be less than others.
    """
    if kind == "word":
        if sign not in ("=", "!="):
            raise ConfigError(f"{word}: {typed or 'nothing'!r} is no number, and words are = or != only")
        return lambda value: (value is not None and fnmatchcase(_said(value), typed)) == (sign == "=")
    low, high = _interval(word, typed, kind)
    order = ORDERS[sign]
    return lambda value: order(float(value), low, high) if _is_number(value) else sign == "!="


def is_number(typed: str) -> bool:
    try:
        float(typed)
    except ValueError:
        return False
    return True


def _interval(word: str, typed: str, kind: Kind) -> tuple[float, float]:
    if kind == "date":
        return _dates(word, typed)
    if is_number(typed) and kind != "bytes":
        return float(typed), float(typed)
    if kind == "bytes":
        nbytes = (
            float(typed) if is_number(typed) else float(parse_bytes(typed, word.partition(typed)[0].rstrip("=<>! ")))
        )
        return nbytes, nbytes
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", typed) if kind in ("seconds", "age") else None
    if match is not None and match[2] in LENGTHS:
        length = float(match[1]) * LENGTHS[match[2]]
        return length, length
    units = " with a unit: 90s, 2min, 3h, 1d" if kind in ("seconds", "age") else ""
    raise ConfigError(f"{word}: {typed!r} is no number{units and f', nor one{units}'}")


def _dates(word: str, typed: str) -> tuple[float, float]:
    if typed in ("today", "yesterday"):
        day = datetime.now().replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=typed == "yesterday")
        return day.timestamp(), (day + timedelta(days=1)).timestamp()
    for form, length in DATES.items():
        try:
            begun = datetime.strptime(typed.replace(" ", "T"), form)
            ended = begun + timedelta(seconds=length) if length else (begun + timedelta(days=32)).replace(day=1)
            return begun.timestamp(), ended.timestamp()
        except (ValueError, OverflowError, OSError):
            continue
    raise ConfigError(f"{word}: {typed!r} is no date such as 2026-11-01, 2026-11-01T18:30, 2026-11, today or yesterday")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(value: Any) -> str:
    """A setting as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_said, value))}]"
    return str(value)


def age(started: float) -> float:
    """Seconds since then."""
    return time.time() - started
