"""What is said of a model's inputs: against NumPy, and equal bytes after a kill."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pipeline.api import quant_method
from pipeline.coded_store import CodedStore
from plugins.engine import observe
from stages.calibrate import likely
from tests.cases import model_runs, two_layers
from tests.sharding import models


def test_sums_of_batches_are_those_of_all():
    x = np.random.default_rng(0).standard_normal((96, 5)).astype(np.float32)
    sums = observe.Sums()
    recorder = observe._Recorder([], hessian=True)
    for part in np.split(x, 3):
        sums.add({"w": {k: np.asarray(v) for k, v in recorder.sums(part, np.ones(32, np.float32)).items()}})
    found = sums.statistics
    assert found["w/tokens"] == 96
    np.testing.assert_allclose(found["w/mean_square"], np.square(x).mean(0), rtol=1e-5)
    np.testing.assert_array_equal(found["w/absmax"], np.abs(x).max(0))
    np.testing.assert_allclose(found["w/hessian"], x.T @ x / 96, rtol=1e-4, atol=1e-5)


ROWS = np.random.default_rng(1).integers(0, 200, (4, 24))


def observed(folder: Path) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    model_runs.engine().observe(model_runs.checkpoint(two_layers.folder()), ROWS, 2, folder, hessian=True)
    return {p.name: p.read_bytes() for p in sorted(folder.glob("layers.*.npz"))}


def test_a_killed_one_goes_on_with_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = observed(tmp_path / "whole")
    assert [*whole] == ["layers.0.npz", "layers.1.npz"]
    save, saved = observe._save_arrays, []

    def killed(path: Path, arrays: Any) -> None:
        if path.name == "layers.1.npz":
            raise KeyboardInterrupt
        save(path, arrays)

    monkeypatch.setattr(observe, "_save_arrays", killed)
    with pytest.raises(KeyboardInterrupt):
        observed(tmp_path / "killed")
    monkeypatch.setattr(observe, "_save_arrays", lambda path, arrays: (saved.append(path.name), save(path, arrays)))
    assert observed(tmp_path / "killed") == whole
    assert saved == ["layers.1.npz"]


def test_statistics_are_those_of_the_inputs(tmp_path: Path) -> None:
    observed(tmp_path)
    stored = {n: x.astype(np.float32) for n, x in load_file(two_layers.folder() / "model.safetensors").items()}
    x = stored["model.embed_tokens.weight"][ROWS.reshape(-1)]
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * stored["model.layers.0.input_layernorm.weight"]
    with np.load(tmp_path / "layers.0.npz") as found:
        for name in ("q_proj", "k_proj", "v_proj"):
            of = f"model.layers.0.self_attn.{name}.weight"
            assert found[f"{of}/tokens"] == ROWS.size
            np.testing.assert_allclose(found[f"{of}/mean_square"], np.square(x).mean(0), rtol=1e-4)
            np.testing.assert_allclose(found[f"{of}/absmax"], np.abs(x).max(0), rtol=1e-5)
            np.testing.assert_allclose(found[f"{of}/hessian"], x.T @ x / len(x), rtol=1e-3, atol=1e-3)
        experts = "model.layers.0.mlp.experts"
        for name in ("gate_up_proj", "down_proj"):
            tokens = found[f"{experts}.{name}/tokens"]
            assert tokens.sum() % ROWS.size == 0
            assert tokens.sum() > 0
            diagonal = np.diagonal(found[f"{experts}.{name}/hessian"], axis1=1, axis2=2)
            np.testing.assert_allclose(diagonal, found[f"{experts}.{name}/mean_square"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [*models.CONFIGS])
def test_of_every_matrix_of_every_family_packed_or_not(kind: str, tmp_path: Path) -> None:
    plain = models.checkpoint(kind, layers=1)
    names = [*likely(plain)]
    method = quant_method("int8")
    packed = replace(plain, store=CodedStore(plain.store, dict.fromkeys(names, method), measure=False))
    found = {}
    for what, checkpoint in (("plain", plain), ("packed", packed)):
        (tmp_path / what).mkdir()
        rows = np.random.default_rng(2).integers(0, models.VOCAB, (2, models.LENGTH))
        model_runs.engine().observe(checkpoint, rows, 2, tmp_path / what, hessian=False)
        with np.load(tmp_path / what / "layers.0.npz") as kept:
            found[what] = {n: kept[n] for n in kept.files}
    assert {n.rpartition("/")[0] for n in found["plain"]} == {*names}
    assert found["packed"].keys() == found["plain"].keys()
    first = "model.layers.0.self_attn.q_proj.weight/mean_square"
    np.testing.assert_array_equal(found["packed"][first], found["plain"][first])
