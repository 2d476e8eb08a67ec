"""A Dask cluster to run on: a scheduler that is there already, or workers of our own on this machine."""

import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing import resource_tracker
from typing import Any

from pipeline.config import extend
from pipeline.config.spine import Dask
from pipeline.errors import ConfigError, StageError

SILENT = logging.CRITICAL + 1  # closed connections are "critical" to a scheduler that is being closed


@contextmanager
def connect(conf: Dask, workers: int, worker_nbytes: int, say: Callable[[str], None]) -> Iterator[Any]:
    """A client of the scheduler at `conf.address`, or of a LocalCluster that lives as long as the body.

    Raises:
        ConfigError: TLS without what it needs.
        StageError: no scheduler answers at the address.
    """
    import dask
    from distributed import Client, LocalCluster

    # A lost worker is dealt with, and what cannot be is raised.
    for name in ("distributed", "distributed.client", "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(SILENT)
    with ExitStack() as stack:
        if conf.address:
            try:
                security = _certificates(conf.address) if conf.address.startswith("tls://") else None
                client = stack.enter_context(
                    Client(conf.address, timeout="5s", set_as_default=False, security=security)
                )
            except (OSError, TimeoutError, ValueError) as why:
                raise StageError(f"dask.address={conf.address!r}: no scheduler answers there ({why})") from None
            try:
                client.wait_for_workers(1, timeout=5)
            except TimeoutError:
                raise StageError(f"dask.address={conf.address!r}: the scheduler there has no workers") from None
            there = len(client.scheduler_info(n_workers=-1)["workers"])
            say(f"Dask scheduler {client.scheduler.address}, {there} workers")
        else:
            # The plan bounds memory; pausing and spilling at fractions of the limit would only stall it.
            stack.enter_context(
                dask.config.set({f"distributed.worker.memory.{k}": False for k in ("target", "spill", "pause")})
            )
            security = _temporary() if conf.tls else None
            with _interrupts_are_ours():
                cluster = stack.enter_context(
                    LocalCluster(
                        n_workers=workers,
                        threads_per_worker=conf.threads_per_worker,
                        processes=True,
                        memory_limit=worker_nbytes,
                        silence_logs=SILENT,
                        preload=[extend.NAME] if extend.by_name() else [],
                        dashboard_address="127.0.0.1:0",  # None would listen on every interface, at port 8787
                        scheduler_kwargs={"dashboard": conf.dashboard},
                        resources=dict(conf.resources) or None,
                        host="127.0.0.1",
                        security=security,
                        protocol="tls://" if conf.tls else None,
                    )
                )
            client = stack.enter_context(Client(cluster, set_as_default=False, security=security))
            where = f", dashboard {client.dashboard_link}" if conf.dashboard else ""
            say(f"Dask cluster: {workers} workers × {conf.threads_per_worker} threads{where}")
        yield client


def bring_the_users_code(client: Any) -> str:
    """The modules of `--config-dir`, for workers that somebody else started, there now or joining later.

    Without such a folder they forget that of the run before. Returns the version that this run's tasks hold on to.

    Raises:
        StageError: another run, with other code, is at work on them.
    """
    from distributed import WorkerPlugin

    sent = extend.files()
    code = extend.version(sent)

    class Guest(WorkerPlugin):
        name = extend.VARIABLE

        def setup(self, worker: Any) -> None:
            extend.receive(sent)

    # All are asked before one is changed. A worker that is lost meanwhile is dealt with by the run.
    for answer in client.run(extend.receivable, code, on_error="return").values():
        if isinstance(answer, StageError):
            raise answer
    client.register_plugin(Guest())
    return code


def _temporary() -> Any:
    """Certificates that live as long as this run, in memory.

    Raises:
        ConfigError: the package that makes them is not installed.
    """
    from distributed import Security

    if find_spec("cryptography") is None:
        raise ConfigError(
            "dask.tls=true: needs the package cryptography, which is not installed: pip install cryptography"
        )
    return Security.temporary()


def _certificates(address: str) -> Any:
    """The certificates that Dask's settings name.

    Raises:
        ConfigError: they name none, or not enough, or what is no certificate.
    """
    from distributed import Security

    security: Any = Security()
    key = "distributed.comm.tls"
    said = (
        f"dask.address={address!r}: TLS takes its certificates from Dask's settings, {key}.ca-file, {key}.client.cert "
    )
    said += f"and {key}.client.key (DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT, …__CLIENT__KEY)"
    names = {"ca-file": security.tls_ca_file, "client.cert": security.tls_client_cert}
    if missing := [name for name, file in names.items() if not file]:
        raise ConfigError(f"{said}; not set: {', '.join(missing)}")
    try:
        security.get_connection_args("client")
    except (OSError, ValueError) as why:  # ssl.SSLError is an OSError
        raise ConfigError(f"{said}; {', '.join(map(str, names.values()))}: {why}") from None
    return security


def worker_limits(client: Any) -> dict[str, int]:
    """Address → bytes that each worker of a cluster may have, of those that have a limit."""
    found = client.scheduler_info(n_workers=-1)["workers"]
    return {address: worker["memory_limit"] for address, worker in found.items() if worker["memory_limit"]}


@contextmanager
def _interrupts_are_ours() -> Iterator[None]:
    """Threads and processes that start in the body never see SIGINT and SIGHUP: Ctrl-C and a closed window reach all of
    a terminal's processes, and one of them should end the run, once. What arrives meanwhile arrives after the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")  # it tidies up after a run that is killed: its job
    resource_tracker.ensure_running()  # it unblocks SIGINT in the thread that starts it
    sys.warnoptions.pop()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
