"""What MLflow's SQLite store and Trackio's have of runs, read back by these libraries, is what they were told."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.running.tracking import Tracking, told_of
from pipeline.testing.tracker import FOLDER, TrackerContract
from pipeline.tracker import Tracked, Tracker, told
from tests.cases.written_runs import write

pytestmark = pytest.mark.filterwarnings("ignore")  # of their libraries

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path

from mlflow import MlflowClient

from pipeline.running.tracking import Tracking
from pipeline.tracker import Tracked
from plugins.trackers.mlflow import MLflow

create = MlflowClient.create_run

def killed(*args, **kwargs):
    create(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

MlflowClient.create_run = killed
database, id, folder = sys.argv[1:]
Tracking(MLflow(f"sqlite:///{database}", "tests"), Tracked(id, "run-1", Path(folder), 0.0), print).catch_up()
"""  # a command that is killed once MLflow has made the run
ENDED = {"FINISHED": "complete", "FAILED": "failed", "KILLED": "killed", "RUNNING": "running"}


class TestMLflow(TrackerContract):
    empty: Path

    @pytest.fixture(autouse=True, scope="class")
    def _made(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
        """Tables of a store, which MLflow takes seconds to make."""
        from plugins.trackers.mlflow import MLflow

        request.cls.empty = tmp_path_factory.mktemp("mlflow") / "runs.db"
        MLflow(f"sqlite:///{request.cls.empty}", "tests")._client.search_experiments()

    def tracker(self, place: Path) -> Tracker:
        from plugins.trackers.mlflow import MLflow

        place.mkdir(exist_ok=True)
        if not (place / "runs.db").exists():
            shutil.copyfile(self.empty, place / "runs.db")
        return MLflow(f"sqlite:///{place}/runs.db", "tests")

    def client(self, tracker: Any) -> Any:
        return tracker._client

    def points(self, tracker: Tracker, tracked: str, name: str) -> list[tuple[int, float]]:
        from plugins.trackers.mlflow import _name

        return [(m.step, m.value) for m in self.client(tracker).get_metric_history(tracked, _name(name))]

    def config(self, tracker: Tracker, tracked: str) -> Mapping[str, str]:
        found: dict[str, str] = self.client(tracker).get_run(tracked).data.params
        return found

    def state(self, tracker: Tracker, tracked: str) -> str:
        return ENDED[self.client(tracker).get_run(tracked).info.status]

    def contents(self, tracker: Tracker, tracked: str) -> Mapping[str, bytes]:
        root = Path(self.client(tracker).download_artifacts(tracked, ""))
        return {f.relative_to(root).as_posix(): f.read_bytes() for f in root.rglob("*") if f.is_file()}

    def parent(self, tracker: Tracker, tracked: str) -> str:
        return str(self.client(tracker).get_run(tracked).data.tags.get("mlflow.parentRunId", ""))

    def finite(self, value: float) -> float:
        return value if math.isnan(value) else math.copysign(sys.float_info.max, value)

    def test_names_and_tags(self, tmp_path: Path, run: Tracked) -> None:
        tracker = replace(self.tracker(tmp_path / "a place"), run_name="mine", tags={"team": "vision"})  # type: ignore[call-arg, type-var]
        tracked = tracker.begin(run)
        found = self.client(tracker).get_run(tracked)
        assert found.info.run_name == "mine"
        assert found.data.tags["team"] == "vision"
        assert found.data.tags["command"] == run.tags["command"]
        assert hash(tracker) == hash(replace(tracker, tags={}))  # type: ignore[call-arg, type-var]

    def test_a_run_that_was_deleted_there_is_begun_anew(self, one: Tracker, run: Tracked) -> None:
        tracked = one.begin(run)
        self.client(one).delete_run(tracked)
        assert one.begin(run, tracked) != tracked

    def test_an_experiment_that_was_deleted_there(self, one: Tracker, run: Tracked) -> None:
        one.begin(run)
        client = self.client(one)
        client.delete_experiment(client.get_experiment_by_name("tests").experiment_id)
        with pytest.raises(
            StorageError, match=r"tracker\.experiment=tests: was deleted there; mlflow experiments restore"
        ):
            self.tracker(run.folder.parent / "a place").begin(run)

    def test_a_run_that_was_killed_as_it_was_begun_is_found_again(self, tmp_path: Path, run: Tracked) -> None:
        """Between MLflow's own line of it and ours: what it has is one run, that goes on."""
        tracker = self.tracker(tmp_path / "a place")
        script = tmp_path / "killed.py"
        script.write_text(KILLED)
        run.folder.rmdir()
        write(run.folder, complete=False)
        said = [str(tmp_path / "a place" / "runs.db"), run.id, str(run.folder)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(
            [sys.executable, str(script), *said], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert (left := told_of(run.folder)) is not None
        assert not left.tracked
        with Tracking(tracker, run, print) as telling:
            telling.end("complete")
        client = self.client(tracker)
        [found] = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
        assert (found.info.run_id, found.info.status) == (telling.record["run"], "FINISHED")

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"uri": "htpp://a:1"}, "did you mean 'http'"), ({"uri": "http://"}, "http://HOST:PORT is expected"),
            ({"uri": "sqlite://runs.db"}, "sqlite:///FILE.db"), ({"uri": "runs.db"}, "sqlite:///FILE.db"),
            ({"uri": "ftp://me:hidden@there"}, r"ftp://\*\*\*@there"), ({"experiment": " "}, "experiment ' ': a name"),
            ({"patience_s": 0.0}, "patience_s 0.0: seconds are expected"),
            ({"uri": "sqlite:////tmp"}, "that is a folder"),
        ],
    )  # fmt: skip
    def test_what_it_refuses(self, given: dict[str, Any], said: str) -> None:
        from plugins.trackers.mlflow import MLflow

        with pytest.raises(ValueError, match=said):
            MLflow(**{"uri": "sqlite:///runs.db", "experiment": "tests", **given})


class TestTrackio(TrackerContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One folder is a process's; here every test has its own."""
        from trackio import cas, sqlite_storage, utils

        place = tmp_path / "a place"
        for module in (cas, sqlite_storage, utils):
            places = {"TRACKIO_DIR": place, "ARTIFACTS_DIR": place / "artifacts", "MEDIA_DIR": place / "media"}
            for name, path in places.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, path)
        monkeypatch.setenv("TRACKIO_DIR", str(place))

    def tracker(self, place: Path) -> Tracker:
        from plugins.trackers.trackio import Trackio

        return Trackio(str(place), "tests")

    def rows(self, tracked: str) -> list[dict[str, Any]]:
        from trackio.sqlite_storage import SQLiteStorage

        return [*SQLiteStorage.get_logs("tests", run_id=tracked)]

    def points(self, tracker: Tracker, tracked: str, name: str) -> list[tuple[int, float]]:
        return [(row["step"], float(row[name])) for row in self.rows(tracked) if name in row]

    def config(self, tracker: Tracker, tracked: str) -> Mapping[str, str]:
        from trackio.sqlite_storage import SQLiteStorage

        found = SQLiteStorage.get_run_config("tests", FOLDER, run_id=tracked)
        return {key: told(value) for key, value in (found or {}).items()}

    def state(self, tracker: Tracker, tracked: str) -> str:
        rows = sorted(self.rows(tracked), key=lambda row: str(row["timestamp"]))
        return str([row["state"] for row in rows if "state" in row][-1])

    def contents(self, tracker: Tracker, tracked: str) -> Mapping[str, bytes]:
        from trackio import cas
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.query_project("tests", "SELECT * FROM artifact_versions")
        [version] = rows["rows"] if isinstance(rows, dict) else rows
        manifest = json.loads(version["manifest"])
        return {e["path"]: cas.blob_path("tests", e["digest"]).read_bytes() for e in manifest}

    def parent(self, tracker: Tracker, tracked: str) -> str:
        from trackio.sqlite_storage import SQLiteStorage

        return str((SQLiteStorage.get_run_config("tests", FOLDER, run_id=tracked) or {}).get("_Group"))

    def test_names_and_tags(self, tmp_path: Path, run: Tracked) -> None:
        from trackio.sqlite_storage import SQLiteStorage

        tracker = replace(self.tracker(tmp_path / "a place"), run_name="mine", tags={"team": "vision"})  # type: ignore[call-arg, type-var]
        tracked = tracker.begin(run)
        assert [(r["id"], r["name"]) for r in SQLiteStorage.get_run_records("tests")] == [(tracked, "mine")]
        assert (SQLiteStorage.get_run_config("tests", "mine", run_id=tracked) or {})["run.team"] == "vision"

    @pytest.mark.parametrize("first", ["files('one', {'a': Path('a')})", "end('one', 'killed')"])
    def test_whatever_a_process_tells_first_goes_to_its_folder(self, tmp_path: Path, first: str) -> None:
        """As a sweep does whose runs are complete: Trackio reads where its folder is as it is imported."""
        (tmp_path / "a").write_bytes(b"text")
        code = (
            "from pathlib import Path; from plugins.trackers.trackio import Trackio; "
            f"Trackio('trackio', 'tests').{first}; from trackio import utils; print(utils.TRACKIO_DIR)"
        )
        env = {name: value for name, value in os.environ.items() if name != "TRACKIO_DIR"} | {"HOME": str(tmp_path)}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(tmp_path / "trackio")

    def test_a_process_has_one_folder(self, tmp_path: Path, run: Tracked) -> None:
        with pytest.raises(StorageError, match="it takes one folder in a process"):
            self.tracker(tmp_path / "another").begin(run)
