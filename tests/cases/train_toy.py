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
from plugins.train.trainer import Looking, Saving
from tests.cases import trained
from tests.cases.toy_rows import Rows

STEPS = 24


def main(folder: Path, weights: Path) -> None:
    step = trained.step_of("llama")
    [device, *_] = jax.devices("cpu")
    plan = Plan(STEPS, 4, 2, 0, Saving(every=2, seconds=None), Looking(), device)
    begin = lambda: step.init(trained.parameters("llama"))  # noqa: E731
    with text_stream.to(print, lambda line: print(line, flush=True)):
        found = Loop(plan, Programs(step), Splits(Rows())).run(begin, jax.eval_shape(begin), folder)
    np.savez(weights, **found.parameters)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
