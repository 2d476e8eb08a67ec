"""Runs as the rows of a comparison: repeats together, each row with a name that tells it from the others."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.config.names import HOW, short_names
from pipeline.redact import hide
from pipeline.reporting.compare.measures import Measured
from pipeline.reporting.compare.spread import together
from pipeline.reporting.compare.trainings import without_seed


@dataclass(frozen=True)
class Row:
    """A line of a comparison.

    Attributes:
        name: what tells it from other rows.
        runs: one, or repeats: complete, and alike in everything but their seed.
    """

    name: str
    runs: tuple[Measured, ...]

    @property
    def state(self) -> str:
        """Of its runs: complete or not; repeats are."""
        return self.runs[0].run.state

    @property
    def about(self) -> str:
        """What has to be known of it beside its name: how many runs, whether complete, what is wrong."""
        one = self.runs[0].run
        said = [f"{len(self.runs)} runs of other seeds"] if len(self.runs) > 1 else []
        said += [f"{one.state}: {one.reached}" if one.reached else one.state] if one.state != "complete" else []
        return "; ".join(said)


def rows_of(given: Sequence[Measured], baseline: int = 0) -> list[Row]:
    """The rows, that of the baseline first.

    The same setting with the same seed once more is no repeat, from which anything could be learned of noise: it has a
    row of its own.

    Args:
        baseline: which run the others are held against.
    """
    keys: list[tuple[str, str, int]] = []
    seen: Counter[tuple[str, str]] = Counter()
    for i, one in enumerate(given):
        setting, seed = one.likeness
        if one.run.state != "complete":
            setting = f"{setting} {i}"
        keys.append((setting, "", seen[setting, seed]))
        seen[setting, seed] += 1
    groups = list(together(keys).values())
    groups.sort(key=lambda group: baseline not in group)
    names = _names(given, groups)
    return [Row(name, tuple(given[i] for i in group)) for name, group in zip(names, groups, strict=True)]


def _names(given: Sequence[Measured], groups: Sequence[Sequence[int]]) -> list[str]:
    """By what was typed where that tells all apart, else by folder."""
    typed = [_typed(one.run.command) for one in given]
    by_command = [hide(without_seed(short)) for short in short_names(typed)] if all(typed) else [""] * len(given)
    first = [group[0] for group in groups]
    for names in (by_command, [one.run.name for one in given], [str(one.run.folder) for one in given]):
        if len({names[i] for i in first}) == len(first) and all(names[i] for i in first):
            break
    return [names[i] for i in first]


def _typed(command: Sequence[str]) -> list[str]:
    return [o.lstrip("+") for o in command if o.lstrip("+~").partition("=")[0].partition(".")[0] not in HOW]
