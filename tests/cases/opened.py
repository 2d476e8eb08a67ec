"""Data sets as training opens them: in memory of this process only, with results kept in a folder."""

from pathlib import Path
from typing import Any

from pipeline.running.results import Results
from pipeline.training import Splits


def opened(data: Any, folder: Path, tokenizer: Any | None = None) -> Splits:
    return data.open(Results(folder / ".results"), tokenizer)


def rows(examples: Any) -> list[list[int]]:
    """The documents that packed examples hold, each piece as the tokens that it sees and its last target."""
    import numpy as np

    batch = examples.batch(np.arange(len(examples)))
    found = []
    for tokens, targets, segments in zip(batch["tokens"], batch["targets"], batch["segments"], strict=True):
        for segment in range(1, segments.max() + 1):
            here = segments == segment
            found.append([*tokens[here].tolist(), int(targets[here][-1])])
    return found
