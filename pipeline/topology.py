"""Which tensors multiply what another tensor scales: where factors of channels may go from one to the others.

A norm's weight scales the columns of all that takes its output, and the rows of an up projection scale those of the
down projection behind it. Families say so as data (`stages.outline.FamilyHooks.feeds`). What is divided out of the one
and multiplied into the others leaves the model the function that it was.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.mesh import Parameter
from pipeline.tensors.spec import TensorSpec


@dataclass(frozen=True)
class Feeds:
    """Patterns of names, in which `*` is a part without dots.

    Attributes:
        source: the vector of a norm, or a matrix whose rows give the channels; with its bias, where it has one.
        consumers: all matrices that multiply these channels and nothing else. Their first `*` stand for what those of
            the source do.
        plus_one: a norm multiplies by 1 + weight.
    """

    source: str
    consumers: tuple[str, ...]
    plus_one: bool = False


@dataclass(frozen=True)
class Channels:
    """A tensor and all that multiply what it scales.

    Attributes:
        source, consumers: names.
        bias: of the source, or None.
        plus_one: see `Feeds`.
        count: how many channels: elements, or rows, of the source.
        columns: of every consumer; in grouped-query attention each head of the source is there several times.
        unit: channels of a head.
    """

    source: str
    consumers: tuple[str, ...]
    bias: str | None
    plus_one: bool
    count: int
    columns: int
    unit: int

    def spread(self, factors: Any) -> Any:
        """Of every column of a consumer the factor of its channel: [count] → [columns]."""
        if self.columns == self.count:
            return factors
        return np.repeat(factors.reshape(-1, self.unit), self.columns // self.count, axis=0).reshape(self.columns)

    def gathered(self, found: Any, how: Callable[..., Any] = np.mean) -> Any:
        """Of every channel the mean, or what else `how(array, axis)` makes, over columns that multiply it:
        [columns] → [count]."""
        if self.columns == self.count:
            return found
        return how(found.reshape(self.count // self.unit, -1, self.unit), 1).reshape(self.count)


def channels(
    feeds: Iterable[Feeds], specs: Mapping[str, TensorSpec], parameters: Sequence[Parameter]
) -> tuple[Channels, ...]:
    """What `feeds` come to in a checkpoint, in the order of `feeds` and of the model; sources without consumers are
    left out.

    Args:
        parameters: of the model, which say how wide a head is.
    """
    units = {name: p.units[1 if p.stack else 0] for p in parameters for name in p.names}
    found = []
    for feed in feeds:
        sources = _matching(feed.source, specs)
        depth = feed.source.count("*")
        taken: dict[tuple[str, ...], list[str]] = {}
        for pattern in feed.consumers:
            for name, parts in _matching(pattern, specs).items():
                taken.setdefault(parts[:depth], []).append(name)
        for name, parts in sources.items():
            if consumers := taken.get(parts):
                bias = name.removesuffix("weight") + "bias"
                count, columns = specs[name].shape[0], specs[consumers[0]].shape[-1]
                has = bias if bias != name and bias in specs else None
                found.append(Channels(name, tuple(consumers), has, feed.plus_one, count, columns, units.get(name, 1)))
    return tuple(found)


def _matching(pattern: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Name → what each `*` stands for."""
    match = re.compile(re.escape(pattern).replace(r"\*", r"([^.]+)")).fullmatch
    return {name: found.groups() for name in names if (found := match(name))}
