"""Which override a resolved setting comes from, by way of what options refer to: `source: ${model.source}` of the stage
`load` makes `model.source=DIR` say what `stages.load.source` is."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.config.options import CONF
from pipeline.records.configs import LOADER

PACKAGE = re.compile(r"^# @package (\S+)", re.MULTILINE)
REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([a-z_][\w.]*)(?=[},])")
GLOBAL = "_global_"
LISTED = "stages"  # says which there are, and not what is in them
FARTHEST = 4  # references that lead to each other


def said_by(key: str, command: Sequence[str], *, many: bool = False) -> str:
    """The word of a command that says what `key` is, the one that names it most exactly; empty: none does, and it is
    as the options have it.

    Args:
        many: it is a list, of what options have by name.
    """
    found: tuple[int, str] = (0, "")
    for at in _comes_from(key, many):
        for word in command:
            name = word.lstrip("+~").partition("=")[0].replace("/", ".").partition("@")[0]
            inside = at.startswith(f"{name}.") and name != LISTED
            if (at == name or inside) and len(name) >= found[0]:
                found = len(name), word
        if found[1]:
            return found[1]
    return ""


@cache
def _comes_from(key: str, many: bool) -> tuple[str, ...]:
    """The key itself, what it refers to, and so on, the nearest first."""
    found = [key, *([key.removeprefix("stages.")] if key.startswith("stages.") else [])]
    last = found
    for _ in range(FARTHEST):
        last = [new for one in last for new in _next(one, many=many and one == key) if new not in found]
        found += dict.fromkeys(last)
    return tuple(found)


def _next(key: str, *, many: bool) -> Iterator[str]:
    for target, source in _references():
        if key == target or (many and target.startswith(f"{key}.")):
            yield source
        elif key.startswith(f"{target}."):
            yield source + key.removeprefix(target)


@cache
def _references() -> tuple[tuple[str, str], ...]:
    """Settings of our options, and what each refers to."""
    found: dict[tuple[str, str], None] = {}
    for file in sorted(CONF.rglob("*.yaml")):
        text = file.read_text(encoding="utf-8")
        if "${" in text:
            package = PACKAGE.search(text)
            at = package[1] if package else _group(file)
            found |= dict.fromkeys(_within(yaml.load(text, LOADER), "" if at == GLOBAL else at))  # noqa: S506  a safe one
    return tuple(found)


def _group(file: Path) -> str:
    return ".".join(file.parent.relative_to(CONF).parts)


def _within(value: Any, at: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _within(inner, f"{at}.{key}" if at else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _within(inner, at)
    elif isinstance(value, str):
        yield from ((at, source) for source in REFERENCE.findall(value))
