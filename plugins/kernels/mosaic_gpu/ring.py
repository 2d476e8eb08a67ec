"""Places in shared memory that one warpgroup fills ahead of those that read: the steps of a product, taken in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


@dataclass(frozen=True)
class Ring:
    """Step k is at place k modulo their number.

    Attributes:
        places: how many.
        there, done: barriers of each, that its step is there, and that all have read it.
    """

    places: int
    there: Any
    done: Any

    def read(self, steps: Any, step: Callable[[Any, Any, Any], Any], start: Any) -> Any:
        """What `step(k, place, total)` makes of all `steps` from `start` on: what a warpgroup does that reads."""

        def more(k: Any, total: Any) -> Any:
            place = lax.rem(k, np.int32(self.places))
            plgpu.barrier_wait(self.there.at[place])
            total = step(k, place, total)
            plgpu.barrier_arrive(self.done.at[place])
            return total

        return lax.fori_loop(0, steps, more, start)

    def fill(self, steps: Any, copy: Callable[[Any, Any, Any], None]) -> None:
        """`copy(k, place, there)` for all `steps`, each as soon as its place is free: what the warpgroup does that
        copies. It arrives at `there`."""

        def step(k: Any, carry: None) -> None:
            place = lax.rem(k, np.int32(self.places))

            @pl.when(k >= self.places)
            def _() -> None:
                plgpu.barrier_wait(self.done.at[place])

            copy(k, place, self.there.at[place])

        def end(k: Any, carry: None) -> None:
            plgpu.barrier_wait(self.done.at[lax.rem(k, np.int32(self.places))])

        lax.fori_loop(0, steps, step, None)
        lax.fori_loop(jnp.maximum(steps - self.places, 0), steps, end, None)  # all that was said was heard
