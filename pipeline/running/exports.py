"""Exports that are there already: what an earlier run wrote under the same key is taken, when every byte still has its
digest, and copied where another folder was asked for; a run that wants what another is writing waits for it."""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.hooks import optional
from pipeline.planning.digests import Digests
from pipeline.planning.identity import Key, settled
from pipeline.planning.wiring import Plan, chunk_key
from pipeline.running.results import Results
from pipeline.running.target import MARKER
from pipeline.stage import Exported, Work, WorkHooks


@dataclass(frozen=True)
class Kept:
    """An export that an earlier run made.

    Attributes:
        folder: what is kept of it.
        places: where it was written.
        files: name → digest, without the marker.
        records: what its chunks measured.
    """

    folder: Path
    places: tuple[Path, ...]
    files: Mapping[str, str]
    records: tuple[Mapping[str, Any], ...]


Lock = tuple[Path, str]


@dataclass
class Held:
    """A lock that the jobs of a sweep have in common: it is let go of when the last of them is done with it."""

    lock: ExitStack
    users: int = 0

    def let_go(self) -> None:
        self.users -= 1
        if not self.users:
            self.lock.close()


def wait_for(jobs: "Iterable[Exports]", locks: ExitStack) -> None:
    """Wait for whoever writes what these jobs want; afterwards nobody else writes it. All is let go of with `locks`."""
    wanted: dict[Lock, list[Exports]] = {}
    early: set[Lock] = set()
    for exports in jobs:
        for lock in {*chain(*exports.locks.values())}:
            wanted.setdefault(lock, []).append(exports)
        early |= {first for first, *_ in exports.locks.values()}
    common = {lock: Held(locks.enter_context(ExitStack()), len(users)) for lock, users in wanted.items()}
    for lock in sorted(wanted, key=lambda one: (one not in early, one)):  # as all runs do, so that none waits in a ring
        common[lock].lock.enter_context(wanted[lock][0].results.alone(lock[1]))
        for exports in wanted[lock]:
            exports.held[lock], exports.common = common[lock], common


@dataclass
class Exports:
    """The exports of one run.

    Attributes:
        plan: of the run.
        results: where exports are known by their keys.
        again: make them, whatever is there: the run is to be made again, or goes on with what it had begun.
        there: stage → what was found in its place, or copied there.
        kept: stage → what an earlier run made.
        held: (folder, key) → lock, of what nobody else may write meanwhile; jobs of a sweep have it in common.
        common: those of all jobs of the sweep.
    """

    plan: Plan
    results: Results
    again: bool = False
    there: dict[str, Exported] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    held: dict[Lock, Held] = field(default_factory=dict)
    common: dict[Lock, Held] = field(default_factory=dict)

    @property
    def locks(self) -> dict[str, tuple[Lock, ...]]:
        """Stage → the locks of what it writes; two stages, or jobs, may write the same.

        First of all that of the key in which stamps stand for the content of large files: whoever has read them before
        and whoever has not know it alike. Then the key's own, which the same files elsewhere have, too.
        """
        names = [n for n, w in self.plan.works.items() if adopts(w) and n in self.plan.keys]
        if self.results.hindrance:
            return {}  # nothing can be kept there, so that nothing is
        ids = {n: dict.fromkeys((self.plan.stand_ins[n].id, self.plan.keys[n].id)) for n in names}
        return {n: tuple((self.results.folder, one) for one in found) for n, found in ids.items()}

    def look(self) -> None:
        """See what there is; whoever calls holds the locks."""
        names = list(self.locks)
        if self.again or not names:
            return
        digests = Digests()  # of the run that this one waited for, too
        contents = {str(f.path): d for f in self.plan.inputs if (d := digests.of(f)) is not None}
        keys = settled(self.plan.keys, contents)
        for name in names:
            if (kept := _read(self.results, keys[name])) is not None:
                self.kept[name] = kept
                self._adopt(name, self._target(name))  # a copy that was not noted any more is known by its bytes

    def copy(self) -> None:
        """Copy what is kept, and whole, to where it is wanted."""
        for name, kept in self.kept.items():
            for place in kept.places:
                if name not in self.there and place != self._target(name):
                    self._adopt(name, place)

    def _target(self, name: str) -> Path:
        target: Path = self.plan.works[name].target  # type: ignore[attr-defined]
        return target

    def _adopt(self, name: str, place: Path) -> None:
        work: Any = self.plan.works[name]
        try:
            found = work.adopt(place, self.kept[name].files)
        except SourceError:  # it cannot be read any more
            found = None
        if found is not None:
            self.there[name] = found

    @property
    def records(self) -> list[dict[str, Any]]:
        """What the chunks of exports that were there measured when they were made."""
        return [{**r, "reused": True} for name in self.there for r in self.kept[name].records]

    def release(self, name: str) -> None:
        """Let others have the export of stage `name`, which is done."""
        for lock in self.locks.get(name, ()):
            if (held := self.held.pop(lock, None)) is not None:
                held.let_go()

    def close(self) -> None:
        for name in self.locks:
            self.release(name)

    def keep(self, made: Mapping[str, Any], keys: Mapping[str, Key]) -> None:
        """Let later runs find what this one has.

        Args:
            made: results of stages and chunks.

        Raises:
            StorageError: it cannot be noted.
        """
        finished = {n for n, w in self.plan.works.items() if adopts(w) and isinstance(made.get(n), Exported)}
        self.close()
        if self.results.hindrance:
            return
        for name in [n for n in finished if n in keys]:
            export: Exported = made[name]
            files = {f.path.relative_to(export.path).as_posix(): f.xxh3_128 for f in export.files}
            files.pop(MARKER, None)
            kept = self.kept.get(name) if name in self.there else None
            chunks = [] if kept else self.plan.works[name].chunks
            records = kept.records if kept else [made[chunk_key(self.plan, name, c)] for c in chunks]
            ours = self.common.get((self.results.folder, keys[name].id))
            # What another job of this process holds, this one need not wait for, nor could it: that one waits for us.
            with nullcontext() if ours is not None and ours.users else self.results.alone(keys[name].id):
                before = _read(self.results, keys[name])
                others = [p for p in (before.places if before else ()) if p != export.path and p.is_dir()]
                done = tuple({k: v for k, v in r.items() if k != "reused"} for r in records)
                now = Kept(self.results.folder / keys[name].id, (export.path, *others), files, done)
                if now == before:  # this run's own, when it was killed before its manifest was written; or what it took
                    continue
                value = {"places": [str(p) for p in now.places], "files": files, "records": list(done)}
                self.results.keep(keys[name].id, value, keys[name].parts)


def adopts(work: Work[Any] | None) -> bool:
    """Whether it takes what another run has written."""
    return optional(work, WorkHooks, "adopt") is not None


def _read(results: Results, key: Key) -> Kept | None:
    if (found := results.read(key.id)) is None:
        return None
    value, folder = found
    return Kept(folder, tuple(map(Path, value["places"])), dict(value["files"]), tuple(value["records"]))


def places_of(results: Results, key: Key, *more: Path) -> list[Path]:
    """Where the export of this key is, `more` places asked, as far as can be told without reading it all."""
    if (kept := _read(results, key)) is None:
        return []
    return [p for p in dict.fromkeys((*kept.places, *more)) if all(os.path.isfile(p / n) for n in kept.files)]
