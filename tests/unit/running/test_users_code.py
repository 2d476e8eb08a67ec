"""A cluster that runs already gets the modules of `--config-dir`: it has neither the folder nor the variable."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distributed import LocalCluster

from pipeline.config import extend
from pipeline.running.cluster import connect
from tests.cases.guests import guest
from tests.unit.running.test_graph import CONF

WORD = "WORD = {!r}\n"


def said() -> tuple[str, str]:
    """What a worker finds in the module, and where."""
    import plugins.brought.word  # type: ignore[import-not-found]

    return plugins.brought.word.WORD, plugins.brought.word.__file__


def test_workers_of_others_get_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(extend.VARIABLE, raising=False)
    cluster: Any = LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster:
        for word in ("first", "second"):  # the code of whoever connected last
            folder = tmp_path / word
            with (
                guest(folder, {"plugins.brought.word": WORD.format(word)}),
                connect(replace(CONF, address=cluster.scheduler_address), 1, 1 << 30, lambda text: None) as client,
            ):
                [(found, where)] = client.run(said).values()
            assert found == word
            assert not Path(where).is_relative_to(tmp_path)


def test_what_was_received_is_the_folder_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "there"))
    (tmp_path / "there").mkdir()
    with guest(tmp_path / "here", {"plugins.brought.word": WORD.format("sent")}):
        sent = extend.files()
        assert sent == {"plugins/brought/word.py": b"WORD = 'sent'\n"}
        extend.receive(sent)
        extend.receive(sent)  # it is there already
        assert os.environ[extend.VARIABLE].startswith(str(tmp_path / "there"))
        assert said()[0] == "sent"
        extend.receive({"plugins/brought/word.py": b"WORD = 'other'\n"})
        assert said()[0] == "other"
        for name in [n for n in sys.modules if n.startswith("plugins.brought")]:
            del sys.modules[name]
