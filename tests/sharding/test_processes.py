"""Two processes with two devices each: every one reads its part, and writes its part."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.tensors.views import JoinedStore
from pipeline.testing.memory import same
from plugins.engine.load import device_nbytes
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from tests.cases import model_runs
from tests.sharding import toys
from tests.sharding.processes import EXPORTS, MESH, QUANT, RULES
from tests.sharding.test_export import write

LIMIT_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both have written."""
    folder = tmp_path_factory.mktemp("processes")
    toys.write(folder / "toy", "llama")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-m", "tests.sharding.processes"]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(port), str(folder)],
            env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[2],
        )
        for rank in (0, 1)
    ]  # fmt: skip
    try:
        said = [child.communicate(timeout=LIMIT_S)[0] for child in started]
    finally:
        for child in started:
            child.kill()
    assert [child.returncode for child in started] == [0, 0], "\n".join(said)
    return folder


def test_each_reads_what_its_devices_hold(folder: Path) -> None:
    each = [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]
    for found in each:
        assert found["read"] == found["planned"]
    assert all("elements lie on devices that are not those of process" in found["elsewhere"] for found in each)
    given = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    whole = sum(s.nbytes for s in toys.specs("llama").values())
    assert all(whole / 2 <= found["read"] < 0.55 * whole for found in each)  # embeddings and matrices by halves
    assert [found["device_nbytes"] for found in each] == [device_nbytes(toys.load(given, toys.mesh(MESH)))] * 2


@pytest.mark.parametrize("name", EXPORTS)
def test_each_writes_its_part(name: str, folder: Path, tmp_path: Path) -> None:
    given = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    files = [p for p in (folder / name).rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert {p.relative_to(folder / name).as_posix(): p.read_bytes() for p in files} == write(
        given, tmp_path / "model", *EXPORTS[name]
    )
    one, other = (sum(json.loads((folder / f"{rank}.json").read_text())[name]) for rank in (0, 1))
    assert 0.9 < one / other < 1.1


def test_orbax_lets_each_save_its_part(folder: Path) -> None:
    given: Any = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    opened = Orbax().open(folder / "theirs")
    store = JoinedStore(opened, Pytree().decode(opened.specs, opened.config()))
    assert all(same(store.read(name), given.store.read(name)) for name in given.store.specs)
