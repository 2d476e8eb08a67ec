"""Block-wise reconstruction: scales and roundings of one block's weights are trained until it gives what it gave.

A block is given what the quantized blocks before it give, and is to give what it gives unquantized, of unquantized
inputs, so that it makes good what is lost before. Of every weight w = s·u the scale of its block and an offset of u
before it is rounded are learned (AdaRound, Nagel et al. 2020; BRECQ, Li et al. 2021; SignRound, Cheng et al. 2023);
gradients go straight through the rounding. It begins with the codes and scales that a method made.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.bounds import outside
from pipeline.errors import ConfigError
from pipeline.stage import Checkpoint
from pipeline.tensors.scheme import Scheme
from plugins.train.options import MOST

SCALES = ("f32", "bf16", "f16", "e4m3")  # that are free enough to be learned; powers of two stay as they are
MOST_RATE = 1000  # of learning: a step of it leaves nothing of what was there


@dataclass(frozen=True)
class Reconstruction:
    """See `pipeline.calibration.Reconstructor`.

    Attributes:
        updates: of each block.
        batch: rows of the text at once.
        scale_rate: of learning, of factors on scales, at its highest; 0: scales stay as they are.
        round_rate: of learning, of offsets in steps between two codes; 0: they stay 0, and codes follow scales.
        held_out: share of the rows that no gradient sees, by which the best state is chosen, the first among them.
        look: updates after which that is judged.
    """

    updates: int = 200
    batch: int = 4
    scale_rate: float = 2e-3
    round_rate: float = 1e-2
    held_out: float = 0.125
    look: int = 25

    def __post_init__(self) -> None:
        counts, rates = ("updates", "batch", "look"), ("scale_rate", "round_rate")
        for name, least, most in (*((n, 1, MOST) for n in counts), *((n, 0, MOST_RATE) for n in rates)):
            if why := outside(getattr(self, name), least, most):
                raise ConfigError(f"calibrate.reconstruct.{name}={getattr(self, name)}: {why}")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"calibrate.reconstruct.held_out={self.held_out}: a share is needed, between 0 and 1")
        if not (self.scale_rate or self.round_rate):
            raise ConfigError("calibrate.reconstruct: scale_rate=0 and round_rate=0 leave nothing to be learned")

    @property
    def rows(self) -> int:
        """See `pipeline.calibration.Reconstructor`."""
        return self.updates * self.batch

    def problem(self, scheme: Scheme) -> str | None:
        """See `pipeline.calibration.Reconstructor`."""
        if scheme.is_struct:
            return f"{scheme.element} has scales that are coded together, and none can be learned alone"
        if scheme.block_rows != 1 or scheme.block_elems == 0:
            return "is for blocks of columns in one row"
        if scheme.zero == "min_f16" or scheme.second == "dynamic8":
            return "is for scales that are numbers of their own, with integer zero points or none"
        if scheme.scale not in SCALES and not self.round_rate:
            return f"learns no scale in {scheme.scale}, and round_rate=0 leaves nothing else"
        return None

    def learn(
        self, engine: Any, checkpoint: Checkpoint, coded: Checkpoint, rows: Sequence[Sequence[int]], batch: int,
        folder: Path, seed: int,
    ) -> None:  # fmt: skip
        """See `pipeline.calibration.Reconstructor`."""
        from plugins.train.blockwise import reconstruct

        reconstruct(self, engine, checkpoint, coded, rows, batch, folder, seed)
