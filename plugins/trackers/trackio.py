"""Trackio, by its own store on this machine: a run for each of ours, in the group of the sweep that it is of.

Its `init` would start a dashboard and threads that measure the machine, and ask who is logged in to a hub; its
`SQLiteStorage` is what all of that writes with. It has no state of a run, which therefore is a row `{"state": …}`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.tracker import Point, State, Tracked, told

HOST_NBYTES = 60 << 20  # with its libraries imported and 5,000 points told, 48 MiB were measured
# Nobody is told how it is used; what is set already stays.
SETTINGS = {"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_DISABLE_TELEMETRY": "1"}


@dataclass(frozen=True)
class Trackio:
    """See `pipeline.tracker.Tracker`.

    Attributes:
        folder: where its projects lie, which Trackio calls TRACKIO_DIR.
        project: that runs are of.
        run_name: what a run is called; empty: as its folder.
        tags: settings of every run, beside ours, as `run.NAME`: it has no tags.
    """

    folder: str
    project: str
    run_name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    required: bool = False
    weights: bool = False
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.project.strip() or not self.project.replace("-", "").replace("_", "").isalnum():
            raise ValueError(f"project {self.project!r}: letters, digits, - and _ are expected")
        if not self.patience_s > 0:
            raise ValueError(f"patience_s {self.patience_s}: seconds are expected, more than 0")

    @property
    def place(self) -> str:
        return f"Trackio in {self._folder}, project {self.project}"

    @property
    def host_nbytes(self) -> int:
        return HOST_NBYTES

    @property
    def needs(self) -> Mapping[str, str]:
        return {"trackio": "weightmill[trackio]"}

    def begin(self, run: Tracked, known: str = "") -> str:
        if run.sweep:  # a group is nothing but its name
            return run.name
        there = bool(known) and self._run_name(known) is not None
        tracked = known if there else f"{run.id}-{run.token or f'{datetime.now(UTC):%Y%m%dT%H%M%S%f}'}"
        if not there and tracked == known:  # it is gone there, and this is another
            tracked += "-again"
        began = datetime.now(UTC).timestamp() if self._run_name(tracked) is not None else run.started
        self._names[tracked] = self.run_name or run.name
        plain = (bool, int, float)
        config: dict[str, Any] = {
            key: value if isinstance(value, plain) else told(value) for key, value in run.config.items()
        }
        config |= {f"run.{key}": text for key, text in (dict(run.tags) | dict(self.tags)).items()}
        config |= {"_Group": run.parent, "_Created": _said(run.started)}
        self._log(tracked, [{"state": "running"}], [0], [began], [f"running {began}"], config)
        return tracked

    def last(self, tracked: str, names: Sequence[str]) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for row in self._storage.get_logs(self.project, run_id=tracked):
            for name in {*names} & {*row}:
                found[name] = max(found.get(name, 0), int(row["step"]))
        return found

    def log(self, tracked: str, points: Sequence[Point]) -> None:
        rows: dict[tuple[int | None, float], dict[str, float]] = {}
        for point in points:
            rows.setdefault((point.step, point.time), {})[point.name] = point.value
        steps = [step or 0 for step, _ in rows]
        ids = [f"{time if step is None else step}/{'/'.join(sorted(row))}" for (step, time), row in rows.items()]
        self._log(tracked, [*rows.values()], steps, [time for _, time in rows], ids)

    def files(self, tracked: str, files: Mapping[str, Path]) -> None:
        if not files:
            return
        storage = self._storage
        from trackio import cas  # after its folder was said: it is read as any module of Trackio is imported

        name = self._run_name(tracked)
        manifest = []
        for path, file in files.items():
            digest, nbytes = cas.stage_blob_into_project(file, self.project)
            manifest.append({"path": path, "digest": digest, "size": nbytes})
        storage.commit_artifact_version(
            project=self.project, name=f"run-{tracked}", type="run", description=name, manifest=manifest,
            metadata=None, aliases=[], run_name=name, run_id=tracked,
        )  # fmt: skip

    def end(self, tracked: str, state: State) -> None:
        if self._run_name(tracked) is not None:
            now = datetime.now(UTC).timestamp()
            self._log(tracked, [{"state": state}], [0], [now], [f"{state} {now}"])

    @cached_property
    def _names(self) -> dict[str, str]:
        return {}

    def _run_name(self, tracked: str) -> str | None:
        if tracked not in self._names:
            self._names.update((r["id"], str(r["name"])) for r in self._storage.get_run_records(self.project))
        return self._names.get(tracked)

    def _log(
        self, tracked: str, rows: Sequence[Mapping[str, Any]], steps: Sequence[int], times: Sequence[float],
        ids: Sequence[str], config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """A row that has the id of one that is there is not added."""
        self._storage.bulk_log(
            self.project, self._run_name(tracked) or tracked, [dict(row) for row in rows], [*steps],
            [_said(time) for time in times], config and dict(config), [f"{tracked}/{one}" for one in ids],
            run_id=tracked,
        )  # fmt: skip

    @property
    def _folder(self) -> Path:
        return Path(os.path.expanduser(self.folder)).absolute()

    @property
    def _storage(self) -> Any:
        """What it writes with; nothing of Trackio is imported before this was asked for.

        Raises:
            StorageError: Trackio keeps what it has elsewhere already, in this process.
        """
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        os.environ.setdefault("TRACKIO_DIR", str(self._folder))
        from trackio.sqlite_storage import SQLiteStorage
        from trackio.utils import TRACKIO_DIR

        if Path(TRACKIO_DIR).absolute() != self._folder:
            raise StorageError(
                f"tracker.folder={self._folder}: Trackio has {TRACKIO_DIR} in this process, by TRACKIO_DIR or an "
                "earlier run; it takes one folder in a process"
            )
        return SQLiteStorage


def _said(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()
