"""Other trainings that were not finished: what of them one with another config could go on from, said before it begins.

A training belongs to a key, and another config is another key; so it begins anew, unless somebody says `train.resume=`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError, shown
from pipeline.files import read_whole
from pipeline.planning.identity import Difference, differences
from pipeline.running import text_stream
from pipeline.running.results import PARTS, UNFINISHED
from plugins.train.options import STATES


def tell_begun_with(other: Path, mine: Path) -> None:
    """Say what of `other` the training that is made in `mine` begins with, and what is another in it; nothing where it
    has a state of its own."""
    step, theirs, parts = _latest(other), _parts(other), _parts(mine)
    if _latest(mine) is not None or step is None or theirs is None or parts is None:
        return
    new = [d for d in differences(theirs, parts) if not (d.section == "config" and d.name.endswith("resume"))]
    said = [f"train: begins with the state of {other} after update {step}"]
    said += ["  taken over: parameters, what the optimizer keeps, rows of metrics, the number of updates"]
    if new:
        said += ["  not taken over, as it is another here:", *(f"    {line}" for line in shown([str(d) for d in new]))]
    if any("mesh" in d.name for d in new):
        said += ["  on another mesh sums are added up in another order: losses are the same but for rounding"]
    text_stream.write("\n".join(said) + "\n")


def tell(mine: Path) -> None:
    """Say which unfinished training is nearest to the one that is to be made in `mine`, and what is another in it;
    nothing where this one has a state of its own."""
    if _latest(mine) is not None or (parts := _parts(mine)) is None:
        return
    near = sorted(_alike(mine, parts), key=lambda one: len(one[2]))
    for folder, step, new in near[:1]:
        said = "\n".join(f"  {line}" for line in shown([str(d) for d in new]))
        text_stream.write(
            f"train: begins anew; a training that was not finished, after update {step}, differs from it in\n{said}\n"
            f"  and train.resume={folder} would begin with its state, where parameters and optimizer are the same\n"
        )


def _alike(mine: Path, parts: dict[str, Any]) -> Iterator[tuple[Path, int, list[Difference]]]:
    """Folder, updates and what is another in it, of those of the same stage."""
    for folder in mine.parent.glob(f"*{UNFINISHED}"):
        step, theirs = _latest(folder), _parts(folder)
        if folder != mine and step is not None and theirs is not None and theirs.get("stage") == parts.get("stage"):
            yield folder, step, list(differences(theirs, parts))


def _latest(folder: Path) -> int | None:
    states = folder / STATES
    return max((int(p.name) for p in states.iterdir() if p.name.isdigit()), default=None) if states.is_dir() else None


def _parts(folder: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(read_whole(folder / PARTS)))
    except (SourceError, ValueError, TypeError):
        return None
