"""`tracker=` tells somebody of runs: what is told, to whom, and what happens when that fails."""

import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.points import files
from pipeline.records.points import points as metrics
from pipeline.records.run import read
from pipeline.running.point_reader import of_run
from pipeline.running.tracking import told_of
from tests.cli.run import Said, end, kill_tree, pipeline, start

NOTES = '''
"""Writes down what it is told; fails where it is asked to."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Notes:
    file: str
    fails: str = ""
    slow_s: float = 0.0
    required: bool = False
    weights: bool = False
    patience_s: float = 20.0

    @property
    def place(self):
        return f"notes in {self.file} at https://me:hidden@there"

    @property
    def host_nbytes(self):
        return 1

    @property
    def needs(self):
        return {"a_package_that_nobody_has": "acme[notes]"} if self.fails == "import" else {}

    def _write(self, what, tracked, given):
        if self.fails == what:
            raise ConnectionError(f"{what}: nobody answers https://me:hidden@there?token=abc")
        time.sleep(self.slow_s)
        with open(self.file, "a") as file:
            file.write(json.dumps([what, tracked, given]) + "\\n")

    def begin(self, run, known=""):
        tracked = known or f"{run.name}@{time.time()}"
        given = {"known": known, "parent": run.parent, "sweep": run.sweep}
        given |= {"config": dict(run.config), "tags": dict(run.tags)}
        self._write("begin", tracked, given)
        return tracked

    def last(self, tracked, names):
        self._write("last", tracked, [])
        found = {}
        for line in Path(self.file).read_text().splitlines():
            what, of, given = json.loads(line)
            if (what, of) == ("log", tracked):
                for name, value, step, time_s, unit in given:
                    if name in names:
                        found[name] = max(found.get(name, 0), step)
        return found

    def log(self, tracked, points):
        self._write("log", tracked, [[p.name, p.value, p.step, p.time, p.unit] for p in points])

    def files(self, tracked, files):
        self._write("files", tracked, {name: Path(path).stat().st_size for name, path in files.items()})

    def end(self, tracked, state):
        self._write("end", tracked, state)
'''
CONVERT = ("+model=gpt_oss", "flow=convert", "quant=mxfp4", "progress=false")
TRAIN = ("experiment=digits", "stages=[init,train]", "train.look.every=200", "progress=false")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a tracker of one's own, which joins by its name."""
    (tmp_path / "mine" / "plugins" / "trackers").mkdir(parents=True)
    (tmp_path / "mine" / "tracker").mkdir()
    (tmp_path / "mine" / "plugins" / "trackers" / "notes.py").write_text(NOTES)
    options = "fails: ''\nslow_s: 0.0\nrequired: false\nweights: false\npatience_s: 20.0\n"
    file = f"_target_: plugins.trackers.notes.Notes\nfile: {tmp_path}/notes.jsonl\n"
    (tmp_path / "mine" / "tracker" / "notes.yaml").write_text(file + options)
    return tmp_path


def ran(mine: Path, *words: str, name: str = "one", **more: Any) -> Said:
    where = () if "-m" in words else (f"paths.run={mine}/runs/{name}",)
    typed = ("--config-dir", f"{mine}/mine", "tracker=notes", f"paths.outputs={mine}/runs", *where)
    return pipeline(*words, *typed, **more)


def notes(mine: Path) -> list[tuple[str, str, Any]]:
    return [(what, of, given) for what, of, given in map(json.loads, (mine / "notes.jsonl").read_text().splitlines())]


def told(mine: Path, what: str) -> list[Any]:
    return [given for said, _, given in notes(mine) if said == what]


def points(mine: Path) -> list[tuple[str, int, float]]:
    return [(name, step, value) for given in told(mine, "log") for name, value, step, _, _ in given]


def rows(run: Path) -> list[tuple[str, int, float]]:
    """What the run's folder has, as points."""
    found = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["kind"] in ("train", "held_out"):
            about = ("kind", "step", "time", "stage")
            found += [(f"{row['kind']}/{n}", row["step"], float(v)) for n, v in row.items() if n not in about]
    return found


def test_a_run(mine: Path) -> None:
    said = ran(mine, *CONVERT)
    assert said.code == 0, said.err
    settings = len(told(mine, "begin")[0]["config"])
    assert re.search(rf"tracked: notes in .*: 5 points, {settings} params, \d artifacts$", said.out, re.MULTILINE)
    assert "hidden" not in said.out + said.err
    assert [what for what, _, _ in notes(mine)] == ["begin", "log", "files", "end"]
    [begun] = told(mine, "begin")
    assert begun["config"]["stages.quantize.method.element"] == "e2m1"
    assert begun["tags"]["folder"] == f"{mine}/runs/one"
    names = {name: value for name, _, value in points(mine)}
    manifest = json.loads((mine / "runs" / "one" / "manifest.json").read_text())
    assert {*names} == {"size", "bits a weight", "SQNR", "RMSE", "max abs"}
    assert names["size"] == manifest["nbytes_out"]
    [files] = told(mine, "files")
    assert {"manifest.json", "config.yaml", "errors.csv", "metrics.jsonl", "run.json"} <= {*files}
    assert not any("safetensors" in name or name.startswith(".") for name in files)
    assert told(mine, "end") == ["complete"]
    assert manifest["tracked"]["run"] == notes(mine)[0][1]
    assert "hidden" not in json.dumps(manifest["tracked"])


@pytest.mark.repeats
def test_changes_no_key_and_no_name(mine: Path) -> None:
    """A run that is complete is not made again for a tracker, but it is told of, once."""
    where = (f"paths.outputs={mine}/runs", "progress=false")
    said = pipeline("+model=gpt_oss", "flow=convert", "quant=mxfp4", *where)
    assert said.code == 0, said.err
    before = sorted(f.name for f in (mine / "runs").iterdir())
    for _ in range(2):
        typed = ("--config-dir", f"{mine}/mine", "+model=gpt_oss", "tracker=notes", "flow=convert", "quant=mxfp4")
        said = pipeline(*typed, *where)
        assert said.code == 0, said.err
        assert sorted(f.name for f in (mine / "runs").iterdir()) == before
    assert [what for what, _, _ in notes(mine)] == ["begin", "log", "files", "end"]


def test_weights_when_asked(mine: Path) -> None:
    assert ran(mine, *CONVERT, "tracker.weights=true").code == 0
    [files] = told(mine, "files")
    assert files["export/model.safetensors"] > 1_000_000


@pytest.mark.parametrize("fails", ["begin", "log", "files", "end"])
@pytest.mark.brief("begin", "log", "files")
def test_a_tracker_that_fails(mine: Path, fails: str) -> None:
    """The run goes on, says so in one line and in its manifest; the next time, all is told."""
    said = ran(mine, *CONVERT, f"tracker.fails={fails}")
    assert said.code == 0, said.err
    lines = [line for line in said.err.splitlines() if "nobody answers" in line]
    assert len(lines) == 1, said.err
    assert "the run goes on" in said.err
    assert "hidden" not in said.err
    assert "abc" not in said.err
    [tracked] = [line for line in said.out.splitlines() if line.startswith("tracked:")]
    missing = {"begin": "5 points, ", "log": "5 points, ", "files": r"\d artifacts; ", "end": "how it ended; "}
    assert re.search(
        rf"{': nothing' if fails == 'begin' else '(params|artifacts)'}; not told: {missing[fails]}", tracked
    ), tracked
    assert tracked.endswith("; the same command tells it later")
    manifest = json.loads((mine / "runs" / "one" / "manifest.json").read_text())
    assert f"{fails}: nobody answers" in manifest["tracked"]["problem"]
    assert "hidden" not in json.dumps(manifest["tracked"])
    said = ran(mine, *CONVERT)
    assert said.code == 0, said.err
    assert told(mine, "end") == ["complete"]
    manifest = json.loads((mine / "runs" / "one" / "manifest.json").read_text())
    assert "problem" not in manifest["tracked"]


@pytest.mark.parametrize("fails", ["begin", "log", "files", "end"])
@pytest.mark.brief("begin", "end")
def test_a_tracker_that_is_required(mine: Path, fails: str) -> None:
    said = ran(mine, *CONVERT, f"tracker.fails={fails}", "tracker.required=true")
    assert said.code == 6
    assert "tracker.required=true" in said.err
    assert not (mine / "runs" / "one" / "manifest.json").exists()
    said = ran(mine, *CONVERT, "tracker.required=true")
    assert said.code == 0, said.err
    assert told(mine, "end")[-1] == "complete"


def test_a_tracker_that_never_answers(mine: Path) -> None:
    said = ran(mine, *CONVERT, "tracker.slow_s=60", "tracker.patience_s=0.5")
    assert said.code == 0, said.err
    assert "has not answered for 0.5 s" in " ".join(said.err.split())
    manifest = json.loads((mine / "runs" / "one" / "manifest.json").read_text())
    assert "has not answered" in manifest["tracked"]["problem"]


def test_what_is_not_installed(mine: Path) -> None:
    """Is a problem of the plan, before anything is done."""
    said = ran(mine, "plan", *CONVERT, "tracker.fails=import")
    assert said.code == 3
    assert "pip install 'acme[notes]'" in said.err
    assert not (mine / "runs" / "one").exists()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tracker=mlfow", "mlflow"),
        ("tracker.urii=x", "tracker"),
        ("tracker.required=perhaps", "true or false"),
        ("tracker.patience_s=0", "more than 0"),
        ("tracker.uri=htpp://a:5000", "did you mean 'http'"),
        ("tracker.run_nam=x", "did you mean 'run_name'?"),
        ("+tracker.tag.team=vision", "MLflow has no field 'tag'; did you mean 'tags'?"),
        ("+tracker.tags.team=[vision]", "tracker.tags.team: text is expected"),
        ("tracker.experiment=''", "a name is expected"),
    ],
)
def test_what_was_mistyped(tmp_path: Path, typed: str, said: str) -> None:
    words = () if typed.startswith("tracker=") else ("tracker=mlflow",)
    found = pipeline("plan", *CONVERT, *words, typed, f"paths.run={tmp_path}/one")
    assert found.code == 2
    assert said in " ".join(found.err.split())


def test_a_training(mine: Path) -> None:
    """Every point once, equal to what the folder has, told while it goes."""
    said = ran(mine, *TRAIN, "train.steps=9")
    assert said.code == 0, said.err
    of_updates = [point for point in points(mine) if "/" in point[0]]
    assert of_updates == rows(mine / "runs" / "one")


def test_a_sweep(mine: Path) -> None:
    """Its jobs are below it; one that fails is told as that, and so is the sweep."""
    said = ran(mine, "-m", "+model=gpt_oss", "flow=convert", "quant=mxfp4,int8", "progress=false")
    assert said.code == 0, said.err
    begun = {of: given for what, of, given in notes(mine) if what == "begin"}
    [sweep] = [of for of, given in begun.items() if given["sweep"]]
    jobs = [of for of, given in begun.items() if not given["sweep"]]
    assert len(jobs) == 2
    assert all(begun[job]["parent"] == sweep for job in jobs)
    assert {of: state for what, of, state in notes(mine) if what == "end"} == dict.fromkeys([*jobs, sweep], "complete")
    [files] = [given for what, of, given in notes(mine) if (what, of) == ("files", sweep)]
    assert {"sweep.csv", "multirun.yaml"} <= {*files}
    assert "hidden" not in said.out + said.err
    assert re.search(r"tracked: notes in .*: 2 of 2 runs$", said.err, re.MULTILINE)


def test_a_run_that_fails(mine: Path) -> None:
    said = ran(mine, *TRAIN, "train.steps=8", "train.optimizer.rate=1e30", "train.optimizer.decay=0",
               "train.optimizer.schedule.warmup=0")  # fmt: skip
    assert said.code == 6, said.err
    assert told(mine, "end") == ["failed"]


def waited(mine: Path, updates: int, process: Any) -> None:
    until = time.monotonic() + 100
    while time.monotonic() < until and process.poll() is None:
        if (mine / "notes.jsonl").exists() and sum(p[0] == "train/loss" for p in points(mine)) >= updates:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {updates} updates were told: {process.poll()}")


def begun(mine: Path, *words: str) -> Any:
    typed = (
        "--config-dir",
        f"{mine}/mine",
        "tracker=notes",
        f"paths.outputs={mine}/runs",
        f"paths.run={mine}/runs/one",
    )
    return start(*words, *typed)


LONG = (*TRAIN, "train.steps=450", "train.save.every=50")


@pytest.mark.repeats
def test_a_run_that_is_stopped_says_so(mine: Path) -> None:
    process = begun(mine, *LONG)
    waited(mine, 100, process)
    os.kill(process.pid, signal.SIGTERM)
    assert end(process).code == 143
    assert told(mine, "end") == ["killed"]


def test_a_run_that_was_killed_goes_on(mine: Path) -> None:
    """In the same run there, with no point twice, though it does some updates once more; and until then, any other run
    says that it was killed."""
    process = begun(mine, *LONG)
    waited(mine, 120, process)
    kill_tree(process.pid)
    process.communicate()
    killed = notes(mine)[0][1]
    assert told(mine, "end") == []
    said = ran(mine, *CONVERT, name="two")
    assert said.code == 0, said.err
    assert ("end", killed, "killed") in notes(mine)
    said = ran(mine, *LONG)
    assert said.code == 0, said.err
    again = [given["known"] for what, of, given in notes(mine) if what == "begin" and of == killed]
    assert again == ["", killed]
    every = [p for what, of, given in notes(mine) if (what, of) == ("log", killed) for p in given if p[2] is not None]
    seen = {(name, step): value for name, value, step, _, _ in every}
    assert len(seen) == len(every)
    have = {(name, step): value for name, step, value in rows(mine / "runs" / "one")}
    assert {at for at in have if at not in seen} == set()
    assert {name for name, _ in {*seen} - {*have}} <= {"train/examples_per_s"}  # which the first update after it lacks
    timed = ("train/seconds", "train/examples_per_s")
    assert all(have[at] == value for at, value in seen.items() if at[0] not in timed)


@pytest.mark.repeats
def test_several_processes_are_one_run(mine: Path) -> None:
    """Workers of a cluster tell nobody anything; the command does."""
    said = ran(mine, *TRAIN, "train.steps=4", "dask=distributed", "dask.workers=1")
    assert said.code == 0, said.err
    assert len(told(mine, "begin")) == 1
    assert [p for p in points(mine) if "/" in p[0]] == rows(mine / "runs" / "one")


@pytest.mark.filterwarnings("ignore")  # of their libraries
@pytest.mark.parametrize("tracker", ["mlflow", "trackio"])
def test_real_ones(tmp_path: Path, tracker: str) -> None:
    """A sweep of trainings, read back by the library."""
    said = pipeline(
        "-m", *TRAIN, "train.steps=5", "seed=0,1", f"tracker={tracker}", f"paths.outputs={tmp_path}", timeout_s=300
    )
    assert said.code == 0, said.err
    assert "warn" not in said.err.lower()
    runs = sorted(f.parent for f in tmp_path.glob("*/manifest.json"))
    assert len(runs) == 2
    for run in runs:
        tracked = json.loads((run / "tracker.json").read_text())["tracked"]
        found = (_of_mlflow if tracker == "mlflow" else _of_trackio)(tmp_path, tracked)
        assert sorted(found) == sorted(rows(run))


@pytest.mark.repeats
@pytest.mark.filterwarnings("ignore")  # of their libraries
def test_a_run_that_was_killed_anywhere_is_whole_in_mlflow(tmp_path: Path) -> None:
    """Every point of the folder is there once, by its step; what `monitor=` saw with its time too."""
    run, seed = tmp_path / "one", random.randrange(1 << 32)
    typed = (*TRAIN, "train.steps=250", "train.save.every=50", "monitor=0.05", "tracker=mlflow", f"paths.run={run}")
    often = random.Random(seed)
    for at_least in (often.randint(1, 300), often.randint(300, 1200)):
        process, until = start(*typed, f"paths.outputs={tmp_path}"), time.monotonic() + 100
        while process.poll() is None and time.monotonic() < until:
            if (at := told_of(run)) is not None and at.points >= at_least:
                break
            time.sleep(often.uniform(0.01, 0.05))
        assert process.poll() is None, (seed, process.communicate())
        kill_tree(process.pid)
        process.communicate()
    said = pipeline(*typed, f"paths.outputs={tmp_path}")
    assert said.code == 0, said.err
    have = Counter((p.name, p.step, round(1000 * p.time)) for f in files(run) for p in of_run(metrics(f)))
    from plugins.trackers.mlflow import MLflow, _name

    client, at = MLflow(f"sqlite:///{tmp_path}/mlflow.db", "weightmill")._client, told_of(run)
    assert at is not None
    seen: Counter[tuple[str, int | None, int]] = Counter()
    for name in {name for name, _, _ in have}:
        seen.update((name, m.step, m.timestamp) for m in client.get_metric_history(at.tracked, _name(name)))
    steps = Counter((name, step) for name, step, _ in seen.elements())
    assert max(steps.values()) == 1, seed
    assert {(name, step) for name, step, _ in have} <= {*steps}, seed
    more = {*steps} - {(name, step) for name, step, _ in have}
    assert {name for name, _ in more} <= {"train/examples_per_s"}, seed  # which the first update after it lacks
    looks = [one for one in have if one[0].startswith("system/")]
    assert len(looks) > 20
    assert all(seen[one] == 1 for one in looks), seed  # updates that were done again were told of the first time
    assert at.state == "complete"
    assert at.points == have.total() + len(read(run).metrics)


def _of_mlflow(place: Path, tracked: str) -> Sequence[tuple[str, int, float]]:
    from plugins.trackers.mlflow import MLflow

    client = MLflow(f"sqlite:///{place}/mlflow.db", "weightmill")._client
    run = client.get_run(tracked)
    assert run.info.status == "FINISHED"
    above = client.get_run(run.data.tags["mlflow.parentRunId"])
    assert above.info.run_name.startswith("sweep-")
    assert above.data.tags["folder"].endswith(above.info.run_name)
    names = [name for name in run.data.metrics if "/" in name]
    return [(name, m.step, m.value) for name in names for m in client.get_metric_history(tracked, name)]


def _of_trackio(place: Path, tracked: str) -> Sequence[tuple[str, int, float]]:
    """By its own program, in a process of its own: its folder is the process's."""
    import subprocess
    import sys

    code = (
        "import sys, json; from trackio.sqlite_storage import SQLiteStorage; "
        "rows = SQLiteStorage.get_logs('weightmill', run_id=sys.argv[1]); "
        "print(json.dumps([{k: v for k, v in row.items() if k != 'timestamp'} for row in rows]))"
    )
    env = {**os.environ, "TRACKIO_DIR": str(place / "trackio")}
    rows = json.loads(
        subprocess.run([sys.executable, "-c", code, tracked], env=env, capture_output=True, check=True).stdout
    )
    return [(name, row["step"], value) for row in rows for name, value in row.items() if "/" in name]
