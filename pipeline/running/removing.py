"""Runs that are removed: their records, exports and checkpoints; what no run put there stays where it is."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import SourceError, StorageError, some
from pipeline.places import reason
from pipeline.planning.obstacles import RECORDS
from pipeline.records import schemas
from pipeline.records.points import PATTERN
from pipeline.records.run import DESCRIPTION, MANIFEST, Run
from pipeline.reporting.html.place import NAME
from pipeline.running.journal import locked
from pipeline.running.target import read_marker, remove, strange
from pipeline.tracing import PARTS, PROFILES

PICTURES = ("loss.png", "mesh.png", "histogram.png", "sensitivity.png", "allocation.png", "scale.png")
MORE = ("trace.json", "rounds.jsonl", "rules.yaml", NAME)
STATE = re.compile(r"\d+(\.orbax-checkpoint-tmp.*)?")  # of a training, whose folder has a manifest of its own
# Folders whose entries of such names go, with all that is in them.
FOLDERS = {
    "states": STATE, "best": STATE, PARTS: re.compile(r".+\.jsonl"), PROFILES: re.compile(r".+-\d+-\d+"),
    "sizes": re.compile(r".+-[\d,.]+\w*"), "converted": re.compile("out|run"),
    "programs": re.compile(".+-(cache|atime)"), "logs": re.compile(r".+\.txt"),
}  # fmt: skip
TARGET_LOCK = ".*.weightmill.lock"  # what a killed process leaves beside its export


@dataclass(frozen=True)
class Removal:
    """What becomes of a run.

    Attributes:
        run: which.
        files, exports: that go.
        stays: what lies in its folder and is no run's; the folder then stays too.
    """

    run: Run
    files: tuple[Path, ...]
    exports: tuple[Path, ...]
    stays: tuple[Path, ...]

    @property
    def nbytes(self) -> int:
        everything = [*self.files, *(p for e in self.exports for p in e.rglob("*"))]
        return sum(p.lstat().st_size for p in everything if p.is_file())


def removal(run: Run) -> Removal:
    """What would go.

    Raises:
        StorageError: the folder cannot be looked into, is a link, or has no record that is ours.
    """
    if run.folder.is_symlink():
        raise StorageError(
            f"{run.folder}: is a link to {os.path.realpath(run.folder)}; name that, or remove the link itself"
        )
    if not any(_tells_of_a_run(run.folder / name) for name in (DESCRIPTION, MANIFEST)):
        why = f": {run.problems[0]}" if run.problems else ""
        raise StorageError(f"{run.folder}: no record in it is ours, so nothing is removed; delete it yourself{why}")
    files: list[Path] = []
    exports: list[Path] = []
    stays: list[Path] = []
    try:
        for entry in sorted(run.folder.iterdir()):
            if entry.name == ".lock":
                continue
            if entry.is_symlink():
                stays.append(entry)
            elif entry.is_file():
                (files if _is_ours(entry) else stays).append(entry)
            elif entry.name in FOLDERS:
                for inner in sorted(entry.iterdir()):
                    whole = [p for p in (inner, *inner.rglob("*")) if not p.is_dir() or p.is_symlink()]
                    ours = FOLDERS[entry.name].fullmatch(inner.name) and not any(p.is_symlink() for p in whole)
                    (files.extend(whole) if ours else stays.append(inner))
            else:
                ours = read_marker(entry) is not None and strange(entry) is None
                (exports if ours else stays).append(entry)
    except OSError as why:
        raise StorageError(f"{run.folder}: {reason(why)}") from None
    return Removal(run, tuple(files), tuple(exports), tuple(stays))


def _tells_of_a_run(record: Path) -> bool:
    """Whether it is a record of ours, of whatever version."""
    kind = {DESCRIPTION: "run", MANIFEST: "manifest"}[record.name]
    try:
        schemas.read(kind, record)
    except schemas.Newer:
        return True
    except SourceError:
        return False
    return True


def _is_ours(file: Path) -> bool:
    known = {*RECORDS, *PICTURES, *MORE}
    return (
        file.name in known
        or file.match(PATTERN)
        or file.match(TARGET_LOCK)
        or file.name.removesuffix(".partial") in known
    )


def carry_out(removals: list[Removal]) -> Iterator[str]:
    """Remove them, one after another; says of each what was done.

    Raises:
        StorageError: a run is at work there, or something cannot be removed.
    """
    for one in removals:
        folder = one.run.folder
        with locked(folder / ".lock", f"{folder}: is at work, and is not removed; stop it first"):
            now = removal(one.run)
            try:
                for export in now.exports:
                    remove(export)
                for file in sorted(now.files, key=lambda f: f.name == "run.json"):  # until the end it is a run's folder
                    file.unlink(missing_ok=True)
                for name in FOLDERS:
                    _without_empty(folder / name)
            except OSError as why:
                raise StorageError(f"{folder}: {reason(why)}") from None
        with suppress(OSError):  # it holds what is not ours
            folder.rmdir()
        if folder.exists():
            left = some([str(p.relative_to(folder)) for p in now.stays]) or "the folder"
            yield f"removed {folder}, but for {left}, which no run put there"
        else:
            yield f"removed {folder}"


def _without_empty(folder: Path) -> None:
    """Remove it and what is in it, as far as these are empty folders."""
    if folder.is_dir() and not folder.is_symlink():
        inside = [p for p in folder.rglob("*") if p.is_dir() and not p.is_symlink()]
        for place in [*sorted(inside, key=lambda p: -len(p.parts)), folder]:
            with suppress(OSError):  # it holds what is not ours
                place.rmdir()
