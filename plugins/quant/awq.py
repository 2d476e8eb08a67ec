"""AWQ: columns that the model multiplies by much are made larger before they are rounded (Lin et al. 2023).

A column times s, and its inputs divided by s, are the same product, and what rounding loses of it is about 1/s of what
it was. Of s = rms(x)^α and s = rms(x)^α / mean|w|^(1-α), α on a grid, those are taken under which rounding loses least
of the outputs: E‖(Q(W·s)/s - W)x‖² of all matrices that share the channels, by XᵀX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.calibration import Multiplied, Smoothing
from pipeline.errors import ConfigError

FINEST = 1000  # steps of α; AWQ itself has 20
FLOOR = 1e-4  # of the largest, what channels without inputs are taken to have
MOST = 64.0  # by which a channel is scaled up or down, so that no fp16 scale of a block is out of range


@dataclass(frozen=True)
class Awq:
    """See `pipeline.calibration.Smoother`.

    Attributes:
        grid: steps of α from 0 to 1.
        rows: of a matrix, evenly spaced, by which losses are judged; None: all.
    """

    grid: int = 20
    rows: int | None = 256

    def __post_init__(self) -> None:
        if self.grid > FINEST:
            raise ConfigError(f"calibrate.smooth.grid={self.grid}: {FINEST} steps at most, each of which is tried")
        if self.grid < 1 or (self.rows is not None and self.rows < 1):
            raise ConfigError(f"calibrate.smooth: grid={self.grid}, rows={self.rows}; at least 1 of each is needed")

    @property
    def passes(self) -> int:
        """See `pipeline.calibration.Smoother`."""
        return 2 * self.grid + 1

    def factors(self, consumers: Sequence[Multiplied], channels: Any) -> Smoothing:
        """See `pipeline.calibration.Smoother`."""
        tokens = np.maximum([c.statistics.tokens for c in consumers], 1e-9)
        shares = tokens / tokens.sum()
        square = sum(w * c.statistics.mean_square for w, c in zip(shares, consumers, strict=True))
        rms = np.sqrt(channels.gathered(square).astype(np.float64))
        size = channels.gathered(np.mean([np.abs(c.matrix).mean(0, dtype=np.float64) for c in consumers], axis=0))
        tried = {(0.0, False): np.ones(len(rms), np.float32)}
        for step in range(self.grid + 1):
            alpha = step / self.grid
            for by_weights in (False, True):
                power = _floored(rms) ** alpha * (_floored(size) ** (alpha - 1) if by_weights else 1)
                centred = power / np.exp(np.mean(np.log(power)))
                tried.setdefault((alpha, by_weights), np.clip(centred, 1 / MOST, MOST).astype(np.float32))
        losses = dict.fromkeys(tried, 0.0)
        for share, consumer in zip(shares, consumers, strict=True):
            hessian = None if consumer.statistics.hessian is None else consumer.statistics.hessian()
            alone = {of: _lost(consumer, channels.spread(s), hessian) for of, s in tried.items()}
            plain = alone[0.0, False] or 1.0  # exact already: then nothing is to be had, and anything lost counts
            for of, lost in alone.items():
                losses[of] += share * lost / plain
        best = min(losses, key=lambda of: losses[of])
        said = {"alpha": best[0], "by_weights": best[1]}
        return Smoothing(tried[best], losses[best], said)


def _floored(x: Any) -> Any:
    """`x` without zeros."""
    return np.maximum(x, FLOOR * x.max()) if x.max() > 0 else np.ones_like(x)


def _lost(consumer: Multiplied, by: Any, hessian: Any) -> float:
    """Mean square of what outputs lose, of columns scaled `by`; without a Hessian as if inputs did not go together."""
    method, matrix = consumer.method, consumer.matrix
    off = method.decode(method.encode(matrix * by), "F32") / by - matrix
    return float(np.sum(off * (off * consumer.statistics.mean_square if hessian is None else off @ hessian)))
