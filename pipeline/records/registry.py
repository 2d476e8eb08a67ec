"""Which runs are meant: by folder, by name, by a sweep that they are of, or by what holds of them."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.errors import SourceError, did_you_mean
from pipeline.records.query import is_condition, matching
from pipeline.records.run import Run, is_run, read


def all_runs(outputs: Path) -> list[Run]:
    """Every run below a folder of outputs, newest first."""
    found = [read(folder) for folder in sorted(outputs.glob("*")) if folder.is_dir() and is_run(folder)]
    return sorted(found, key=lambda run: -(run.started or 0))


def find(outputs: Path, words: Sequence[str]) -> list[Run]:
    """The runs that `words` name, in the order of the words; conditions (`quant=mxfp4`, `kl<0.01`) go together.

    Args:
        words: folders, names of runs or of sweeps (glob patterns too), and conditions.

    Raises:
        SourceError: nothing is called so.
        ConfigError: a condition that says nothing.
    """
    names = [word for word in words if not is_condition(word)]
    conditions = [word for word in words if is_condition(word)]
    runs = [run for word in names for run in _named(outputs, word)] if names else all_runs(outputs)
    return matching(list({run.folder: run for run in runs}.values()), conditions)


def _named(outputs: Path, word: str) -> list[Run]:
    for folder in (Path(word).expanduser().absolute(), outputs / word):
        if is_run(folder):
            return [read(folder)]
    known = all_runs(outputs)
    found = [run for run in known if Path(run.name).match(word)]
    if not found:
        raise SourceError(f"{word}: no run is called so{did_you_mean(word, [run.name for run in known])}")
    return found
