"""attention: one token with a full cache, and a prompt."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.bench.op import Case, Part
from pipeline.errors import ConfigError
from plugins.bench.ops import data


@dataclass(frozen=True)
class Attention:
    """See `pipeline.bench.op.Suite`: bfloat16, with sinks and without, in a window and without.

    Attributes:
        heads: of queries, of keys, and the values of each.
        slots: of the cache, for one token.
        prompts: tokens that are read at once.
        window: that the second half of the cases looks at.
    """

    heads: tuple[int, ...]
    slots: tuple[int, ...]
    prompts: tuple[int, ...]
    window: int

    def __post_init__(self) -> None:
        data.sizes("bench.heads", self.heads, 3)
        data.sizes("bench.slots", self.slots)
        data.sizes("bench.prompts", self.prompts)
        data.sizes("bench.window", (self.window,))
        if self.heads[0] % self.heads[1]:
            raise ConfigError(f"bench.heads={list(self.heads)}: {self.heads[1]} heads of keys divide those of queries")

    @property
    def nbytes(self) -> int:
        slots = max(*self.slots, *self.prompts)
        return 8 * slots * sum(self.heads[:2]) * self.heads[2] + 8 * self.heads[0] * max(self.prompts) ** 2

    def cases(self) -> Iterator[Case]:
        for queries, slots in (*((1, n) for n in self.slots), *((n, n) for n in self.prompts)):
            yield self._case(queries, slots, {})
            yield self._case(queries, slots, {"window": self.window})
            sinks = data.values((self.heads[0],), seed=3)
            yield self._case(queries, slots, {"window": self.window, "sinks": sinks})

    def _case(self, queries: int, slots: int, more: dict[str, Any]) -> Case:
        many, of_keys, dims = self.heads
        shapes = (1, queries, many, dims), (1, slots, of_keys, dims), (1, slots, of_keys, dims)
        q, k, v = (data.values(s, data.PLAIN["bf16"], seed) for seed, s in enumerate(shapes))
        slot = np.arange(slots, dtype=np.int32)[None]
        at = slot[:, slots - queries :]
        options = {"scale": dims**-0.5, **more}
        group = many // of_keys
        of_part = {**options, **({"sinks": more["sinks"][:group]} if "sinks" in more else {})}
        part = Part(
            (q[:, -1:, :group], k[:, :, :1], v[:, :, :1], at[:, -1:], slot), of_part, lambda y: y[:, -1:, :group]
        )
        seen = np.minimum(np.arange(slots - queries, slots) + 1, more.get("window", slots)).sum()
        read = min(slots, queries + more.get("window", slots))
        nbytes = 2.0 * (2 * read * of_keys * dims + 2 * queries * many * dims)
        said = "".join(f", {name} {value}" if name == "window" else f", {name}" for name, value in more.items())
        name = f"bf16 {many}/{of_keys} × {dims}, {queries} of {slots}{said}"
        return Case("attention", name, (q, k, v, at, slot), options, 4.0 * seen * many * dims, nbytes, (part,))
