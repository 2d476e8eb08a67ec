"""What a benchmark takes from the line that was typed: the model's own overrides, and a folder for its figures."""

import os
from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import ConfigError

MODEL = ("model", "hub", "seed")  # roots of the keys that say which weights
CONVERSION = (*MODEL, "quant", "export", "kernels", "dask", "allow_requantize")  # … and what becomes of them
QUALITY = (*MODEL, "calibrate", "evaluate", "kernels", "dask", "allow_requantize")  # … and what is made of texts
RECORD = "manifest.json"  # what a run that is complete has


def of_model(overrides: Sequence[str]) -> list[str]:
    """Of what was typed what says which weights, but for where they lie.

    Raises:
        ConfigError: one way to quantize them, where the benchmark has a list.
    """
    _several("quants", overrides)
    return _under(MODEL, overrides)


def of_conversion(overrides: Sequence[str]) -> list[str]:
    """Of what was typed what says how which weights are converted, but for where they lie and will."""
    return _under(CONVERSION, overrides)


def of_quality(overrides: Sequence[str]) -> list[str]:
    """Of what was typed what says which weights, and by which texts they are judged; cells say how they are rounded.

    Raises:
        ConfigError: as `of_model`.
    """
    _several("bench.quants", overrides)
    return [o for o in _under(QUALITY, overrides) if o.lstrip("+~").partition("=")[0] != "calibrate"]


def _several(listed: str, overrides: Sequence[str]) -> None:
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key == "quant":
            raise ConfigError(f"quant: this measures a list of them; write '{listed}=[{value}]'")


def _under(roots: Sequence[str], overrides: Sequence[str]) -> list[str]:
    keys = {override: override.lstrip("+~").partition("=")[0] for override in overrides}
    places = ("model.source", "export.path")
    return [o for o, key in keys.items() if key.partition(".")[0] in roots and key not in places]


def unfinished(outputs: str, name: str) -> str:
    """The folder's name of the last benchmark that is called so, where it was interrupted; else of a new one."""
    number = 1
    while (Path(os.path.expanduser(outputs)) / _called(name, number) / RECORD).exists():
        number += 1
    return _called(name, number)


def _called(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"
