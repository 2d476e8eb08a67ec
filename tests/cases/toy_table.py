"""A table of two columns that tell a third, and a run that learns it with a few dozen parameters in a second or two."""

from pathlib import Path

import numpy as np

TRAINED = (
    "+model=mlp", "stages=[init,train]", "+stages.init.config.inputs=2", "+stages.init.config.hidden_sizes=[16]",
    "+stages.init.config.outputs=1", "data=table", "data.target=y", "train.dtype=fp32", "train.batch=8",
    "train/objective=regression", "progress=false",
)  # fmt: skip


def write(path: Path) -> Path:
    """80 rows."""
    values = np.random.default_rng(0).standard_normal((80, 2))
    path.write_text("\n".join(["a,b,y", *(f"{a:.4f},{b:.4f},{a - 2 * b:.4f}" for a, b in values)]) + "\n")
    return path
