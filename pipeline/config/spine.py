"""The typed spine: what every run has, whatever its stages. Plain data, so that workers need not import Hydra."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.errors import Problem
from pipeline.units import parse_bytes

AUTO = "auto"
"""`dask.memory`: see `pipeline.planning.budget`."""

LEAST_CHUNK = 512  # bytes: with less a plan of millions of tasks is what takes the time


@dataclass(kw_only=True, slots=True)
class Paths:
    """Where things go.

    Attributes:
        outputs: folder of all runs.
        run: folder of this run.
    """

    outputs: str
    run: str

    def __post_init__(self) -> None:
        for name in ("outputs", "run"):
            if not getattr(self, name).strip():
                raise ValueError(f"paths.{name}='': a folder is needed, such as . or outputs")


@dataclass(kw_only=True, slots=True)
class Dask:
    """How the graph is executed. Nothing here changes a byte of the output.

    Attributes:
        scheduler: `threads` in this process, or `distributed` workers on this machine.
        address: of a running Dask scheduler (`tcp://host:port`, or `tls://host:port` with the certificates that Dask's
            own settings name); overrides `scheduler`.
        tls: distributed workers of our own talk by TLS, with certificates made for this run.
        workers: threads, or worker processes; null takes the machine's cores.
        threads_per_worker: for distributed workers.
        memory: bound on the memory of the whole run, all its processes together (with `address`: of each worker);
            `auto`: 2 GiB for conversions, and running models may have 80 % of what this process may have.
        chunk: bytes of bf16 values that one task handles at most.
        retries: how often a task that failed for an outside reason is tried again.
        keep_going: finish what does not depend on a failed task, then fail; false stops at once.
        resources: capacity of each resource tag, per worker.
        dashboard: serve Dask's dashboard with distributed workers.
    """

    scheduler: Literal["threads", "distributed"]
    address: str | None
    tls: bool
    workers: int | None
    threads_per_worker: int
    memory: str
    chunk: str
    retries: int
    keep_going: bool
    resources: dict[str, float]
    dashboard: bool

    @property
    def remote(self) -> bool:
        """Whether tasks run in other processes."""
        return bool(self.address) or self.scheduler == "distributed"

    def __post_init__(self) -> None:
        if self.address and not re.fullmatch(r"((tcp|tls|ucx|ws|wss|inproc)://)?[^/?#@\s]+", self.address):
            raise ValueError(f"dask.address={self.address!r}: tcp://HOST:PORT or tls://HOST:PORT is expected")
        if self.tls and self.address:
            raise ValueError("dask.tls=true is for workers of our own; dask.address=tls://HOST:PORT says it by itself")
        if self.tls and self.scheduler == "threads":
            raise ValueError("dask.tls=true: threads have no connections; dask=distributed has")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"dask.workers={self.workers}: at least 1 is needed")
        if self.threads_per_worker < 1:
            raise ValueError(f"dask.threads_per_worker={self.threads_per_worker}: at least 1 is needed")
        if self.memory != AUTO:
            parse_bytes(self.memory, "dask.memory", bare=1 << 20)
        if parse_bytes(self.chunk, "dask.chunk", bare=LEAST_CHUNK) < LEAST_CHUNK:
            raise ValueError(f"dask.chunk={self.chunk}: at least {LEAST_CHUNK}B is needed; each chunk is a task")
        if self.retries < 0:
            raise ValueError(f"dask.retries={self.retries}: 0 or more is needed")


@dataclass(kw_only=True, slots=True)
class Spine:
    """What every run has, whatever its stages.

    Attributes:
        trace: write `trace.json`, what was done when, by which worker and thread (`pipeline.reporting.trace`).
        trace_jax: and have `jax.profiler` watch what runs models.
    """

    seed: int
    debug: bool
    overwrite: bool
    progress: bool
    digest_inputs: bool
    monitor: float | None
    trace: bool
    trace_jax: bool
    paths: Paths
    dask: Dask

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed}: a whole number from 0 to 2^63-1 is allowed")
        if self.monitor is not None and not 0.01 <= self.monitor < float("inf"):
            raise ValueError(f"monitor={self.monitor}: null, or seconds between two looks, at least 0.01, are allowed")
        if self.trace_jax is True and self.trace is False:
            raise ValueError("trace_jax=true: its profiles are linked from a trace; trace=true asks for one")


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A run's config, checked.

    Attributes:
        spine: typed.
        stages: name → live stage, in order.
        nodes: name → the stage's resolved config, for identity; in place of what it says by name (`${oc.env:X}`), that
            name and a digest of the value.
        tree: the whole resolved config, for the record: what came from the environment by name, addresses without
            credentials.
        built: nodes that were asked for beside the stages, live.
        tracker: who is told of the run (`pipeline.tracker.Tracker`); None: nobody.
        unused: groups of which an option was typed that no stage refers to → what is to be said of it, where no other
            job of a sweep does (`pipeline.config.compose.check_choices`).
        unread: keys of settings that were typed and that no stage looks at → what is said of each.
    """

    spine: Spine
    stages: Mapping[str, Any]
    nodes: Mapping[str, Any] = field(repr=False)
    tree: Mapping[str, Any] = field(repr=False)
    built: Mapping[str, Any] = field(default_factory=dict)
    tracker: Any = None
    unused: Mapping[str, Problem] = field(default_factory=dict)
    unread: Mapping[str, Problem] = field(default_factory=dict)
