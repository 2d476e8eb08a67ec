"""Which rows of which expert are multiplied together: assignments sorted by expert, cut into tiles of one expert each.

An assignment is one choice of one token, `[N, k]` flattened. One of weight 0 is none, and goes behind the last expert.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

MOST_ROWS = 128  # of a tile: more no longer pays for what a half-empty tile costs


def tile_rows(assignments: int, experts: int) -> int:
    """Rows of a tile: the power of two at an expert's share of the assignments."""
    share = max(1, assignments // max(1, experts))
    return min(MOST_ROWS, 1 << (share - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile, traced.

    Attributes:
        expert: whose rows these are.
        start: its first row, in sorted order.
        assignment: `[rows]`, which each row is. Rows past the expert's last are other experts', or the last of all.
        own: bool `[rows]`, whether a row is this expert's.
    """

    expert: Any
    start: Any
    assignment: Any
    own: Any


@dataclass(frozen=True, slots=True)
class Schedule:
    """All tiles.

    Attributes:
        rows: of a tile, static.
        order: `[N · k]`, assignments sorted by expert.
        first, count: int `[E]`, an expert's first row in sorted order, and how many it has.
        until: int `[E]`, tiles up to an expert's last.
    """

    rows: int
    order: Any
    first: Any
    count: Any
    until: Any

    @staticmethod
    def of(chosen: Any, weights: Any, experts: int, least: int = 1, most: int = MOST_ROWS) -> "Schedule":
        """For `chosen` int and `weights` float32, both `[N, k]`; tiles of at least and at most so many rows."""
        rows = min(most, max(least, tile_rows(chosen.size, experts)))
        expert_of = jnp.where(weights == 0, experts, chosen).reshape(-1)
        count = jnp.bincount(expert_of, length=experts)
        return Schedule(rows, jnp.argsort(expert_of), jnp.cumsum(count) - count, count, jnp.cumsum(-(-count // rows)))

    @property
    def tiles(self) -> Any:
        """How many there are, traced."""
        return self.until[-1]

    def tile(self, i: Any) -> Tile:
        e = jnp.searchsorted(self.until, i, side="right")
        within = i - (self.until[e] - -(-self.count[e] // self.rows))
        start = self.first[e] + within * self.rows
        row = start + jnp.arange(self.rows)
        return Tile(e, start, self.order[jnp.minimum(row, self.order.size - 1)], row < self.first[e] + self.count[e])

    def padded(self, width: int, dtype: Any) -> Any:
        """Room for a row of `width` for each assignment, in sorted order; a last tile may reach past the end."""
        return jnp.zeros((self.order.size + self.rows - 1, width), dtype)

    def unsorted(self, rows: Any) -> Any:
        """`[N · k, width]` of what `padded` was filled with, in the order of the assignments."""
        total = self.order.size
        place = (
            jnp.zeros(total, self.order.dtype)
            .at[self.order]
            .set(jnp.arange(total, dtype=self.order.dtype), unique_indices=True)
        )
        return rows[place]
