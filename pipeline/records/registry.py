"""Which runs are meant: by folder, by name, by a sweep that they are of, or by what holds of them."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from pipeline.errors import ConfigError, SourceError, did_you_mean, nearest
from pipeline.records.index import Index
from pipeline.records.query import CONDITION, is_condition, matching
from pipeline.records.rows import packed, packed_jobs, unpacked, unpacked_jobs
from pipeline.records.run import CONFIG, Run, Settings, as_written, is_run, read, settled
from pipeline.records.sweeps import SWEEP, SweepJob, absent, jobs_of
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

    def called(self, word: str) -> list[str]:
        """Sweeps by name, by that of their folder or its path, or by the letter that tables show."""
        folder = os.path.normpath(Path(word).absolute())
        found = [n for n in self.sweeps if word in (n, Path(n).name) or str(self.outputs / n) == folder]
        by_letter = {pair for run in self.runs for pair in zip(run.letters, run.sweeps, strict=True)}
        return found or sorted(name for letter, name in by_letter if letter == word)

    def meant(self, condition: str, typed: str) -> set[str]:
        """Sweeps that `sweep=NAME` says, or `sweep=NAME,NAME`; patterns of their names too.

        Raises:
            ConfigError: none is called so.
        """
        found = set[str]()
        for word in [typed] if self._alike(typed) else typed.split(","):
            names = self._alike(word.strip())
            if not names and not {*"*?["} & {*word}:
                hint = did_you_mean(word, [*self.sweeps, *{Path(name).name for name in self.sweeps}])
                raise ConfigError(f"{condition}: no sweep is called {word!r}{hint}")
            found |= {*names}
        return found

    def _alike(self, word: str) -> list[str]:
        return self.called(word) or [n for n in self.sweeps if fnmatchcase(n, word) or fnmatchcase(Path(n).name, word)]

    def absent(self, sweep: str) -> dict[str, str]:
        """Its jobs that are not there: name → why."""
        return absent(self.outputs / sweep, {run.id for run in self.runs})

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


@dataclass(frozen=True)
class Found:
    """Attributes:
    runs: in the order of the words that named them.
    absent: of the sweeps that were named, jobs that are not there: sweep → job → why.
    conditions: the words that were none's name.
    """

    runs: list[Run]
    absent: Mapping[str, Mapping[str, str]]
    conditions: Sequence[str] = ()

    @property
    def said(self) -> list[str]:
        """A line for each job that is not there."""
        return [f"{job}, of {sweep}: {why}" for sweep, jobs in self.absent.items() for job, why in jobs.items()]


def find(outputs: Path, words: Sequence[str]) -> list[Run]:
    """The runs of `found`."""
    return found(outputs, words).runs


def found(outputs: Path, words: Sequence[str]) -> Found:
    """The runs that `words` name, in the order of the words; conditions (`quant=mxfp4`, `kl<0.01`) go together.

    Args:
        words: folders, names of runs or of sweeps (glob patterns too), beginnings of ids, and conditions. What is a
            name is none, whatever signs are in it.

    Raises:
        SourceError: nothing is called so.
        ConfigError: a condition that says nothing.
    """
    known: Registry | None = None
    named: dict[Path, Run] = {}
    conditions: list[str] = []
    sweeps: dict[str, Mapping[str, str]] = {}
    for word in words:
        runs = _at(word, outputs)
        if not runs:
            known = known or registry(outputs)
            runs, absent = _called(known, word)
            sweeps |= absent
        named |= {run.folder: run for run in runs}
        if not runs and is_condition(word):
            conditions.append(word)
        elif not runs:
            raise _unknown(known, outputs, word)
    if conditions or not named:
        known = known or registry(outputs)
    if known is None:
        return Found(list(named.values()), sweeps)
    there = {run.folder: run for run in known.runs}  # which know their sweeps
    among = [there.get(folder, run) for folder, run in named.items()] or known.runs
    try:
        runs = matching(among, conditions, known.meant)
    except ConfigError as why:
        alike = [n for word in conditions for n in nearest(word, [run.name for run in known.runs], 1)]
        raise ConfigError(f"{why}; there is a run {alike[0]!r}" if alike else str(why)) from None
    known.configs.keep()
    for word in conditions:
        match = CONDITION.fullmatch(word)
        if match and match[1] == "sweep" and match[2] != "!=":
            sweeps |= {
                name: jobs for name in sorted(known.meant(word, match[3].strip())) if (jobs := known.absent(name))
            }
    return Found(runs, sweeps, conditions)


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


def _called(known: Registry, word: str) -> tuple[list[Run], dict[str, Mapping[str, str]]]:
    """Runs by name, pattern or id, and those of sweeps; of these, which jobs are not there."""
    word = word.rstrip("/")
    folder = Path(os.path.normpath(Path(word).absolute()))
    runs = [run for run in known.runs if word in (run.name, run.folder.name)]
    sweeps = [] if runs and word not in known.sweeps else known.called(word)
    found = [run for name in sweeps for run in known.of_sweep(name)] + runs
    word = word.replace("…", "*")  # as a table shows a name whose middle has no room
    found = found or [run for run in known.runs if fnmatchcase(run.name, word) or fnmatchcase(run.folder.name, word)]
    if not found and len(word) >= LEAST_ID:
        found = [run for run in known.runs if run.id.startswith(word)]
    if not found and os.path.isfile(folder / SWEEP) and folder.parent != known.outputs:  # of other outputs
        there = registry(folder.parent)
        return _called(there, folder.name) if folder.name in there.sweeps else ([], {})
    if not found:  # by pattern: a sweep whose runs were removed stands in no other's way
        for name in known.sweeps:
            with suppress(SourceError):
                if fnmatchcase(name, word):
                    found += known.of_sweep(name)
                    sweeps.append(name)
    return found, {name: jobs for name in sweeps if (jobs := known.absent(name))}


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
    began: dict[str, float] = {}
    for name in known.sweeps:
        try:
            for run in known.of_sweep(name):
                of.setdefault(run.folder, []).append(name)
                began[name] = min(began.get(name, math.inf), run.started or math.inf)
        except SourceError:  # all its runs were removed
            continue
    letters = {name: letter(i) for i, name in enumerate(sorted(began, key=lambda name: (began[name], name)))}
    return [
        replace(run, sweeps=tuple(of[run.folder]), letters=tuple(letters[name] for name in of[run.folder]))
        if run.folder in of
        else run
        for run in known.runs
    ]


def letter(i: int) -> str:
    """0 → `a`, 25 → `z`, 26 → `aa`."""
    return ascii_lowercase[i] if i < 26 else f"{letter(i // 26 - 1)}{ascii_lowercase[i % 26]}"


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
