"""Train a toy in a process of its own, which may be killed: `python -m tests.cases.train_toy FOLDER WEIGHTS`.

States are saved in FOLDER, and gone on from; the weights that come out go to WEIGHTS. A line is said for every update.
"""

import sys
from pathlib import Path

import jax
import numpy as np

from pipeline.running import text_stream
from pipeline.training import Splits
from plugins.train.loop import Loop, Plan, Programs
from plugins.train.options import Looking, Saving
from tests.cases import trained
from tests.cases.toy_rows import Rows

STEPS = 24


def main(folder: Path, weights: Path) -> None:
    step = trained.step_of("llama")
    plan = Plan(STEPS, 4, 2, 0, Saving(every=2, seconds=None), Looking())
    begin = lambda: step.init(trained.parameters("llama"))  # noqa: E731
    with text_stream.to(print, lambda line: print(line, flush=True)):
        found = Loop(plan, Programs(step), Splits(Rows())).run(
            begin, step.described(trained.parameters("llama"), jax.devices()[0]), folder
        )
    np.savez(weights, **found.parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
