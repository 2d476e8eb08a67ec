"""Runs that were made several times: of each setting mean and spread over what its repeats found."""

from collections.abc import Sequence
from typing import Any

from pipeline.figures import Figure
from pipeline.reporting.compare.differences import is_seed
from pipeline.reporting.compare.spread import Spread, together
from pipeline.reporting.compare.trainings import without_seed
from pipeline.reporting.html.parts import Mean, Table
from pipeline.reporting.html.told import Told

COMPLETE = "complete"


def table(runs: Sequence[Told]) -> Table | None:
    """A row for each setting; None, where none has repeats. What is alike in all but its seeds is one setting, with the
    same seed too: then what differs is of the machine.
    """
    done = [run for run in runs if run.run.state == COMPLETE and run.report is not None]
    groups = together([run.measured.likeness[0] for run in done])
    some = [[done[i] for i in group] for group in groups.values()]
    if all(len(group) < 2 for group in some):
        return None
    names = list(dict.fromkeys(name for run in done for name in run.main))
    rows = [
        (_name(group), Figure(len(group), form=",d"), _seeds(group), *(_mean(group, n) for n in names))
        for group in some
    ]
    note = "Mean ± deviation of a sample, of runs that are alike in everything but their seed."
    return Table("Mean over repeats", ("setting", "runs", "seeds", *names), rows, note)


def _name(group: Sequence[Told]) -> str:
    """What its runs have in common of their labels."""
    words = [without_seed(run.label).split(" ") for run in group]
    common = [word for word in words[0] if all(word in other for other in words)]
    return " ".join(common) or group[0].run.name


def _seeds(group: Sequence[Told]) -> str:
    """How many different ones."""
    found = {tuple(sorted((k, str(v)) for k, v in run.config.items() if is_seed(k))) for run in group}
    return "the same" if len(group) > 1 and len(found) == 1 else f"{len(found):,}"


def _mean(group: Sequence[Told], name: str) -> Any:
    values = [run.metrics[name] for run in group if name in run.metrics]
    if not values:
        return None
    spread = Spread.of([figure.value for figure in values])
    return Mean(spread.mean_as(values[0]), spread.shown(values[0]))
