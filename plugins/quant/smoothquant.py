"""SmoothQuant: what single channels of inputs have too much of goes into the weights (Xiao et al. 2022).

Channel j of the inputs is divided by s_j = max|X_j|^α / max|W_j|^(1-α), and the columns that multiply it are
multiplied by that: the larger α, the more of what is hard to round the weights take over. The largest values of inputs
are calibrated; of weights they are those of all matrices that share the channel. A factor that all channels have in
common changes nothing that is rounded, and is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pipeline.calibration import Multiplied, Smoothing
from pipeline.errors import ConfigError
from pipeline.method import Method

AUTO = tuple(round(0.05 * step, 2) for step in range(21))
FLOOR = 1e-5  # of the largest, what channels without inputs or weights are taken to have
MOST = 1024.0  # by which a channel is scaled up or down, so that no fp16 scale of a block is out of range


@dataclass(frozen=True)
class SmoothQuant:
    """See `pipeline.calibration.Smoother`.

    Attributes:
        alpha: α, from 0 to 1; of several, or of 0, 0.05, …, 1 (`auto`), for each group of channels that one is taken
            with which outputs lose least, E‖Q(W·s)Q(x/s) - Wx‖² over sampled inputs, or none where none helps.
        activations: what inputs will be rounded to, each row by itself; None: nothing.
        rows: of a matrix, evenly spaced, by which losses are judged; None: all.
    """

    alpha: float | int | tuple[float | int, ...] | Literal["auto"] = 0.5
    activations: Method | None = None
    rows: int | None = 256

    def __post_init__(self) -> None:
        if not self._alphas or any(not 0 <= alpha <= 1 for alpha in self._alphas):
            raise ConfigError(f"alpha={self.alpha}: a number from 0 to 1, some of them, or auto")
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"rows={self.rows}: at least 1 is needed, or null for all")
        if self._chooses and self.activations is None:
            text = "is chosen by what is lost where activations are rounded, too; activations=int8 says to what"
            raise ConfigError(f"alpha={self.alpha}: {text}, or say one number")

    @property
    def _alphas(self) -> tuple[float, ...]:
        if self.alpha == "auto":
            return AUTO
        return self.alpha if isinstance(self.alpha, tuple) else (float(self.alpha),)

    @property
    def _chooses(self) -> bool:
        return not isinstance(self.alpha, int | float)

    @property
    def passes(self) -> int:
        """See `pipeline.calibration.Smoother`."""
        return len(self._alphas) + 1

    def factors(self, consumers: Sequence[Multiplied], channels: Any) -> Smoothing:
        """See `pipeline.calibration.Smoother`.

        Raises:
            ConfigError: α is to be chosen, and no inputs were kept.
        """
        inputs = channels.gathered(np.max([c.statistics.absmax for c in consumers], axis=0), np.max)
        weights = channels.gathered(np.max([c.largest for c in consumers], axis=0), np.max)
        tried: dict[float | None, Any] = {None: np.ones(len(inputs), np.float32)}
        for alpha in self._alphas:
            power = _floored(inputs) ** alpha / _floored(weights) ** (1 - alpha)
            centred = power / np.exp(np.mean(np.log(power)))
            tried[alpha] = np.clip(centred, 1 / MOST, MOST).astype(np.float32)
        losses = {alpha: self._lost(consumers, channels.spread(s)) for alpha, s in tried.items()}
        plain = losses[None] or 1.0  # exact already: then nothing is to be had
        among = losses if self._chooses else self._alphas
        best = min(among, key=lambda alpha: losses[alpha])
        s = tried[best]
        said = {"alpha": "none" if best is None else best, "most": round(float(s.max() / s.min()), 3)}
        return Smoothing(s, losses[best] / plain, said)

    def _lost(self, consumers: Sequence[Multiplied], by: Any) -> float:
        """What outputs lose, the matrices' losses as shares of what they are, by their tokens."""
        tokens = np.maximum([c.statistics.tokens for c in consumers], 1e-9)
        found = 0.0
        for share, one in zip(tokens / tokens.sum(), consumers, strict=True):
            w = one.method.decode(one.method.encode(one.matrix * by), "F32")
            if self.activations is None or one.statistics.sample is None:
                if self._chooses:
                    text = "is chosen by inputs that were kept, and there are none; calibrate.samples=256"
                    raise ConfigError(f"calibrate.smooth.alpha={self.alpha}: {text}")
                square = one.statistics.mean_square
                off, was = np.sum((w / by - one.matrix) ** 2 * square), np.sum(one.matrix**2 * square)
            else:
                x = one.statistics.sample()
                y = x @ one.matrix.T
                off, was = np.sum((self._rounded(x / by) @ w.T - y) ** 2), np.sum(y**2)
            found += float(share * off / max(float(was), 1e-30))
        return found

    def _rounded(self, x: Any) -> Any:
        """Rows x [n, in], each as a matrix of its own."""
        assert self.activations is not None
        method = self.activations
        return method.decode(method.encode(np.ascontiguousarray(x, np.float32)[:, None]), "F32")[:, 0]


def _floored(x: Any) -> Any:
    """`x`, fp64, without zeros."""
    x = np.asarray(x, np.float64)
    return np.maximum(x, FLOOR * x.max()) if x.max() > 0 else np.ones_like(x)
