"""A cluster that runs already gets the modules of `--config-dir`: it has neither the folder nor the variable."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from pipeline.config import extend
from pipeline.errors import ConfigError, StageError
from pipeline.running.cluster import bring_the_users_code, connect
from pipeline.running.graph import Failure, Task, attempt_remotely, run_distributed
from tests.cases.guests import guest
from tests.unit.running.test_graph import CONF

WORD = "WORD = {!r}\n"


def said() -> tuple[str, str]:
    """What a worker finds in the module, and where."""
    from plugins.brought import word  # type: ignore[import-not-found]

    return word.WORD, word.__file__


def beside_ours() -> str:
    """What a worker finds in a module that lies in a package of ours."""
    from plugins.quant import brought_word  # type: ignore[attr-defined]

    word: str = brought_word.WORD
    return word


def has_any() -> bool:
    try:
        said()
    except ImportError:
        return extend.VARIABLE in os.environ
    return True


def waits_for(file: Path) -> str:
    (file.parent / "started").touch()
    while not file.exists():
        time.sleep(0.01)
    return said()[0]


@pytest.fixture
def received() -> Iterator[None]:
    """This process is as it was before it received anything, afterwards too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(extend.VARIABLE, "")
        patch.setattr(extend, "_received", extend._Received())
        yield
        extend.receive({})


@contextmanager
def ours(folder: Path, word: str) -> Iterator[None]:
    """A folder of this process with both modules."""
    with guest(folder, dict.fromkeys(("plugins.brought.word", "plugins.quant.brought_word"), WORD.format(word))):
        yield


def run(client: Any, fn: Any, *args: Any) -> Any:
    """What a run of one task gives."""
    conf = replace(CONF, address=client.scheduler.address)
    return run_distributed([Task("t", fn, args, label="t")], conf, client, lambda task, result: None)["t"]


def test_workers_of_others_get_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(extend.VARIABLE, raising=False)
    cluster: Any = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0")
    conf = replace(CONF, address=cluster.scheduler_address)
    with cluster, connect(conf, 1, 1 << 30, lambda text: None) as client:
        for word in ("first", "second"):  # the code of whoever connected last
            with ours(tmp_path / word, word):
                found, where = run(client, said)
                assert found == run(client, beside_ours) == word
                assert not Path(where).is_relative_to(tmp_path)
                assert Path(where).exists()
        assert not run(client, has_any)  # a run without a folder
        assert not Path(where).exists()

        with ours(tmp_path / "first", "first"):
            earlier = bring_the_users_code(client)
            slow = client.submit(attempt_remotely, waits_for, 0, "slow", [tmp_path / "go"], None, earlier)
            while not (tmp_path / "started").exists():
                time.sleep(0.01)
            assert run(client, beside_ours) == "first"  # another run with the same code
        with ours(tmp_path / "second", "second"), pytest.raises(StageError, match="has 1 tasks at work"):
            run(client, said)
        assert {word for word, _ in client.run(said).values()} == {"first"}  # the idle worker, too
        (tmp_path / "go").touch()
        assert slow.result() == "first"
        with ours(tmp_path / "second", "second"):
            assert run(client, beside_ours) == "second"
        late = client.submit(attempt_remotely, said, 0, "late", [], None, earlier).result()
        assert isinstance(late, Failure)
        with pytest.raises(StageError, match="another run, with other code of its own"):
            late.raise_()
        places = [Path(where) for _, where in client.run(said).values()]
        assert len(set(places)) == 2
        assert all(place.exists() for place in places)
    for _ in range(500):
        if not any(place.exists() for place in places):
            break
        time.sleep(0.01)
    assert not any(place.exists() for place in places)  # they went with the workers


def test_what_was_received_is_the_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, received: None
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(there))
    with ours(tmp_path / "here", "sent"):
        sent = extend.files()
    assert sent == dict.fromkeys(("plugins/brought/word.py", "plugins/quant/brought_word.py"), b"WORD = 'sent'\n")
    extend.receive(sent)
    [place] = there.iterdir()
    assert place.stat().st_mode & 0o777 == 0o700
    assert os.environ[extend.VARIABLE] == str(place)
    assert said() == ("sent", str(place / "plugins/brought/word.py"))
    extend.receive(dict(reversed(sent.items())))  # it is there already
    assert extend.folder() == place
    with extend.holding(extend.version(sent)), pytest.raises(StageError, match="has 1 tasks at work"):
        extend.receive({})
    assert beside_ours() == "sent"
    extend.receive(dict.fromkeys(sent, b"WORD = 'other'\n"))
    assert said()[0] == beside_ours() == "other"
    assert not place.exists()
    extend.receive({})
    assert not has_any()
    assert "plugins.brought" not in sys.modules
    assert not list(there.iterdir())
    with pytest.raises(ImportError):
        beside_ours()
    with pytest.raises(StageError, match="uses these workers"), extend.holding(extend.version(sent)):
        pass


@pytest.mark.parametrize("path", ["/etc/x", "../x", "plugins/../../x", "stages", "other/x.py", ""])
def test_what_is_sent_lies_below_our_packages(path: str, received: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extend, "_written", lambda sent: pytest.fail("written"))
    with pytest.raises(ConfigError, match=r"a path is below stages/ or plugins/, without '\.\.'"):
        extend.receive({"plugins/good.py": b"", path: b""})
