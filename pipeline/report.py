"""Reports of runs that ended some time ago: as data (`load`), as a page (`html`), and the plots of it (`plots`)."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.records.run import Run
    from pipeline.reporting.html.plots import Plot
    from pipeline.reporting.manifest import Report


def load(folder: str | Path) -> "Report":
    """What `pipeline.run` gave, as it stands in `manifest.json`.

    Raises:
        SourceError: no run has ended there, or its manifest is not whole, or a newer version's.
    """
    from pipeline.errors import SourceError, some
    from pipeline.records import schemas
    from pipeline.reporting.manifest import Report

    place = Path(os.path.expanduser(folder)).absolute()
    file = place / "manifest.json"
    if not file.is_file():
        there = [p.parent.name for p in sorted(place.glob("*/manifest.json"))]
        hint = f"; runs in it: {some(there)}" if there else ""
        raise SourceError(f"{place}: is no folder of a run that ended: it has no manifest.json{hint}")
    return Report.from_json(schemas.read("manifest", file))


def html(runs: "Run | Sequence[Run]", path: str | Path = "report.html") -> Path:
    """One self-contained HTML page about runs, as `python -m pipeline report` writes it; where it is.

    Args:
        runs: one, or several, as `pipeline.runs` gives them.
        path: the file, whose name ends in .html or .htm, or a folder.

    Raises:
        ConfigError: there is no run, or `path` is no place for a page.
        StorageError: it cannot be written.
    """
    from pipeline.reporting.html.page import write
    from pipeline.reporting.html.place import place_of

    place = place_of(path)
    write(_several(runs), place)
    return place


def plots(runs: "Run | Sequence[Run]") -> "dict[str, Plot]":
    """The plots of that page by their titles, for notebooks, which draw them; each has its numbers as `rows`, of which
    pandas makes a frame.

    Args:
        runs: one, or several, as `pipeline.runs` gives them.

    Raises:
        ConfigError: there is no run.
    """
    from pipeline.reporting.html.plots import plots

    return plots(_several(runs))


def _several(runs: "Run | Sequence[Run]") -> "list[Run]":
    """
    Raises:
        ConfigError: there is none, or something else.
    """
    from pipeline.errors import ConfigError, short
    from pipeline.records.run import Run

    found = [runs] if isinstance(runs, Run) else list(runs)
    if not found or not all(isinstance(run, Run) for run in found):
        raise ConfigError(f"{short(repr(runs), 100)}: a run, or several, are expected, as pipeline.runs() gives them")
    return found
