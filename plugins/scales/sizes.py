"""Sizes as they are typed."""

from collections.abc import Sequence
from typing import Any

from pipeline.errors import ConfigError

LEAST = 4  # sizes: a start, a factor and an exponent are fitted, and one more says how well


def ascending(found: Sequence[int], typed: Sequence[Any]) -> tuple[int, ...]:
    """
    Raises:
        ConfigError: too few, none above the last, or not positive.
    """
    if len(found) < LEAST:
        raise ConfigError(f"sizes={_list(typed)}: {LEAST} or more are needed to fit an exponent with its error")
    for before, after, text in zip((0, *found), found, typed, strict=False):
        if after <= before:
            raise ConfigError(f"sizes={_list(typed)}: each is above 0 and above the one before, and {text} is not")
    return tuple(found)


def _list(typed: Sequence[Any]) -> str:
    return f"[{','.join(map(str, typed))}]"
