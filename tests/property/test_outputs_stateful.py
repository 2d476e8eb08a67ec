"""Runs, kills, changed sources and other people's files over one folder, at random: nothing foreign is touched, nothing
is mixed, and a run succeeds with the right bytes only.

Every value of a source is its version's number, so that one look tells which version an output holds, and whether it
holds two. Two of the runs write the same target, from sources of the same names and sizes.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from safetensors.numpy import load_file, save_file

from pipeline.api import compose_run
from pipeline.config.spine import RunConfig
from pipeline.errors import WeightmillError
from pipeline.events import Events
from pipeline.reporting.manifest import Report, build_report
from pipeline.running import results
from pipeline.running.journal import locked
from pipeline.running.runner import execute
from pipeline.running.target import MARKER
from plugins.formats.safetensors.container import SafeTensors

SHAPES = {"model.embed_tokens.weight": (24, 16), "model.norm.weight": (16,), "lm_head.weight": (24, 16)}
SOURCES = {"source": 0, "other": 1000}  # what is added to the version
READS = {"a": "source", "b": "other", "c": "source", "d": "source"}
SHELF = "shelf/model"
FILES = {"model.safetensors", "config.json", "generation_config.json", MARKER}
RUNS = {"a": SHELF, "b": SHELF, "c": "out/c/model", "d": "shelf/other"}
STEPS = [(Path, name) for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "write_bytes")]
STEPS += [(SafeTensors, "begin"), (SafeTensors, "write"), (shutil, "copyfile")]


class Killed(BaseException):
    """Goes through every handler, as a killed process does."""


@cache
def world() -> Path:
    return Path(tempfile.mkdtemp(prefix="outputs-"))


@cache
def config(name: str) -> RunConfig:
    to = [] if RUNS[name] == f"out/{name}/model" else [f"export.path={world() / RUNS[name]}"]
    source = [f"model.source={world() / READS[name]}", f"paths.outputs={world() / 'out'}", "dask.chunk=512", *to]
    stages = ["+model=llama", "stages=[load,export]", "export=plain", "export.dtype=keep", "dask.workers=1"]
    return compose_run([*stages, *source])


def unwaiting(file: Path, busy: str, **_: Any) -> Any:
    """A run that would wait for the one that it is in the middle of gives up."""
    return locked(file, busy)


@contextmanager
def at_step(number: int, happens: Callable[[], None]) -> Iterator[None]:
    """Call `happens` before the step on disk with this number, in the body, whatever it is; once."""
    count, within = 0, False

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count, within
            count += not within
            if count == number and not within:
                within, count = True, count + 1
                try:
                    with mock.patch.object(results, "locked", unwaiting):
                        happens()
                finally:
                    within = False
            return real(*args, **kwargs)

        return call

    with ExitStack() as stack:
        for owner, name in STEPS:
            stack.enter_context(mock.patch.object(owner, name, counted(getattr(owner, name))))
        yield


class Outputs(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        for path in world().iterdir():
            shutil.rmtree(path)
        self.version = 0
        self.foreign: dict[Path, bytes] = {}
        self.begun = 0  # runs
        self.drops = 0
        (world() / "shelf").mkdir()
        for folder in SOURCES:
            (world() / folder).mkdir()
            (world() / folder / "config.json").write_text('{"model_type": "llama"}')
            (world() / folder / "generation_config.json").write_text("{}")
        self.change_source()

    @rule()
    def change_source(self) -> None:
        self.version += 1
        for folder, more in SOURCES.items():
            path = world() / folder / "model.safetensors"
            arrays = {n: np.full(s, self.version + more, np.float32) for n, s in SHAPES.items()}
            save_file(arrays, path.with_suffix(".new"))
            os.utime(path.with_suffix(".new"), ns=(self.version * 10**9,) * 2)
            path.with_suffix(".new").replace(path)

    @rule(
        where=st.sampled_from(
            [f"{t}/notes.txt" for t in sorted({*RUNS.values()})]
            + [f"{SHELF}/sub/notes.txt", f"{SHELF}.partial/x", f"{SHELF}.replaced/x", "shelf/.model.weightmill.lock"]
            + [SHELF, "shelf/notes.txt", "out/a/errors.csv", "out/b/config.yaml", "out/c/notes.txt", "out/d/run.json"]
            + ["*.partial/notes.txt", "*.partial/model.safetensors.bak", "*.replaced/notes.txt"]
        )
    )
    def drop(self, where: str) -> None:
        """Somebody puts a file there, if nothing has that name; not among a run's own records."""
        folder, _, name = where.rpartition("/")
        folders = sorted((world() / "shelf").glob(folder)) if "*" in folder else [world() / folder]
        for path in (f / name for f in folders[:1]):
            records = path.parent.parent == world() / "out" and (path.parent / "run.json").exists()
            if not os.path.lexists(path) and not (records and path.suffix != ".txt") and free(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
                self.drops += 1
                self.foreign[path] = f"precious {self.drops}".encode()
                path.write_bytes(self.foreign[path])

    @rule()
    def tidy(self) -> None:
        """Somebody takes all of it away again."""
        for path in self.foreign:
            path.unlink()
            if not any(path.parent.iterdir()) and path.parent != world() / "shelf":
                path.parent.rmdir()
        self.foreign.clear()

    @rule(name=st.sampled_from(sorted(RUNS)))
    def take_away(self, name: str) -> None:
        """Somebody moves a finished export to where nobody looks."""
        path = world() / RUNS[name]
        if (path / MARKER).is_file() and not any(p.is_relative_to(path) for p in self.foreign):
            shutil.rmtree(path)

    @rule(name=st.sampled_from(sorted(RUNS)), overwrite=st.booleans())
    def run(self, name: str, overwrite: bool) -> None:
        """One run to its end, or until it is refused."""
        before = held(world() / RUNS[name])
        try:
            self.executed(name, overwrite)
        except WeightmillError:
            assert overwrite or held(world() / RUNS[name]) == before

    @rule(
        name=st.sampled_from(sorted(RUNS)), other=st.sampled_from(sorted(RUNS)), overwrite=st.booleans(),
        what=st.sampled_from(["kill", "kill", "run", "overwriting run", "drop", "change"]), step=st.integers(1, 30),
        where=st.sampled_from([f"{SHELF}/notes.txt", SHELF, "*.partial/notes.txt", "*.replaced/x", f"{SHELF}/sub/x"]),
    )  # fmt: skip
    def disturbed(self, name: str, other: str, overwrite: bool, what: str, step: int, where: str) -> None:
        """Something happens before one of the steps on disk of a run: a kill, another run, a file, a new source."""

        def happens() -> None:
            if what == "kill":
                raise Killed
            if what == "drop":
                self.drop(where)
            elif what == "change":
                self.change_source()
            elif other != name:
                self.run(other, what == "overwriting run")

        with suppress(WeightmillError, Killed), at_step(step, happens):
            self.executed(name, overwrite)

    @rule(
        pair=st.sampled_from(["ab", "ba", "aa"]), overwrite=st.tuples(st.booleans(), st.booleans()),
        step=st.integers(12, 26), killed=st.integers(8, 30),
    )  # fmt: skip
    def at_once(self, pair: str, overwrite: tuple[bool, bool], step: int, killed: int) -> None:
        """In the middle of one run another that writes the same target, which may be killed before its end."""

        def happens() -> None:
            def kill() -> None:
                raise Killed

            with suppress(WeightmillError, Killed), at_step(killed, kill):
                self.executed(pair[1], overwrite[1])

        with suppress(WeightmillError), at_step(step, happens):
            self.executed(pair[0], overwrite[0])

    def executed(self, name: str, overwrite: bool) -> None:
        """Run it; when it is done, the target must hold exactly the source, as it was when the run began."""
        found, target = config(name), world() / RUNS[name]
        version = self.version + SOURCES[READS[name]]
        self.begun = begun = self.begun + 1

        def done(*args: Any) -> Report:
            """While the target is still locked: later another run may be let in."""
            self.follow()
            assert {p.name for p in target.rglob("*") if p.is_file() and p not in self.foreign} == FILES
            assert held(target) == {version}
            return build_report(*args)

        run = replace(found, spine=replace(found.spine, overwrite=overwrite))
        with mock.patch("pipeline.running.attempt.build_report", done):
            report = execute(run, world() / "out" / name, [], Events())
        if report.reused and self.begun == begun:  # it holds no target that another run could not have
            assert held(target) == {version}

    def follow(self) -> None:
        """A file that somebody put into a partial folder right before its rename went along, and is there now."""
        for path in [p for p in self.foreign if not os.path.lexists(p) and p.parent.name.endswith(".partial")]:
            for target in RUNS.values():
                if (now := world() / target / path.name).is_file() and now.read_bytes() == self.foreign[path]:
                    self.foreign[now] = self.foreign.pop(path)
                    break

    @invariant()
    def nothing_foreign_is_touched(self) -> None:
        if hasattr(self, "foreign"):
            self.follow()
        for path, content in getattr(self, "foreign", {}).items():
            assert path.read_bytes() == content, path

    @invariant()
    def nothing_is_mixed(self) -> None:
        for target in {*RUNS.values()}:
            if (world() / target / MARKER).exists():
                assert len(held(world() / target)) == 1, target


def held(target: Path) -> set[int]:
    """The versions of the source whose values lie there; empty when none does."""
    file = target / "model.safetensors"
    arrays = load_file(file).values() if file.is_file() else ()
    return {int(v) for array in arrays for v in np.unique(array)}


def free(folder: Path) -> bool:
    """Whether a file can be put into `folder`, which may have to be made."""
    return all(not os.path.lexists(p) or p.is_dir() for p in (folder, *folder.parents))


def test_outputs_are_safe_whatever_happens(thorough: bool) -> None:
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    how = settings(
        max_examples=60 if thorough else 15, stateful_step_count=12, deadline=None, suppress_health_check=quiet
    )  # fmt: skip
    try:
        run_state_machine_as_test(Outputs, settings=how)
    finally:
        shutil.rmtree(world(), ignore_errors=True)
        world.cache_clear()
        config.cache_clear()
