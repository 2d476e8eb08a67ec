"""A gang on a Dask cluster: each member a spawned child of a worker of its own, kept by a task that is pinned there.

The task that runs the stage watches, on the first of these workers: it listens at that worker's address for the others,
which prove that they are those it asked for. Dask leaves tasks waiting for ever that are pinned to a worker which is
gone (dask/distributed#8320), so nobody waits for one without looking: the one that watches sees by its connections
who is gone, and whoever asked for that one looks whether its worker is there.
"""

import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from pipeline.config import extend
from pipeline.errors import PlanError, Problem, StageError
from pipeline.running.keeper import Members, free_address, keep, listening
from pipeline.stage import Gang

LOOK_S = 0.5  # between two looks whether a worker that is to start a member is still there
PROVE_S = 5  # that who connects may take to say anything of who it is
CONNECT_S = 30.0
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # a machine that is gone is missed in 20 s


def choose(client: Any, gang: Gang, resources: Mapping[str, float]) -> tuple[str, ...]:
    """The workers that start the members, by rank: one each, on as many machines as there are.

    Raises:
        PlanError: there are not enough.
    """
    from distributed.comm.addressing import get_address_host

    workers = client.scheduler_info(n_workers=-1)["workers"]
    able = [w for w, about in workers.items() if all(about["resources"].get(k, 0) >= v for k, v in resources.items())]
    if len(able) < gang.processes:
        having = f" with resources {dict(resources)}" if resources else ""
        text = f"{gang.processes}, each on a Dask worker of its own, and there are {len(able)} workers{having}"
        raise PlanError([Problem("mesh.processes", text)])
    by_host: dict[str, list[str]] = {}
    for worker in sorted(able):
        by_host.setdefault(get_address_host(worker), []).append(worker)
    spread = sorted(able, key=lambda w: (by_host[get_address_host(w)].index(w), w))
    there = by_host.get(gang.coordinator.rpartition(":")[0].strip("[]"), spread)[0]
    return (there, *(w for w in spread if w != there))[: gang.processes]


def cancelled_without(client: Any, place: str, future: Any) -> None:
    """Have a task cancelled, that is pinned to the worker at `place`, when that is gone."""

    def look() -> None:
        while client.status == "running" and future.status == "pending":
            try:
                there = place in client.scheduler_info(n_workers=-1)["workers"]
            except (OSError, RuntimeError):  # the scheduler is gone or the client closed, which others see too
                return
            if not there:
                future.cancel()
                return
            time.sleep(LOOK_S)

    threading.Thread(target=look, daemon=True).start()


@contextmanager
def on_workers(
    places: Sequence[str], resources: Mapping[str, float], code: str | None, gang: Gang
) -> Iterator[Members]:
    """Start a gang, from a task that is pinned to the first of `places`: the addresses of its workers.

    Args:
        code: the version of the user's code that these have to have; None: they were sent none.

    Raises:
        StageError: a worker is gone.
    """
    from distributed import get_worker, worker_client
    from distributed.comm.addressing import get_address_host

    worker, key = get_worker(), get_worker().get_current_task()
    host = get_address_host(places[0])
    channels: dict[int, Connection] = {}
    futures: list[Any] = []

    def check() -> None:
        task = worker.state.tasks.get(key)
        if task is None or task.state not in ("executing", "long-running"):
            raise StageError("nobody waits for its result any more")

    with worker_client() as client, listening(host) as server:
        secret = secrets.token_bytes(32)
        try:
            # In order of their addresses, one after another: two gangs would else each hold what the other waits for.
            for rank, place in sorted(enumerate(places), key=lambda one: one[1]):
                how = {"workers": [place], "allow_other_workers": False, "resources": dict(resources) or None}
                asked = client.submit(
                    keep_there, server.getsockname()[:2], secret, rank, code, pure=False, priority=1, **how
                )
                futures.append(asked)
                channels[rank] = _arrived(server, secret, check, partial(_looked, client, asked, rank, place))
            by_rank = [channels[rank] for rank in range(len(places))]
            yield Members(by_rank, free_address(gang.coordinator, host), alone=True, places=places, check=check)
        finally:
            for channel in channels.values():
                channel.close()
            client.cancel(futures)  # of those whose worker is gone


def _looked(client: Any, asked: Any, rank: int, place: str) -> None:
    """Raises StageError: the worker that is to start a member is gone, or cannot."""
    if place not in client.scheduler_info(n_workers=-1)["workers"]:
        raise StageError(f"the Dask worker {place}, which was to start process {rank}, is gone")
    if asked.status == "error":
        raise StageError(f"the Dask worker {place} cannot start process {rank}: {asked.exception()}")


def _arrived(server: socket.socket, secret: bytes, *looks: Callable[[], None]) -> Connection:
    """The connection of the member that was asked for."""
    server.settimeout(LOOK_S)
    while True:
        try:
            arrived, _ = server.accept()
        except TimeoutError:
            for look in looks:
                look()
            continue
        with arrived, suppress(OSError, EOFError, AssertionError, AuthenticationError):  # of somebody else
            return _proven(arrived, secret, (deliver_challenge, answer_challenge), PROVE_S)


def keep_there(address: tuple[str, int], secret: bytes, rank: int, code: str | None = None) -> None:
    """On a worker: keep the member of that rank for whoever listens at `address`.

    Raises:
        OSError, EOFError, AuthenticationError: it is not who asked for it, or is gone.
        StageError: this worker has other code.
    """
    with extend.holding(code), socket.create_connection(address, CONNECT_S) as connection:
        channel = _proven(connection, secret, (answer_challenge, deliver_challenge), 0)
    keep(channel, rank)


def _proven(
    connection: socket.socket, secret: bytes, steps: Sequence[Callable[[Connection, bytes], Any]], seconds: int
) -> Connection:
    """A channel, once both sides have proven that they know the secret.

    Args:
        seconds: that the other side may take to say anything; 0: it is waited for, as long as it is there.

    Raises:
        OSError, EOFError, AssertionError, AuthenticationError: it has not.
    """
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    channel = Connection(os.dup(connection.fileno()))
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
        for step in steps:
            step(channel, secret)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    except BaseException:
        channel.close()
        raise
    return channel
