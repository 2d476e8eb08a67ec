"""Overrides of the runs that are measured: a source, and a folder that no other run has."""

import re
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ConfigError

OURS = ("flow", "model.source", "paths.run", "paths.outputs", "progress")


def check(given: Sequence[str]) -> None:
    """
    Raises:
        ConfigError: one that is no setting, or that the benchmark itself sets.
    """
    for text in given:
        if not re.match(r"~|\+{0,2}[^\s=]+=", text):
            raise ConfigError(f"overrides: {text!r}: a setting is expected, such as quant=int8")
        if (key := text.lstrip("+~").partition("=")[0]) in OURS:
            raise ConfigError(f"overrides: {text}: the benchmark sets {key} itself")


def of(source: Path, out: Path) -> list[str]:
    """What they all have."""
    from pipeline.config.overrides import quoted

    where = {"model.source": source, "paths.run": out, "paths.outputs": out.parent / "outputs"}
    return [f"{key}={quoted(str(path.absolute()))}" for key, path in where.items()]
