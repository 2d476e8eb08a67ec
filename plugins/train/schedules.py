"""How the rate of learning goes over a run, as a share of the optimizer's own; a node, which knows no framework."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

from pipeline.errors import PlanError, Problem

Shape = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """Up to the optimizer's rate, then `shape`, then down to `floor`.

    Attributes:
        shape: after warming up: `constant`; `linear` or `cosine` down to `floor`, reached after the last step.
        warmup, cooldown: steps; below 1 they are a share of all steps. The rate rises linearly while warming up, and
            has its full height at the last step of it. While cooling down, which only `constant` does, it falls
            linearly to `floor`.
        floor: what is left of the rate in the end, as a share.
    """

    shape: Shape = "cosine"
    warmup: float = 0.0
    cooldown: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise PlanError(problems)

    def _problems(self) -> Iterator[Problem]:
        for name in ("warmup", "cooldown"):
            value = getattr(self, name)
            if not isfinite(value) or value < 0 or (value >= 1 and value != int(value)):
                yield Problem(name, f"{value}: whole steps are needed, or a share of all of them, from 0 to below 1")
        if not 0 <= self.floor <= 1:
            yield Problem("floor", f"{self.floor}: a share of the rate is needed, from 0 to 1")
        if self.cooldown and self.shape != "constant":
            yield Problem("cooldown", f"{self.cooldown} with shape={self.shape}, which falls by itself; 0 is needed")

    def problems(self, steps: int) -> Iterator[Problem]:
        """What is wrong with it for a run of so many steps."""
        up, down = (_steps(share, steps) for share in (self.warmup, self.cooldown))
        if up + down > steps:
            yield Problem("warmup", f"{up} steps, and {down} of cooldown: more than the {steps} that there are")

    def share(self, step: Any, steps: int) -> Any:
        """float32, of the rate, in the update after `step` (traced, from 0) others, of `steps` in all."""
        import jax.numpy as jnp

        up, down = (_steps(share, steps) for share in (self.warmup, self.cooldown))
        at = jnp.asarray(step).astype(jnp.float32)
        rise = jnp.minimum(1.0, (at + 1) / up) if up else jnp.float32(1)
        fall: Any
        if self.shape == "constant":
            fall = jnp.minimum(1.0, (steps - at) / down) if down else jnp.float32(1)
        else:
            done = (at - up) / max(1, steps - up)
            fall = 1 - done if self.shape == "linear" else 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(done, 0.0, 1.0)))
        return rise * (self.floor + (1 - self.floor) * jnp.clip(fall, 0.0, 1.0))


def _steps(share: float, steps: int) -> int:
    return round(share * steps) if share < 1 else int(share)
