"""Series of a run, summed up: what was read of long ones once is kept in the index, and gone on from as they grow."""

import json
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import SourceError
from pipeline.records.index import Index
from pipeline.records.points import files
from pipeline.records.run import Run
from pipeline.records.summaries import FileSummary, Summary, merged, problems, summarize

LONG_NBYTES = 1 << 20  # of metrics; shorter ones are read again in less time than an index takes


def series(run: Run, outputs: Path) -> tuple[dict[str, Summary], list[str]]:
    """What the points of all of a run's processes come to, by what they are called for people; and the lines that are
    none, named.

    Args:
        outputs: the folder that its name is within, which has the index.

    Raises:
        SourceError: a file cannot be read.
    """
    stats = [(path, path.stat()) for path in files(run.folder)]
    stamp = "\n".join(f"{p.name} {s.st_size} {s.st_mtime_ns} {s.st_ino}" for p, s in stats)
    if sum(s.st_size for _, s in stats) < LONG_NBYTES or run.folder != outputs / run.name:
        found = summarize(run.folder)
        return merged(found), problems(found)
    index = Index(outputs)
    kept, text = index.row("series", run.name) or ("", "")
    known = _known(text)
    if kept == stamp and known is not None:
        return merged(known), problems(known)
    found = summarize(run.folder, known)
    index.keep("series", {run.name: (stamp, json.dumps({n: one.to_json() for n, one in found.items()}))}, set())
    return merged(found), problems(found)


def _known(text: str) -> Mapping[str, FileSummary] | None:
    try:
        return {name: FileSummary.from_json(one) for name, one in json.loads(text).items()} if text else None
    except (SourceError, ValueError, AttributeError):
        return None
