"""What is said of a model's inputs: against NumPy, and equal bytes after a kill."""

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from pipeline import arrays, meter
from pipeline.coded_store import CodedStore
from pipeline.errors import PlanError
from pipeline.mesh import Mesh
from plugins.engine import observe, routed
from plugins.mesh.devices import arrange
from stages.calibrate import likely
from tests.cases import model_runs, two_layers
from tests.cases.quantized import quant_method
from tests.sharding import models


def hessian_of(folder: Path, found: Any, name: str) -> Any:
    return np.load(folder / str(found[f"{name}/hessian"]))[tuple(found[f"{name}/part"])]


def test_sums_of_batches_are_those_of_all(tmp_path):
    x = np.random.default_rng(0).standard_normal((96, 5)).astype(np.float32)
    sums = observe.Sums()
    recorder = observe._Recorder([], True, 3, observe.Told())
    for part in np.split(x, 3):
        sums.add({"w": {k: np.asarray(v) for k, v in recorder.sums(part).items()}})
    found = sums.statistics({"v": "w"}, observe.Hessians(tmp_path, "layers.0"), 4)
    assert found["w/tokens"] == 96
    np.testing.assert_allclose(found["w/mean_square"], np.square(x).mean(0), rtol=1e-5)
    np.testing.assert_array_equal(found["w/absmax"], np.abs(x).max(0))
    np.testing.assert_allclose(hessian_of(tmp_path, found, "w"), x.T @ x / 96, rtol=1e-4, atol=1e-5)
    assert found["v/hessian"] == found["w/hessian"]
    kept = np.concatenate([part[1::3] for part in np.split(x, 3)])
    np.testing.assert_array_equal(found["v/sample"], kept[np.linspace(0, len(kept) - 1, 4).astype(int)])
    np.testing.assert_array_equal(found["v/mean_square"], found["w/mean_square"])


ROWS = np.random.default_rng(1).integers(0, 200, (4, 24))


@cache
def whole(batch: int = 2) -> tuple[Path, dict[str, bytes]]:
    """Where all that is said of the model lies, and `observed`."""
    folder = Path(tempfile.mkdtemp())
    return folder, observed(folder, batch=batch)


def observed(folder: Path, engine: Any = None, batch: int = 2) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    engine, checkpoint = engine or model_runs.engine(), model_runs.checkpoint(two_layers.folder())
    with meter.metered() as told:
        engine.observe(checkpoint, ROWS, batch, folder, hessian=True)
    held = [sum(s.nbytes for n, s in checkpoint.store.specs.items() if f"layers.{i}." in n) for i in range(2)]
    assert told.device_nbytes == 0 or max(held) < told.device_nbytes < 3 * max(held)  # 0: nothing was left to do
    assert not [*folder.glob("routed.*")]
    return {p.name: p.read_bytes() for p in sorted(folder.glob("layers.*.np[yz]"))}


def test_a_killed_one_goes_on_with_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, wanted = whole()
    # What q, k and v are multiplied by lies there once; the others are of o, the router, and experts twice.
    assert [*wanted] == [
        f"layers.{i}.{what}" for i in (0, 1) for what in (*(f"hessian.{k}.npy" for k in range(5)), "npz")
    ]
    save, saved = arrays.save, []

    def killed(path: Path, what: Any) -> None:
        if path.name == "layers.1.npz":
            raise KeyboardInterrupt
        save(path, what)

    monkeypatch.setattr(arrays, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        observed(tmp_path / "killed")
    monkeypatch.setattr(arrays, "save", lambda path, what: (saved.append(path.name), save(path, what)))
    assert observed(tmp_path / "killed") == wanted
    assert saved == ["layers.1.npz"]


def test_statistics_are_those_of_the_inputs() -> None:
    folder, _ = whole()
    stored = {n: x.astype(np.float32) for n, x in load_file(two_layers.folder() / "model.safetensors").items()}
    x = stored["model.embed_tokens.weight"][ROWS.reshape(-1)]
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * stored["model.layers.0.input_layernorm.weight"]
    with np.load(folder / "layers.0.npz") as found:
        for name in ("q_proj", "k_proj", "v_proj"):
            of = f"model.layers.0.self_attn.{name}.weight"
            assert found[f"{of}/tokens"] == ROWS.size
            np.testing.assert_allclose(found[f"{of}/mean_square"], np.square(x).mean(0), rtol=1e-4)
            np.testing.assert_allclose(found[f"{of}/absmax"], np.abs(x).max(0), rtol=1e-5)
            np.testing.assert_allclose(hessian_of(folder, found, of), x.T @ x / len(x), rtol=1e-3, atol=1e-3)
        experts = "model.layers.0.mlp.experts"
        for name in ("gate_up_proj", "down_proj"):
            tokens = found[f"{experts}.{name}/tokens"]
            assert tokens.sum() % ROWS.size == 0
            assert tokens.sum() > 0
            diagonal = np.diagonal(hessian_of(folder, found, f"{experts}.{name}"), axis1=1, axis2=2)
            np.testing.assert_allclose(diagonal, found[f"{experts}.{name}/mean_square"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [*models.CONFIGS])
@pytest.mark.brief("gpt_oss", "llama", "gemma3")
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


@pytest.mark.parametrize("apart", [False, True])
def test_experts_count_the_rows_that_chose_them(tmp_path: Path, apart: bool) -> None:
    """Of one tensor each, or of all; more rows than go through at once; and an expert that nobody chose."""
    rng, n = np.random.default_rng(0), routed.ROWS + 70
    x, live = rng.standard_normal((n, 8)).astype(np.float32), rng.random((n, 3)) < np.array([1, 0.3, 0])
    gate, up, out = (rng.standard_normal(s).astype(np.float32) for s in ((3, 6, 8), (3, 6, 8), (3, 8, 6)))
    bias = rng.standard_normal((3, 6)).astype(np.float32)

    def names(what: str) -> tuple[str, ...]:
        return tuple(f"{e}.{what}" for e in range(3)) if apart else (what,)

    held = {names("gate"): gate, names("up"): up, names("out"): out, ("bias",): bias}
    seen = routed.Routed((names("gate"), names("up")), (("bias",), None), names("out"), lambda g, u: abs(g) * u)
    two = jax.devices()[:2]
    found = routed.experts(seen, x, live, held, routed.Hessians(tmp_path, "layers.0"), 20, devices=two)
    for e in range(3):
        into = x[live[:, e]]
        inner = abs(into @ gate[e].T + bias[e]) * (into @ up[e].T)
        for what, rows in (("gate", into), ("up", into), ("out", inner)):
            name, own = (f"{e}.{what}", ()) if apart else (what, (e,))
            many = max(1, len(rows))
            assert found[f"{name}/tokens"][own] == len(rows)
            np.testing.assert_allclose(found[f"{name}/mean_square"][own], np.square(rows).sum(0) / many, rtol=1e-4)
            np.testing.assert_allclose(found[f"{name}/absmax"][own], np.abs(rows).max(0, initial=0), rtol=1e-5)
            h = hessian_of(tmp_path, found, name)[own]
            np.testing.assert_allclose(h, rows.T @ rows / many, rtol=1e-3, atol=1e-4)
            np.testing.assert_array_equal(h, h.T)
            sample = found[f"{name}/sample"][own]
            wanted = rows[np.linspace(0, len(rows) - 1, 20).astype(int)] if len(rows) else np.zeros_like(sample)
            np.testing.assert_allclose(sample, wanted, rtol=1e-3, atol=1e-4)
    assert len([*tmp_path.glob("*.npy")]) == 2  # gate and up are multiplied by the same


def test_a_last_batch_may_have_fewer_rows(tmp_path: Path) -> None:
    observed(tmp_path, batch=3)
    found = []
    for folder in (tmp_path, whole()[0]):  # of four rows three and one, and two and two
        with np.load(folder / "layers.1.npz") as of:
            found.append({key: of[key] for key in of.files if key.endswith(("tokens", "mean_square"))})
    assert found[0].keys() == found[1].keys()
    for key, array in found[0].items():
        np.testing.assert_allclose(array, found[1][key], rtol=1e-5, err_msg=key)


@pytest.mark.parametrize("axes", [{"data": 3}, {"data": 2, "expert": 2}])
def test_batches_on_several_devices_give_the_same_bytes(axes: dict[str, int], tmp_path: Path, thorough: bool) -> None:
    _, wanted = whole(batch=1)
    ran, looked = set[Any](), set[Any]()
    program, through = observe.program, routed._through

    def watched(*args: Any, **kept: Any) -> Any:
        step, told = program(*args, **kept)
        return lambda leaves, x: (ran.update(x.devices()), step(leaves, x))[1], told

    mesh = Mesh(axes, {"batch": "data"}, replicated_most=1.0)
    several = replace(model_runs.engine(), mesh=mesh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observe, "program", watched)
        patch.setattr(routed, "_through", lambda s, x, *r, **o: (looked.update(x.devices()), through(s, x, *r, **o))[1])
        patch.setattr(observe, "arrange", lambda mesh, devices: arrange(mesh, devices[: mesh.size]))
        assert observed(tmp_path / "several", several, batch=1) == wanted
        assert len(ran) == mesh.size
        assert looked == ran, "experts are dealt out to all"
        if not thorough and "expert" not in axes:  # the other case says the rest
            return
        ran.clear()
        theirs = replace(mesh, axes={"data": 4}, processes=2)  # those of one of them
        assert observed(tmp_path / "one of two", replace(several, mesh=theirs), batch=1) == wanted
        assert ran == {*jax.local_devices()[:2]}
    with pytest.raises(PlanError, match=r"= 3 devices, and there are|= 16 devices, and there are"):
        observed(tmp_path / "other", replace(several, mesh=Mesh({"data": 16 if mesh.size == 4 else 3})))
