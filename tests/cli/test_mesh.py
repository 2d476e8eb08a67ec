"""The embedded gpt-oss over several devices, as people run it: the same figures and the same text as on one."""

import json
from pathlib import Path

import pytest

import pipeline as weightmill
from tests.cli.run import MAIN, ROOT, pipeline

TINY = ROOT / "plugins" / "models" / "gpt_oss" / "tiny"
SHORT = (
    "flow=full", "evaluate.windows.tokens=512", "evaluate.windows.batch=2", "sampling.max_tokens=8", "progress=false",
)  # fmt: skip
TWO = ("mesh=expert", "mesh.axes.expert=2")
FOUR = ("mesh=expert", "mesh.axes.expert=4")  # as many as tests/conftest.py has JAX make


@pytest.mark.repeats  # tests/sharding in process, docs/devices.md as typed
def test_evaluate_and_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = tmp_path / "two"
    said = pipeline(*MAIN, *SHORT, *TWO, f"paths.run={two}", env={"XLA_FLAGS": "", "JAX_NUM_CPU_DEVICES": "2"})
    assert said.code == 0, said.err
    found = json.loads((two / "manifest.json").read_text())["results"]
    monkeypatch.chdir(tmp_path)
    alone = weightmill.run([*MAIN, *SHORT]).results
    for name, row in alone["evaluate"]["texts"].items():
        for figure in ("baseline_perplexity", "perplexity"):
            assert found["evaluate"]["texts"][name][figure] == pytest.approx(row[figure], rel=1e-5)
        assert found["evaluate"]["texts"][name]["kl"] == pytest.approx(row["kl"], rel=1e-3)
    assert found["generate"]["tokens"] == [list(row) for row in alone["generate"]["tokens"]]
    for stage in ("evaluate", "generate"):
        facts = found[stage]["facts"]
        assert facts["devices"] == 2
        assert facts["device_nbytes"] == facts["planned_nbytes"] <= 1.1 / 2 * alone[stage]["facts"]["device_nbytes"]


@pytest.mark.oracle
@pytest.mark.repeats  # of one device test_flows.py says it, of four tests/sharding/test_processes.py
def test_parity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers agrees with a mesh layer by layer, and so it does with single tensors replaced."""
    monkeypatch.chdir(tmp_path)
    found = weightmill.run(["+model=gpt_oss", "flow=parity", "progress=false", *FOUR]).results["parity"]
    assert found["same"]
    assert max(layer["relative"] for layer in found["layers"].values()) < 1e-5


def test_load_model() -> None:
    alone = weightmill.load_model(TINY)
    model = weightmill.load_model(TINY, mesh="expert", overrides=["mesh.axes.expert=4"])
    assert model.facts["devices"] == 4
    said = [m.generate("The people", max_tokens=8).completion.tokens for m in (alone, model)]
    assert said[0] == said[1]


@pytest.mark.repeats  # tests/sharding/test_rounded.py in process
def test_calibrated_scales_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inputs = ("activations=int8", "activations_scales=calibrated", "calibrate=absmax", "calibrate.windows.tokens=512")
    typed = (*MAIN, "flow=evaluate", "quant=int8", *inputs, "evaluate.windows.tokens=512", "progress=false")
    [alone, four] = [weightmill.run([*typed, *mesh]).results["evaluate"]["texts"] for mesh in ((), FOUR)]
    for name, row in alone.items():
        assert row["kl"] > 1e-4
        assert four[name]["kl"] == pytest.approx(row["kl"], rel=0.05)  # a last bit may take inputs to the next code


CALIBRATED = ("flow=evaluate", "quant=int4", "calibrate=imatrix", "calibrate.windows.tokens=512")


@pytest.mark.repeats  # tests/unit/engine/test_observe.py in process
def test_statistics_are_those_of_one_device(tmp_path: Path) -> None:
    """On several, and of several processes by one."""
    few = (*CALIBRATED, "calibrate.windows.batch=1", "evaluate.windows.tokens=512", "progress=false")
    found = []
    for mesh in ((), ("mesh=data", "mesh.axes.data=4"), ("mesh=data", "mesh.axes.data=2", "mesh.processes=2")):
        said = pipeline(*MAIN, *few, *mesh, f"paths.outputs={tmp_path}/{len(found)}", timeout_s=600)
        assert said.code == 0, said.err
        [folder] = {p.parent for p in tmp_path.glob(f"{len(found)}/.results/*/layers.0.npz")}
        found.append({p.name: p.read_bytes() for p in folder.glob("layers.*")})
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 4
