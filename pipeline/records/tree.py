"""Where runs and sweeps lie below a folder of outputs, and the stamps of their files; nothing is opened."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.records.run import CONFIG, DESCRIPTION, MANIFEST, METRICS
from pipeline.records.sweeps import SWEEP
from pipeline.records.tags import TAGS
from pipeline.records.tries import JOURNAL, LOCK, TRIES

DEEPEST = 6  # folders below that of outputs
EXPORT = ".weightmill.json"  # in a folder that an export made: no run lies in it
REPRODUCED = "reproduced.json"  # beside a run that was made again, to be compared and no more
READ = (DESCRIPTION, MANIFEST, JOURNAL, METRICS, TRIES, TAGS)  # what a run is read from


@dataclass(frozen=True, slots=True)
class Place:
    """Attributes:
    path: of its folder, absolute.
    name: within the folder of outputs.
    run, sweep: what is in it.
    stamp: of the files that it is read from: name, bytes, time of change and inode of each.
    config: the same of `config.yaml`.
    locked: it has a lock, held or not.
    """

    path: str
    name: str
    run: bool
    sweep: bool
    stamp: str
    config: str
    locked: bool

    @property
    def folder(self) -> Path:
        return Path(self.path)


def places(outputs: Path) -> Iterator[Place]:
    """Folders of runs and of sweeps, by name; hidden ones, exports, reproductions and what MLflow keeps are passed
    over. A link counts where it leads to a run, and no further."""
    if outputs.is_dir():
        yield from _below(str(outputs), outputs.name, "", DEEPEST)


def _below(folder: str, name: str, within: str, left: int) -> Iterator[Place]:
    try:
        with os.scandir(folder) as listed:
            entries = {entry.name: entry for entry in listed}
    except OSError:  # gone since, or it may not be looked into
        return
    if EXPORT in entries or REPRODUCED in entries:
        return
    is_run, is_sweep = DESCRIPTION in entries or MANIFEST in entries, SWEEP in entries
    if is_run or is_sweep:
        stamp = _stamp(entries, READ if is_run else (SWEEP,))
        yield Place(folder, name, is_run, is_sweep, stamp, _stamp(entries, (CONFIG,)), LOCK in entries)
    for inner in sorted(n for n in entries if left and not n.startswith(".") and not _is_store(n, entries)):
        link = entries[inner].is_symlink()
        if _is_folder(entries[inner]) and not (link and is_run):
            yield from _below(f"{folder}/{inner}", f"{within}{inner}", f"{within}{inner}/", 0 if link else left - 1)


def _is_store(name: str, entries: "dict[str, os.DirEntry[str]]") -> bool:
    """A folder `NAME-artifacts` beside `NAME.db`: copies of records that MLflow keeps."""
    return name.endswith("-artifacts") and f"{name.removesuffix('-artifacts')}.db" in entries


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _stamp(entries: "dict[str, os.DirEntry[str]]", names: tuple[str, ...]) -> str:
    found = []
    for name in names:
        try:
            if name in entries:
                stat = entries[name].stat()
                found.append(f"{name} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
        except OSError:
            continue
    return "\n".join(found)
