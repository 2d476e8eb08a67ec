"""What on disk stands in a run's way: found before anything is written, and said all at once.

A run's folder is ours when it has our `run.json`; in any other, files that a run would write are somebody's, and stay.
"""

import json
import os
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.errors import Problem, some
from pipeline.hooks import optional
from pipeline.places import hindrance, nearest_folder, within
from pipeline.planning.wiring import Plan, chunk_key
from pipeline.stage import Checkpoint, StageHooks, WorkHooks
from pipeline.units import show_bytes

RECORDS = (
    "run.json", "config.yaml", "journal.jsonl", "tries.jsonl", "tags.jsonl", "manifest.json", "metrics.jsonl",
    "metrics.system.jsonl", "errors.csv",
)  # fmt: skip
"""What every run writes into its folder; a stage that writes more there says so in `StageHooks.writes`."""


def obstacles(plan: Plan, outputs: Path, known: Mapping[str, Any], there: Container[str] = ()) -> list[Problem]:
    """What stands in the way of works that write, given what an earlier try had done.

    Args:
        outputs: folder of all runs.
        known: records of its journal.
        there: stages whose output is in its place already.
    """
    found: list[Problem] = []
    for name, work in plan.works.items():
        target: Path | None = optional(work, WorkHooks, "target")
        ask = optional(work, WorkHooks, "obstacles")
        clash = next(clashes(target, name, plan, outputs), None) if target is not None else None
        if clash is not None:
            found.append(Problem("export.path", f"{target} {clash}; choose another"))
        elif name not in there and ask is not None:
            finished = all(chunk_key(plan, name, chunk) in known for chunk in work.chunks)
            found += ask(finished=finished)
    return found


def room(jobs: Sequence[tuple[Plan, Mapping[str, Any], Container[str]]]) -> list[Problem]:
    """Disks that have room for what each job writes, and not for all of it.

    Args:
        jobs: plan, records of its journal, and stages whose output is in its place already.
    """
    needed: dict[int, int] = {}
    free: dict[int, tuple[Path, int]] = {}
    for plan, known, done in jobs:
        for name, work in plan.works.items():
            target, ask = optional(work, WorkHooks, "target"), optional(work, WorkHooks, "nbytes_needed")
            if name not in done and target is not None and ask is not None:
                there = nearest_folder(target)
                disk = there.stat().st_dev
                free.setdefault(disk, (there, shutil.disk_usage(there).free))
                finished = all(chunk_key(plan, name, chunk) in known for chunk in work.chunks)
                needed[disk] = needed.get(disk, 0) + ask(finished=finished)
    return [
        Problem(
            "export.path",
            f"{there} has {show_bytes(nbytes)} free, and {len(jobs)} jobs together need {show_bytes(needed[disk])}; "
            "hydra.sweeper.max_batch_size=N runs N at a time",
        )
        for disk, (there, nbytes) in free.items()
        if needed[disk] > nbytes
    ]


def run_folder(plan: Plan) -> Iterator[Problem]:
    """Why the run's folder cannot be made, or written without overwriting what is not ours."""
    folder = plan.context.run_dir
    if why := hindrance(folder / f"{max(RECORDS, key=len)}.partial"):
        yield Problem("paths.run", f"{folder!s:.300}: {why}")
        return
    writes = {*RECORDS, *(w for node in plan.nodes.values() for w in optional(node.stage, StageHooks, "writes"))}
    there = sorted(name for name in writes if os.path.lexists(folder / name))
    if there and not is_run(folder):
        yield Problem(
            "paths.run",
            f"{folder} holds {some(there)}, and no run.json of Weightmill: not written by a run, and not overwritten; "
            "choose another folder",
        )


def is_run(folder: Path) -> bool:
    """Whether `folder` is that of a run of ours, by its run.json, or by its manifest."""
    for name, keys in (
        ("run.json", {"id", "nodes", "places", "inputs"}),
        ("run.json", {"stages", "seed", "inputs", "code"}),  # of earlier versions
        ("manifest.json", {"weightmill", "outputs"}),
    ):
        try:
            said = json.loads((folder / name).read_bytes()) if (folder / name).is_file() else None
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(said, dict) and keys <= said.keys():
            return True
    return False


def clashes(target: Path, name: str, plan: Plan, outputs: Path) -> Iterator[str]:
    """Why the folder `target`, which stage `name` puts in place, must not be there: what it is, holds or lies in."""
    run_dir = plan.context.run_dir
    if target.parent == run_dir and target.name in RECORDS:
        yield "is a record of the run itself"
    held = {run_dir: "the run's folder", outputs: "the folder of all runs (paths.outputs)"}
    held |= dict(_own_places())
    read = [n.result for n in plan.nodes.values() if isinstance(n.result, Checkpoint)]
    held |= {f: "what this run reads" for c in read for f in _folders(c)}
    for place, what in held.items():
        if within(place, target):
            yield f"{'is' if within(target, place) else 'holds'} {what} ({place})"
    for source in {c.source for c in read if c.source is not None and c.source.is_dir()}:
        mine = within(run_dir, source) and not within(source, run_dir) and within(target, run_dir)
        if within(target, source) and not mine:
            yield f"lies in what this run reads ({source})"
    for other, work in plan.works.items():
        theirs: Path | None = optional(work, WorkHooks, "target")
        if other != name and theirs is not None and (within(target, theirs) or within(theirs, target)):
            yield f"and {theirs}, which stage {other!r} writes, are in each other's way"


def _folders(checkpoint: Checkpoint) -> set[Path]:
    """Where a checkpoint is read from: as named, and where links lead."""
    files = {f.path for f in checkpoint.inputs} | {p for p in checkpoint.files.values() if isinstance(p, Path)}
    found = {f.parent for f in files} | {Path(os.path.realpath(f)).parent for f in files}
    return found | ({checkpoint.source} if checkpoint.source is not None else set())


def _own_places() -> Iterator[tuple[Path, str]]:
    """Folders of the user that no run may replace."""
    with suppress(OSError):  # it was removed
        yield Path.cwd(), "the working directory"
    with suppress(RuntimeError):  # there is none
        yield Path.home(), "your home"
