"""Which workers of a cluster a gang is given, and who is let in where one watches."""

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import PlanError, StageError
from pipeline.running import pinned
from pipeline.running.keeper import free_address, listening
from pipeline.stage import Gang

SECRET = b"of this gang"


def client(*workers: str, **resources: float) -> Any:
    """Of a cluster that has them; those on port 9 have resources."""
    found = {w: {"resources": resources if w.endswith(":9") else {}} for w in workers}
    return SimpleNamespace(scheduler_info=lambda n_workers: {"workers": found})


def gang(processes: int, coordinator: str = "auto") -> Gang:
    return Gang(processes, coordinator, print)


def test_a_gang_is_on_as_many_machines_as_there_are() -> None:
    there = client("tcp://b:1", "tcp://a:1", "tcp://a:2", "tcp://a:3", "tcp://c:1")
    assert pinned.choose(there, gang(3), {}) == ("tcp://a:1", "tcp://b:1", "tcp://c:1")
    assert pinned.choose(there, gang(5), {})[3:] == ("tcp://a:2", "tcp://a:3")
    assert pinned.choose(there, gang(2, "a:4321"), {}) == ("tcp://a:1", "tcp://b:1")
    assert pinned.choose(there, gang(2, "c:4321"), {}) == ("tcp://c:1", "tcp://a:1")
    with pytest.raises(
        PlanError, match=r"mesh\.processes: 6, each on a Dask worker of its own, and there are 5 workers$"
    ):
        pinned.choose(there, gang(6), {})
    some = client("tcp://a:1", "tcp://b:9", device=1)
    assert pinned.choose(some, gang(1), {"device": 1}) == ("tcp://b:9",)
    with pytest.raises(PlanError, match=r"there are 1 workers with resources \{'device': 1\}$"):
        pinned.choose(some, gang(2), {"device": 1})


def test_only_who_knows_the_secret_is_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows another, one that says nothing, and then the one that was asked for."""
    monkeypatch.setattr(pinned, "PROVE_S", 1)
    kept: list[int] = []
    monkeypatch.setattr(pinned, "keep", lambda channel, rank: kept.append(rank))
    looked: list[bool] = []

    def come(address: Any) -> None:
        with pytest.raises(pinned.AuthenticationError):
            pinned.keep_there(address, b"of another", 7)
        with socket.create_connection(address):
            pinned.keep_there(address, SECRET, 3)

    with listening("127.0.0.1") as server:
        strangers = threading.Thread(target=come, args=(server.getsockname(),))
        strangers.start()
        channel = pinned._arrived(server, SECRET, lambda: looked.append(True))
        strangers.join()
        channel.close()
    assert kept == [3]


def test_nobody_is_waited_for_who_cannot_come() -> None:
    def gone() -> None:
        raise StageError("gone")

    with listening("127.0.0.1") as server, pytest.raises(StageError, match="gone"):
        pinned._arrived(server, SECRET, gone)


def test_a_free_port_is_one_at_that_address() -> None:
    with listening("127.0.0.1") as taken:
        given = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StageError, match=rf"^mesh\.coordinator={given}: .* Address already in use; port 0"):
            free_address(given, "127.0.0.1")
    assert free_address(given, "127.0.0.2") == given
    for given, host in (("auto", "127.0.0.2"), ("127.0.0.3:0", "127.0.0.2")):
        at, _, port = free_address(given, host).rpartition(":")
        assert at == (host if given == "auto" else "127.0.0.3")
        assert int(port) > 0
    with pytest.raises(
        StageError, match=r"^mesh\.coordinator=192\.0\.2\.1:0: nothing on this machine can listen there"
    ):
        free_address("auto", "192.0.2.1")
