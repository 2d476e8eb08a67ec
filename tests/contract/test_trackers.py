"""What MLflow's SQLite store and Trackio's have of runs, read back by these libraries, is what they were told."""

import json
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.testing.tracker import FOLDER, TrackerContract
from pipeline.tracker import Tracker, told

pytestmark = pytest.mark.filterwarnings("ignore")  # of their libraries

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
