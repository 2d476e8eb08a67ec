"""config.json of models that take rows of numbers and give numbers: what they have in common. No framework."""

from collections.abc import Mapping
from math import prod
from typing import Any

from plugins.models.common.settings import ModelSettings

MOST = 1 << 24  # numbers of a row; more are taken for a mistake


class RowSettings(ModelSettings):
    """A reader of such a config.json."""

    def __init__(self, config: Mapping[str, Any], tensors: int | None = None):
        super().__init__(config, tensors)
        self.inputs = self._shape()
        self.outputs = self.count("outputs", most=MOST, because="no model of this kind gives so many")

    def _shape(self) -> tuple[int, ...]:
        """Of what a row has: a number of numbers, or an image's height, width and channels."""
        given = self.config.get("inputs")
        sizes = given if isinstance(given, list) else [given]
        if not sizes or not all(type(n) is int and n > 0 for n in sizes) or prod(sizes) > MOST:
            self.note("inputs", f"{given!r:.80}: how many numbers a row has is expected, or the shape of an image")
            return (1,)
        return tuple(sizes)

    def sizes(self, key: str) -> tuple[int, ...]:
        """A list of positive integers, one for each layer."""
        found = self.items(key, int)
        good = 0 < len(found) <= self.most and all(0 < n <= MOST for n in found)
        self.require(
            key, good or not self.sound(key), f"{list(found)!r:.80}: a positive number for each layer is expected"
        )
        return found if good else (1,)
