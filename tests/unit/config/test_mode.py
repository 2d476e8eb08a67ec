"""hydra.mode: heard wherever it may be said, and nothing is composed for it where nobody can have."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.hydra import Hydra

from pipeline import __main__ as command_line
from pipeline.config.options import CONF
from pipeline.errors import WeightmillError
from tests.cases.guests import guest
from tests.unit.config.test_overrides import TINY

PLAN = ("plan", f"model.source={TINY}", "quant=mxfp4", "flow=convert")


@pytest.fixture(autouse=True)
def _loggers() -> Iterator[None]:
    """A command line silences the loggers that there are: it is the whole process's, and here it is not."""
    found = [x for x in logging.Logger.manager.loggerDict.values() if isinstance(x, logging.Logger) and not x.disabled]
    yield
    for logger in found:
        logger.disabled = False


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was composed: the modes, in order."""
    found: list[str] = []
    own = Hydra.compose_config

    def counted(self: Hydra, *args: Any, **options: Any) -> Any:
        found.append(options["run_mode"].name)
        return own(self, *args, **options)

    monkeypatch.setattr(Hydra, "compose_config", counted)
    monkeypatch.setattr("sys.argv", ["weightmill"])
    return found


def test_a_run_is_composed_once(composed: list[str], tmp_path: Path) -> None:
    assert command_line._main([*PLAN, f"paths.run={tmp_path / 'run'}"]) == 0
    assert composed == ["RUN"]


def test_an_override_says_it(composed: list[str], tmp_path: Path) -> None:
    with suppress(WeightmillError):  # of what a sweep without -m may ask for
        command_line._main([*PLAN, "hydra.mode=MULTIRUN", f"hydra.sweep.dir={tmp_path}"])
    assert composed[:2] == ["MULTIRUN", "MULTIRUN"]


def test_a_folder_of_the_user_s_says_it(composed: list[str], tmp_path: Path) -> None:
    (tmp_path / "flow").mkdir()
    said = f"# @package _global_\ndefaults: [convert]\nhydra: {{mode: MULTIRUN, sweep: {{dir: {tmp_path}}}}}\n"
    (tmp_path / "flow" / "twice.yaml").write_text(said)
    with suppress(WeightmillError), guest(tmp_path, {}):
        command_line._main([*PLAN[:-1], "flow=twice", "--config-dir", str(tmp_path)])
    assert composed[:2] == ["MULTIRUN", "MULTIRUN"]


def test_our_own_settings_do_not_say_it() -> None:
    assert not any("MULTIRUN" in file.read_text() for file in CONF.rglob("*.yaml"))
