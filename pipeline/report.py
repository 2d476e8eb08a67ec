"""The report of a run that ended some time ago, from its folder: `pipeline.report.load("outputs/gpt_oss-mxfp4")`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
