"""Settings of runs, from their config.yaml: of thousands of runs most parts are alike, and each is parsed once.

A mapping in block style is one section after another, each with a key at the beginning of its line, and what YAML makes
of a section it makes of it alone. Where that may not be so (an anchor that another section has, text in quotes over
several lines, several documents), the whole is parsed as one.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import SourceError
from pipeline.files import read_whole

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast
SECTION = re.compile(r"^(?=[A-Za-z_]\w*:(?:\s|$))", re.MULTILINE | re.ASCII)
NESTED = re.compile(r"([A-Za-z_]\w*):[ \r]*\n((?:  [^\n]*(?:\n|\Z)|\n)+)", re.ASCII)
DEDENT = re.compile(r"^  ", re.MULTILINE)
WHOLE = re.compile(r"^(?:---|\.\.\.|%|\ufeff)", re.MULTILINE)  # documents, directives
MOST_KEPT, LONGEST_KEPT = 4096, 2000  # sections that are remembered, and their characters

UNREADABLE = (SourceError, yaml.YAMLError, ValueError, RecursionError)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a config.yaml by dotted key; lists are values. Nothing where it cannot be read."""
    try:
        content = read_whole(path) if path.is_file() else b""
        try:
            text = content.decode()
            if WHOLE.search(text):
                raise ValueError("it is no single mapping")
            return _settings(text)
        except UNREADABLE:
            return _loaded(content)
    except UNREADABLE:
        return {}


def _settings(text: str) -> dict[str, Any]:
    """
    Raises:
        ValueError: it has to be parsed as one.
        yaml.YAMLError: a section is nothing by itself.
    """
    before, *sections = SECTION.split(text)
    if any(line and not line.startswith("#") for line in before.splitlines()):
        raise ValueError("it begins with something else")
    if len({section.partition(":")[0] for section in sections}) < len(sections):
        raise ValueError("a key stands there twice")
    found: dict[str, Any] = {}
    for section in sections:
        found |= (_kept if len(section) <= LONGEST_KEPT else _section)(section)
    return found


def _section(text: str) -> dict[str, Any]:
    """As `_settings`."""
    if (nested := NESTED.fullmatch(text)) and SECTION.match(inner := DEDENT.sub("", nested[2])):
        [key] = _loaded(f"{nested[1]}: 0")  # `on` is a boolean to YAML
        return {f"{key}.{rest}": value for rest, value in _settings(inner).items()}
    return _loaded(text)


_kept = lru_cache(MOST_KEPT)(_section)


def _loaded(text: str | bytes) -> dict[str, Any]:
    """
    Raises:
        yaml.YAMLError, ValueError: it is no YAML.
    """
    return _flat(yaml.load(text, LOADER))  # noqa: S506  # both are safe loaders


def _flat(tree: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {at: _plain(tree)} if at else {}
    return {k: v for key, item in tree.items() for k, v in _flat(item, f"{at}.{key}" if at else str(key)).items()}


def _plain(value: Any) -> Any:
    """As JSON has it: a date that YAML reads is text."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
