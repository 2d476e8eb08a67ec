"""Which runs are meant: by folder, by name, by a sweep that they are of, or by what holds of them."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, SourceError, did_you_mean, nearest
from pipeline.records.index import Index
from pipeline.records.query import is_condition, matching
from pipeline.records.rows import packed, packed_jobs, unpacked, unpacked_jobs
from pipeline.records.run import CONFIG, Run, Settings, as_written, is_run, read, settled
from pipeline.records.sweeps import SWEEP, SweepJob, jobs_of
from pipeline.records.tree import Place, places

LEAST_ID = 6  # characters of an id that is typed


@dataclass(frozen=True)
class Registry:
    """What lies below a folder of outputs at this moment.

    Attributes:
        outputs: absolute.
        runs: newest first.
        sweeps: folder of each, within that of outputs → its jobs.
        configs: of the runs.
    """

    outputs: Path
    runs: list[Run]
    sweeps: Mapping[str, Sequence[SweepJob]]
    configs: "Configs"

    def of_sweep(self, name: str) -> list[Run]:
        """Its runs, in order: where they lay, or, when they were moved, those with their ids.

        Raises:
            SourceError: none is there any more.
        """
        by_folder = {str(run.folder): run for run in self.runs}
        by_id = {run.id: run for run in reversed(self.runs) if run.id}
        found = []
        for job in self.sweeps[name]:
            there = by_folder.get(os.path.normpath(self.outputs / name / job.run))
            if there is not None and job.id in ("", there.id):
                found.append(there)
            elif job.id in by_id:
                found.append(by_id[job.id])
            elif not job.id and is_run(folder := Path(os.path.normpath(self.outputs / name / job.run))):
                found.append(read(folder))
        if not found:
            raise SourceError(
                f"{self.outputs / name}: none of the {len(self.sweeps[name])} runs of this sweep is there"
            )
        return found


def registry(outputs: Path) -> Registry:
    """What lies below a folder of outputs, read anew where the index does not know it as it is."""
    index = Index(outputs)
    there = list(places(outputs))
    known = index.rows("records") if there else {}
    changed: dict[str, tuple[str, str]] = {}
    runs: list[Run] = []
    sweeps: dict[str, list[SweepJob]] = {}
    configs = Configs(index)
    for place in there:
        stamp, text = known.get(place.name, ("", ""))
        if stamp != place.stamp or not stamp:
            text = packed(as_written(place.folder)) if place.run else _packed_sweep(place.folder)
            changed[place.name] = (place.stamp, text)
        if place.run:
            run = unpacked(text, place.folder, place.name, _OneConfig(configs, place))
            runs.append(settled(run, locked=place.locked))
        elif text:
            sweeps[place.name] = unpacked_jobs(text)
    index.keep("records", changed, known.keys() - {p.name for p in there})
    ordered = sorted(runs, key=lambda run: (-(run.started or 0), run.name))
    found = Registry(outputs, ordered, sweeps, configs)
    return replace(found, runs=_with_sweeps(found)) if sweeps else found


def all_runs(outputs: Path) -> list[Run]:
    """Every run below a folder of outputs, newest first."""
    return registry(outputs).runs


def find(outputs: Path, words: Sequence[str]) -> list[Run]:
    """The runs that `words` name, in the order of the words; conditions (`quant=mxfp4`, `kl<0.01`) go together.

    Args:
        words: folders, names of runs or of sweeps (glob patterns too), beginnings of ids, and conditions. What is a
            name is none, whatever signs are in it.

    Raises:
        SourceError: nothing is called so.
        ConfigError: a condition that says nothing.
    """
    known: Registry | None = None
    found: list[Run]
    named: dict[Path, Run] = {}
    conditions: list[str] = []
    names = 0
    for word in words:
        found = _at(word, outputs)
        if not found:
            known = known or registry(outputs)
            found = _called(known, word)
        if found:
            names += 1
            named |= {run.folder: run for run in found}
        elif is_condition(word):
            conditions.append(word)
        else:
            raise _unknown(known, outputs, word)
    if not names:
        known = known or registry(outputs)
    runs = list(named.values()) if names or known is None else known.runs
    try:
        found = matching(runs, conditions)
    except ConfigError as why:
        alike = [n for word in conditions for n in nearest(word, [run.name for run in known.runs] if known else [], 1)]
        raise ConfigError(f"{why}; there is a run {alike[0]!r}" if alike else str(why)) from None
    if known is not None:
        known.configs.keep()
    return found


def _at(word: str, outputs: Path) -> list[Run]:
    """The run in a folder that was typed."""
    try:
        for folder in (Path(word).expanduser().absolute(), outputs / word):
            folder = Path(os.path.normpath(folder))
            if is_run(folder):
                run = read(folder)
                return [replace(run, name=os.path.relpath(folder, outputs)) if outputs in folder.parents else run]
    except (OSError, ValueError, RuntimeError):  # a zero byte, a name that is too long, a home that nobody has
        pass
    return []


def _called(known: Registry, word: str) -> list[Run]:
    """Runs by name, pattern or id, and those of sweeps."""
    word = word.rstrip("/")
    folder = os.path.normpath(Path(word).absolute())
    sweeps = [n for n in known.sweeps if n == word or str(known.outputs / n) == folder]
    found = [run for name in sweeps for run in known.of_sweep(name)]
    found += [run for run in known.runs if run.name == word or run.folder.name == word]
    found = found or [run for run in known.runs if fnmatchcase(run.name, word) or fnmatchcase(run.folder.name, word)]
    if not found and len(word) >= LEAST_ID:
        found = [run for run in known.runs if run.id.startswith(word)]
    if not found and os.path.isfile(Path(folder) / SWEEP):  # of other outputs
        there, name = registry(Path(folder).parent), Path(folder).name
        return there.of_sweep(name) if name in there.sweeps else []
    if not found:  # by pattern: a sweep whose runs were removed stands in no other's way
        for name in known.sweeps:
            with suppress(SourceError):
                found += known.of_sweep(name) if fnmatchcase(name, word) else []
    return found


def _unknown(known: Registry | None, outputs: Path, word: str) -> Exception:
    folders = [Path(word).absolute(), outputs / word]
    folder = next((f for f in folders if os.path.isfile(f / "sweep.csv")), None)
    if folder is not None:
        return SourceError(
            f"{folder}: a sweep of an earlier version, which does not say which runs are its own; name these"
        )
    names = [run.name for run in known.runs] + list(known.sweeps) if known else []
    where = "" if names else f", and there are none in {outputs}"
    return SourceError(f"{word}: no run and no sweep is called so{where}{did_you_mean(word, names) if names else ''}")


def _packed_sweep(folder: Path) -> str:
    try:
        return packed_jobs(jobs_of(folder))
    except SourceError:
        return ""  # partial, or another program's: no sweep of ours


def _with_sweeps(known: Registry) -> list[Run]:
    """The runs, with the sweeps that each is a job of."""
    of: dict[Path, list[str]] = {}
    for name in known.sweeps:
        try:
            for run in known.of_sweep(name):
                of.setdefault(run.folder, []).append(name)
        except SourceError:  # all its runs were removed
            continue
    return [replace(run, sweeps=tuple(of[run.folder])) if run.folder in of else run for run in known.runs]


class Configs:
    """Settings of runs: from the index where it has them as they are, or else from their files."""

    def __init__(self, index: Index):
        self._index = index
        self._known: dict[str, Mapping[str, Any]] = {}
        self._changed: dict[str, tuple[str, str]] = {}

    def of(self, place: Place) -> Mapping[str, Any]:
        if place.name not in self._known:
            stamp, text = self._index.rows("settings").get(place.name, ("", ""))
            if stamp == place.config:
                self._known[place.name] = json.loads(text or "{}")
            else:
                from pipeline.records.configs import read_config  # YAML, which a list needs not

                self._known[place.name] = read_config(place.folder / CONFIG)
                self._changed[place.name] = (place.config, json.dumps(self._known[place.name]))
        return self._known[place.name]

    def keep(self) -> None:
        """Put into the index what was read."""
        self._index.keep("settings", self._changed, ())
        self._changed = {}


class _OneConfig(Settings):
    def __init__(self, configs: Configs, place: Place):
        self._configs, self._place = configs, place

    def keep(self) -> None:
        self._configs.keep()

    def _all(self) -> Mapping[str, Any]:
        return self._configs.of(self._place)
