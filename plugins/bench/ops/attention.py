"""attention: one token with a full cache, and a prompt."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
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
        more_heads: the same of other models, which have all cases too.
        backward: prompts have the gradients of queries, keys and values as well.
    """

    heads: tuple[int, ...]
    slots: tuple[int, ...]
    prompts: tuple[int, ...]
    window: int
    more_heads: tuple[tuple[int, ...], ...] = ()
    backward: bool = False

    def __post_init__(self) -> None:
        for key, heads in (("bench.heads", self.heads), *(("more_heads", some) for some in self.more_heads)):
            data.sizes(key, heads, 3)
            if heads[0] % heads[1]:
                raise ConfigError(f"{key}={list(heads)}: {heads[1]} heads of keys divide those of queries")
        data.sizes("bench.slots", self.slots)
        data.sizes("bench.prompts", self.prompts)
        data.sizes("bench.window", (self.window,))

    @property
    def nbytes(self) -> int:
        slots = max(*self.slots, *self.prompts)
        return max(
            8 * slots * sum(heads[:2]) * heads[2] + 8 * heads[0] * max(self.prompts) ** 2
            for heads in (self.heads, *self.more_heads)
        )

    def cases(self) -> Iterator[Case]:
        for heads in (self.heads, *self.more_heads):
            for queries, slots in (*((1, n) for n in self.slots), *((n, n) for n in self.prompts)):
                sinks = data.values((heads[0],), seed=3)
                for more in ({}, {"window": self.window}, {"window": self.window, "sinks": sinks}):
                    yield _case(heads, queries, slots, more)
                    if self.backward and queries == slots:
                        yield _case(heads, queries, slots, more, backward=True)


def _case(heads: tuple[int, ...], queries: int, slots: int, more: dict[str, Any], *, backward: bool = False) -> Case:
    many, of_keys, dims = heads
    shapes = (1, queries, many, dims), (1, slots, of_keys, dims), (1, slots, of_keys, dims)
    q, k, v = (data.values(s, data.PLAIN["bf16"], seed) for seed, s in enumerate(shapes))
    slot = np.arange(slots, dtype=np.int32)[None]
    at = slot[:, slots - queries :]
    options = {"scale": dims**-0.5, **more}
    group = many // of_keys
    of_part = {**options, **({"sinks": more["sinks"][:group]} if "sinks" in more else {})}
    seen = np.minimum(np.arange(slots - queries, slots) + 1, more.get("window", slots)).sum()
    read = min(slots, queries + more.get("window", slots))
    nbytes, flops = 2.0 * (2 * read * of_keys * dims + 2 * queries * many * dims), 4.0 * seen * many * dims
    said = "".join(f", {name} {value}" if name == "window" else f", {name}" for name, value in more.items())
    name = f"bf16 {many}/{of_keys} × {dims}, {queries} of {slots}{said}"
    last = q[:, -1:, :group], k[:, :, :1], v[:, :, :1], at[:, -1:], slot
    if not backward:
        part = Part(last, of_part, lambda y: y[:, -1:, :group])
        return Case("attention", name, (q, k, v, at, slot), options, flops, nbytes, (part,))
    dy = data.values(q.shape, data.PLAIN["bf16"], 4)
    given = *last, dy[:, -1:, :group]
    parts = tuple(
        Part(given, of_part, partial(_last_gradient, i, group), definition=partial(_gradient_of_last, i))
        for i in range(3)
    )
    # Forward two products; backward five, of which one is the forward's again.
    flops, nbytes = 3.5 * flops, 2.0 * nbytes + dy.nbytes
    args = (q, k, v, at, slot, dy)
    return Case("attention", f"{name}, and backward", args, options, flops, nbytes, parts, gradients=3)


def _last_gradient(i: int, group: int, y: Any) -> Any:
    """Of q, k or v at the last position, where nobody but the last query looks at key and value."""
    return y[i][0, -1, : group if i == 0 else 1]


def _gradient_of_last(
    i: int, q: Any, k: Any, v: Any, at: Any, slot: Any, dy: Any, *, scale: float, window: int | None = None,
    sinks: Any = None,
) -> Any:  # fmt: skip
    """What `_last_gradient` takes out of them, in float64."""
    dtype, (q, k, v, dy) = q.dtype, (np.float64(a[0]) for a in (q, k, v, dy))
    here = (slot[0] <= at[0, 0]) & (slot[0] > at[0, 0] - (window or len(k)))
    logits = np.where(here, scale * q[0] @ k[:, 0].T, -np.inf)  # [group, S]
    most = logits.max(axis=-1, keepdims=True)
    most = most if sinks is None else np.maximum(most, sinks[:, None])
    weights = np.exp(logits - most)
    weights /= weights.sum(axis=-1, keepdims=True) + (0.0 if sinks is None else np.exp(sinks[:, None] - most))
    of_weights = dy[0] @ v[:, 0].T
    of_logits = weights * (of_weights - (weights * of_weights).sum(axis=-1, keepdims=True)) * scale
    found = of_logits @ k[:, 0], of_logits[:, -1:].T @ q[0], weights[:, -1:].T @ dy[0]
    return found[i].astype(dtype)
