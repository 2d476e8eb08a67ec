"""What is typed in a condition, compared with what runs have: numbers, sizes, times, dates and words."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal

from pipeline.errors import ConfigError
from pipeline.units import parse_amount

Kind = Literal["number", "date", "word"]
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
BOOLEANS = ("true", "false")  # in whatever letters, as YAML has them
INFINITE = ("inf", "infinity")  # which metrics may be
DATES = {"%Y-%m": None, "%Y-%m-%d": 86400.0, "%Y-%m-%dT%H:%M": 60.0, "%Y-%m-%dT%H:%M:%S": 1.0}


def test(word: str, sign: str, typed: str, kind: Kind, unit: str) -> Test:
    """Whether a value is as `typed` says; none is `!=` to everything, and nothing else.

    Args:
        word: the condition, for errors.
        unit: of values that are numbers.

    Raises:
        ConfigError: `typed` is nothing of this kind, or words are to be less than others.
    """
    if kind == "word":
        if sign not in ("=", "!="):
            raise ConfigError(f"{word}: {typed or 'nothing'!r} is no number, and words are = or != only")
        lower = typed.lower() if typed.lower() in BOOLEANS else typed

        def alike(value: Any) -> bool:
            return value is not None and fnmatchcase(_said(value), lower if isinstance(value, bool) else typed)

        return lambda value: alike(value) == (sign == "=")
    low, high = _interval(word, typed, kind, unit)
    order = ORDERS[sign]
    return lambda value: order(float(value), low, high) if _is_number(value) else sign == "!="


def is_number(typed: str) -> bool:
    try:
        float(typed)
    except ValueError:
        return False
    return True


def _interval(word: str, typed: str, kind: Kind, unit: str) -> tuple[float, float]:
    if kind == "date":
        return _dates(word, typed)
    number = float(typed) if typed.lstrip("+-").lower() in INFINITE else parse_amount(typed, unit, word)
    return number, number


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
