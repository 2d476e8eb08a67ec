"""What MLflow's SQLite store and Trackio's have of runs, read back by these libraries, is what the runs' folders have."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.run import read
from pipeline.running.tracking import points_of
from pipeline.testing.tracker import TrackerContract
from pipeline.tracker import Tracker, told
from tests.cli.run import ROOT, kill_tree, pipeline, start

pytestmark = pytest.mark.filterwarnings("ignore")  # of their libraries

QUICK = ("experiment=digits", "stages=[init,train]", "train.steps=6", "train.look.every=2", "progress=false")
ENDED = {"FINISHED": "complete", "FAILED": "failed", "KILLED": "killed", "RUNNING": "running"}


class TestMLflow(TrackerContract):
    def tracker(self, place: Path) -> Tracker:
        from plugins.trackers.mlflow import MLflow

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


class TestTrackio(TrackerContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One folder is a process's; here every test has its own."""
        from trackio import cas, sqlite_storage, utils

        place = tmp_path / "a place"
        for module in (cas, sqlite_storage, utils):
            for name, path in (("TRACKIO_DIR", place), ("ARTIFACTS_DIR", place / "artifacts"), ("MEDIA_DIR", place / "media")):
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

        found = SQLiteStorage.get_run_config("tests", FOLDER_NAME, run_id=tracked)
        return {key: told(value) for key, value in (found or {}).items()}

    def state(self, tracker: Tracker, tracked: str) -> str:
        return str([row["state"] for row in sorted(self.rows(tracked), key=lambda r: r["timestamp"]) if "state" in row][-1])

    def contents(self, tracker: Tracker, tracked: str) -> Mapping[str, bytes]:
        from trackio import cas
        from trackio.sqlite_storage import SQLiteStorage

        rows = SQLiteStorage.query_project("tests", "SELECT * FROM artifact_versions")
        [version] = rows["rows"] if isinstance(rows, dict) else rows
        manifest = json.loads(version["manifest"])
        return {e["path"]: cas.blob_path("tests", e["digest"]).read_bytes() for e in manifest}

    def parent(self, tracker: Tracker, tracked: str) -> str:
        from trackio.sqlite_storage import SQLiteStorage

        return str((SQLiteStorage.get_run_config("tests", FOLDER_NAME, run_id=tracked) or {}).get("_Group"))


FOLDER_NAME = "run-1"
