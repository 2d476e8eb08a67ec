"""MLflow, by its `MlflowClient`: a run for each of ours, below one for the sweep that it is of.

MLflow has no unit of a metric, takes 1.8e308 for infinity, and names of letters, digits and `_-. :/` only: any other
name has `_` there, and a digest of what it was.
"""

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import xxhash

from pipeline.errors import StorageError, did_you_mean
from pipeline.redact import hide
from pipeline.tracker import Point, State, Tracked, told

# What one request may hold (MLflow's REST API, `runs/log-batch`), and characters of a value (mlflow.utils.validation).
MOST_METRICS, MOST_PARAMS, MOST_TAGS, LONGEST_PARAM, LONGEST_TAG, LONGEST_NAME = 1000, 100, 100, 6000, 5000, 250
SERVERS = ("http", "https", "databricks")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")  # mlflow.store.db.db_types
STATUS = {"complete": "FINISHED", "failed": "FAILED", "killed": "KILLED"}
SQLITE = "sqlite:///"
BY_TOKEN = "weightmill.token"  # noqa: S105  tag of a run, by which it is found again
HOST_NBYTES = 200 << 20  # with its libraries imported and 5,000 points told, 188 MiB were measured
# Nobody is told how it is used, and a server that does not answer is given up soon; what is set already stays.
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1", "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}  # fmt: skip


@dataclass(frozen=True)
class MLflow:
    """See `pipeline.tracker.Tracker`.

    Attributes:
        uri: of the tracking store.
        experiment: that runs are of; it is made where there is none.
        run_name: what a run is called; empty: as its folder.
        tags: of every run, and of sweeps, beside ours.
    """

    uri: str
    experiment: str
    run_name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)
    required: bool = False
    weights: bool = False
    patience_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.experiment.strip():
            raise ValueError(f"experiment {self.experiment!r}: a name is expected")
        scheme, _, rest = self.uri.partition("://")
        kind, known = scheme.partition("+")[0], (*SERVERS, *DATABASES)
        if kind not in known or not rest.strip("/") or (kind == "sqlite" and rest[:1] != "/"):
            near = did_you_mean(scheme, known) if rest and kind not in known else ""
            raise ValueError(f"uri {hide(self.uri)!r}: sqlite:///FILE.db or http://HOST:PORT is expected{near}")
        if kind == "sqlite" and os.path.isdir(rest[1:].partition("?")[0]):  # which SQLite tries again and again
            raise ValueError(f"uri {hide(self.uri)!r}: that is a folder; a file in it is sqlite:///FOLDER/FILE.db")
        if not self.patience_s > 0:
            raise ValueError(f"patience_s {self.patience_s}: seconds are expected, more than 0")

    @property
    def place(self) -> str:
        return f"MLflow at {hide(self.uri)}, experiment {self.experiment}"

    @property
    def host_nbytes(self) -> int:
        return HOST_NBYTES

    @property
    def needs(self) -> Mapping[str, str]:
        modules = ("mlflow", *(("sqlalchemy", "alembic") if self.uri.startswith(DATABASES) else ()))
        return dict.fromkeys(modules, "weightmill[mlflow]")

    def begin(self, run: Tracked, known: str = "") -> str:
        from mlflow.entities import Param, RunTag
        from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME, MLFLOW_SOURCE_NAME

        client, params = self._client, {key: _cut(told(value), LONGEST_PARAM) for key, value in run.config.items()}
        name = run.name if run.sweep else self.run_name or run.name
        tags = {**run.tags, MLFLOW_RUN_NAME: name, MLFLOW_SOURCE_NAME: "weightmill", "weightmill.run": run.id}
        if run.token:
            tags[BY_TOKEN] = run.token
        if run.parent:
            tags[MLFLOW_PARENT_RUN_ID] = run.parent
        tags = {_name(key): _cut(text, LONGEST_TAG) for key, text in (tags | dict(self.tags)).items()}
        given: Mapping[str, str] = {}
        if (there := (self._there(known) if known else None) or self._begun(run.token)) is not None:
            tracked, given = str(there.info.run_id), there.data.params  # which cannot be changed
            client.update_run(tracked, "RUNNING")
            client.log_batch(tracked, tags=[RunTag(key, text) for key, text in tags.items()])
        else:
            made = client.create_run(self._experiment, round(run.started * 1000), tags, name)
            tracked = str(made.info.run_id)
        new = [Param(name, text) for key, text in params.items() if (name := _name(key)) not in given]
        for at in range(0, len(new), MOST_PARAMS):
            client.log_batch(tracked, params=new[at : at + MOST_PARAMS])
        return tracked

    def _there(self, tracked: str) -> Any:
        """The run; None: it was deleted."""
        from mlflow.exceptions import MlflowException

        try:
            run = self._client.get_run(tracked)
        except MlflowException as why:
            if why.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run if run.info.lifecycle_stage == "active" else None

    def _begun(self, token: str) -> Any:
        """The run that was begun with that token; None: there is none, or it was deleted."""
        if not token:
            return None
        found = self._client.search_runs([self._experiment], f"tags.`{BY_TOKEN}` = '{token}'", max_results=1)
        return self._there(found[0].info.run_id) if found else None

    def last(self, tracked: str, names: Sequence[str]) -> Mapping[str, int]:
        histories = {name: self._client.get_metric_history(tracked, _name(name)) for name in names}
        return {name: max(metric.step for metric in history) for name, history in histories.items() if history}

    def log(self, tracked: str, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(_name(p.name), p.value, round(p.time * 1000), p.step or 0) for p in points]
        for at in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(tracked, metrics=metrics[at : at + MOST_METRICS])

    def files(self, tracked: str, files: Mapping[str, Path]) -> None:
        for name, path in files.items():
            folder = PurePosixPath(name).parent.as_posix()
            self._client.log_artifact(tracked, str(path), None if folder == "." else folder)

    def end(self, tracked: str, state: State) -> None:
        self._client.set_terminated(tracked, STATUS[state])

    @property
    def _database(self) -> Path | None:
        """The file of a SQLite store."""
        path = unquote(self.uri.removeprefix(SQLITE))
        return Path(os.path.expanduser(path)).absolute() if self.uri.startswith(SQLITE) else None

    @cached_property
    def _client(self) -> Any:
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        for name in ("mlflow", "alembic"):  # what goes wrong is raised as well
            logging.getLogger(name).setLevel(logging.CRITICAL)
        if (database := self._database) is None:
            return MlflowClient(tracking_uri=self.uri)
        with _alone(database):  # two processes that make the tables would be in each other's way
            return MlflowClient(tracking_uri=f"{SQLITE}{database}")

    @cached_property
    def _experiment(self) -> str:
        database, client = self._database, self._client
        with _alone(database):
            found = client.get_experiment_by_name(self.experiment)
            if found is not None:
                if found.lifecycle_stage != "active":
                    raise StorageError(
                        f"tracker.experiment={self.experiment}: was deleted there; "
                        f"mlflow experiments restore -x {found.experiment_id} has it back"
                    )
                return str(found.experiment_id)
            beside = (database.parent / f"{database.stem}-artifacts").as_uri() if database is not None else None
            return str(client.create_experiment(self.experiment, artifact_location=beside))


@contextmanager
def _alone(database: Path | None) -> Iterator[None]:
    """In the body no other process does this to the same file."""
    from filelock import FileLock

    if database is None:
        yield
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{database}.lock"):
        yield


def _name(name: str) -> str:
    """As MLflow takes it."""
    safe = re.sub(r"[^\w\-. :/]", "_", name, flags=re.ASCII)
    if safe == name and len(name) <= LONGEST_NAME:
        return name
    return f"{safe[: LONGEST_NAME - 9]}-{xxhash.xxh3_64_hexdigest(name.encode())[:8]}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
