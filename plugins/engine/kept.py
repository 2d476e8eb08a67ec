"""What a conversation keeps of its last turn: the cache, and the tokens that it holds."""

from collections.abc import Sequence
from typing import Any

from plugins.engine.runtime import Runtime
from plugins.engine.sizes import SMALLEST_CACHE, power_of_two


class Kept:
    """A cache that stays from call to call, for a prompt that goes on with what an earlier one and its text were.

    Attributes:
        ids: the tokens that it holds, from the first on.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._cache: Any = None
        self._slots = 0

    def taken(self, runtime: Runtime, prompt: Sequence[int], length: int) -> tuple[Any, int]:
        """The cache for `length` tokens, and how many of the prompt's it holds; all but the last one at most, as what
        comes next follows from a token that was put through the model."""
        pairs = enumerate(zip(self.ids, prompt, strict=False))
        begun = min(next((i for i, (a, b) in pairs if a != b), len(self.ids)), len(prompt) - 1)
        slots = power_of_two(length, SMALLEST_CACHE)
        if self._cache is None:
            self._cache, begun, self._slots = runtime.new_cache(runtime.rows(1), length, rings=False), 0, slots
        elif slots > self._slots:
            self._cache, self._slots = runtime.grown(self._cache, length), slots
        cache, self._cache, self.ids = self._cache.up_to(begun), None, []  # until it comes back: programs take it over
        return cache, begun

    def put(self, cache: Any, ids: Sequence[int]) -> None:
        """Keep `cache`, which holds `ids`, and whatever comes after them."""
        self._cache, self.ids = cache, list(ids)
