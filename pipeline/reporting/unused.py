"""What was typed and made no difference, as records hold it and as people read it: a line for each setting."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipeline.errors import Problem
from pipeline.terminal import line

Row = Mapping[str, Any]
"""`setting`, as typed, and `reason`."""


def rows(unread: Iterable[Problem]) -> list[dict[str, Any]]:
    """See `Report.unused`."""
    return [{"setting": one.where, "reason": one.message} for one in unread]


def lines(found: Iterable[Row]) -> list[str]:
    """One for each setting."""
    return [f"unused: {line(row['setting'])} ({row['reason']})" for row in found]


def in_all(jobs: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """What no job of a sweep makes use of, once; a setting that the sweep varies has all its values."""
    by_key = [{row["setting"].partition("=")[0]: row for row in job} for job in jobs]
    found = []
    for key in (key for key in (by_key[0] if by_key else ()) if all(key in job for job in by_key)):
        values = dict.fromkeys(job[key]["setting"].removeprefix(f"{key}=") for job in by_key)
        found.append({"setting": f"{key}={','.join(values)}", "reason": by_key[0][key]["reason"]})
    return found
