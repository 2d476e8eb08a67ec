"""Two processes with two devices each: every one reads its part, and writes its part; what stages find is what they
find on one device."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import StageError
from pipeline.hooks import optional
from pipeline.running import gang
from pipeline.stage import Gang, StageHooks
from pipeline.tensors.views import JoinedStore
from pipeline.testing.memory import same
from plugins.engine.load import device_nbytes
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from stages.evaluate import Evaluate
from stages.generate import Generate
from stages.parity import Parity
from stages.sensitivity import Sensitivity
from tests.cases import model_runs
from tests.sharding import killed, processes, toys
from tests.sharding.processes import EXPORTS, MESH, QUANT, RULES
from tests.sharding.test_export import write

# Each process in our own writer and in Orbax, once more: while it loads and computes it is killed in test_gang.py.
KILLED = ((0, "exporting to orbax"), (1, "exporting to safetensors"), (0, "in Orbax"), (1, "in Orbax"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Path:
    """What both have written."""
    folder = tmp_path_factory.mktemp("processes")
    toys.write(folder / "toy", "llama")
    processes.write_large(folder / "large")
    ids = np.random.default_rng(3).integers(0, 104, 60)
    (folder / "text.txt").write_text(" ".join(map(str, ids)))
    with pytest.MonkeyPatch.context() as patch, model_runs.quick_compilation():
        for name, value in model_runs.quick_environment().items():  # of the members
            patch.setenv(name, value)
        _run(folder, KILLED if thorough else ())
    return folder


def _run(folder: Path, killed_at: Sequence[tuple[int, str]]) -> None:
    alone = processes.used(folder, None)
    (folder / "alone.json").write_text(json.dumps(alone))
    (folder / "adapted.json").write_text(json.dumps(processes.adapted(folder, None)))
    several, work = Gang(2, "auto", processes.join), partial(processes.work, folder)
    for rank, place in killed_at:  # what they leave is in nobody's way
        with pytest.raises(StageError, match=f"^process {rank} of 2 was killed by SIGKILL; the others were ended"):
            gang.run(killed.doomed(several, rank, place), work)
    gang.run(several, work)


@pytest.fixture
def each(folder: Path) -> list[dict[str, Any]]:
    """What each has found."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_each_reads_what_its_devices_hold(folder: Path, each: list[dict[str, Any]]) -> None:
    for found in each:
        assert found["read"] == found["planned"]
    assert all("elements lie on devices that are not those of process" in found["elsewhere"] for found in each)
    given = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    whole = sum(s.nbytes for s in toys.specs("llama").values())
    assert all(whole / 2 <= found["read"] < 0.55 * whole for found in each)  # embeddings and matrices by halves
    assert [found["device_nbytes"] for found in each] == [device_nbytes(toys.load(given, toys.mesh(MESH)))] * 2


@pytest.mark.parametrize("name", EXPORTS)
def test_each_writes_its_part(name: str, folder: Path, each: list[dict[str, Any]], tmp_path: Path) -> None:
    given = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    files = [p for p in (folder / name).rglob("*") if p.is_file() and not p.name.startswith(".")]
    assert {p.relative_to(folder / name).as_posix(): p.read_bytes() for p in files} == write(
        given, tmp_path / "model", *EXPORTS[name]
    )
    one, other = (sum(found[name]) for found in each)
    assert 0.9 < one / other < 1.1


def test_orbax_lets_each_save_its_part(folder: Path) -> None:
    given: Any = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    opened = Orbax().open(folder / "theirs")
    store = JoinedStore(opened, Pytree().decode(opened.specs, opened.config()))
    assert all(same(store.read(name), given.store.read(name)) for name in given.store.specs)


def test_memory_stays_that_of_a_part(each: list[dict[str, Any]]) -> None:
    """Of 182 MiB each holds half. Beside that, loading takes one read (at most 16 million values, 32 MiB); exporting,
    in whatever container, a few chunks of 8 MiB."""
    for found in (one["large"] for one in each):
        assert 90 << 20 < found["live"] < 92 << 20
        assert found["loading"] < 64 << 20
        for name in EXPORTS:
            assert 90 << 20 < found[f"{name} written"] < 92 << 20
            assert found[name] < 48 << 20, name


def test_stages_find_what_they_find_on_one_device(folder: Path, each: list[dict[str, Any]]) -> None:
    """Several prompts, sampled; a baseline that one process writes and both read; a reference that runs once."""
    alone, both = json.loads((folder / "alone.json").read_text()), each[0]["used"]
    assert both["tokens"] == alone["tokens"]
    assert len({tuple(t) for t in both["tokens"]}) == 3
    for what in ("perplexity", "kl", "groups"):
        assert both[what].keys() == alone[what].keys()
        assert both[what] == pytest.approx(alone[what], rel=1e-3, abs=1e-7), what
    assert all(one["used"]["same"] and one["used"]["layers"] == alone["layers"] for one in each)
    assert "sensitivity.png" in both["left"]
    assert not {"sensitivity.npz", "sensitivity.partial.npz"} & set(both["left"])


def test_adapters_become_what_they_do_on_one_device(folder: Path, each: list[dict[str, Any]]) -> None:
    """Each process reads the examples of its rows; of the texts the first one keeps a record."""
    alone, both = json.loads((folder / "adapted.json").read_text()), [one["adapted"] for one in each]
    for found in both:
        assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
        assert found["tokens"] == alone["tokens"]
        assert found["layers"].keys() == alone["layers"].keys()
        for name, sums in alone["layers"].items():
            assert found["layers"][name] == pytest.approx(sums, rel=1e-5), name
        assert found["asked"] == alone["asked"] / 2
    assert [found["texts"] for found in both] == [alone["texts"], []]


@pytest.mark.parametrize("kind", [Evaluate, Generate, Parity, Sensitivity])
def test_every_stage_that_runs_a_model_has_its_processes(kind: Any, folder: Path) -> None:
    engine, text = processes.engine(processes.divided()), str(folder / "text.txt")
    given: dict[Any, tuple[Any, ...]] = {
        Evaluate: ((text,), processes.CUT), Generate: (processes.WARM, "1"), Parity: (processes.Told(), text),
        Sensitivity: (text, processes.CUT),
    }  # fmt: skip
    found = optional(kind(engine, *given[kind]), StageHooks, "gang")
    assert (found.processes, found.coordinator) == (2, "auto")


def test_a_process_that_is_none_of_them_says_so(each: list[dict[str, Any]]) -> None:
    assert each[0]["refused"].startswith("mesh.processes: 4, and JAX runs in 2 here; a run starts them for the stages")


def test_an_axis_of_hosts_is_one_wherever_it_stands(each: list[dict[str, Any]]) -> None:
    """Of axes fsdp and host every process has what is at its place along the second."""
    assert each[0]["hosts"] == [[0, 1], [0, 1]]
