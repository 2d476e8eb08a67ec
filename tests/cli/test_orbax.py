"""Orbax on the command line: written, restored in JAX, saved again by Orbax, and read back without a changed byte."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import xxhash

from pipeline.running.target import MARKER
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.views import JoinedStore
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.orbax.store import TensorStoreLeaves
from plugins.formats.orbax.tree import abstract, describe
from tests.cases.runs import after_chunks
from tests.cli.run import QUIETLY, done, end, kill_tree, manifest, pipeline, start

MAIN = ("quant=mxfp4", "dask.chunk=256KiB")


def export(folder: Path, *args: str) -> Path:
    """Run, and return the folder that was exported."""
    done(*QUIETLY, *args, f"paths.run={folder}")
    return folder / "model"


def files(folder: Path) -> dict[str, bytes]:
    """All but the marker, which names the run."""
    found = (p for p in folder.rglob("*") if p.is_file() and p.name != MARKER)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded gpt-oss as MXFP4 in Orbax."""
    return export(tmp_path_factory.mktemp("orbax"), *MAIN, "export=orbax")


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in safetensors."""
    return export(tmp_path_factory.mktemp("hf"), *MAIN, "export=hf")


@pytest.fixture(scope="module")
def params(written: Path) -> dict[str, Any]:
    """What a JAX program restores."""
    restored: dict[str, Any] = ocp.StandardCheckpointer().restore(written, abstract(written))
    return restored


def test_every_file_is_in_the_manifest_and_the_model_beside_the_weights(written: Path, direct: Path) -> None:
    found = {o["path"]: o["xxh3_128"] for o in manifest(written.parent)["outputs"]}
    there = {**files(written), MARKER: (written / MARKER).read_bytes()}
    assert found == {str(written / n): xxhash.xxh3_128_hexdigest(b) for n, b in there.items()}
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (written / name).read_bytes() == (direct / name).read_bytes()
    config = json.loads((direct / "config.json").read_text())
    assert json.loads((written / "config.json").read_text()) == {
        k: v for k, v in config.items() if k != "quantization_config"
    }


def test_jax_gets_qtensors(params: dict[str, Any]) -> None:
    experts = params["model.layers.3.mlp.experts.gate_up_proj"]
    assert isinstance(experts, QTensor)
    assert (experts.scheme, experts.shape) == (MXFP4, (8, 448, 160))
    assert isinstance(experts.codes, jax.Array)
    assert params["model.norm.weight"].dtype == "bfloat16"
    assert len(params) == 71


def test_it_is_the_same_model_as_in_safetensors(written: Path, direct: Path, tmp_path: Path) -> None:
    said = pipeline(*QUIETLY, "flow=verify", f"a={written}", f"b={direct}", f"paths.run={tmp_path}")
    assert said.code == 0, said.err
    assert "the same model: all 71 tensors equal bit for bit, encodings and all" in said.out
    assert export(tmp_path / "back", f"model.source={written}", *MAIN, "export=hf").is_dir()
    assert files(tmp_path / "back/model") == files(direct)


def test_what_orbax_saved_comes_back_through_worker_processes(
    params: dict[str, Any], direct: Path, tmp_path: Path
) -> None:
    """Saved with Orbax's defaults, read by workers with tensorstore in each."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", params, custom_metadata=describe(params))
    (tmp_path / "saved/config.json").write_bytes((direct / "config.json").read_bytes())
    assert isinstance(Orbax().open(tmp_path / "saved"), TensorStoreLeaves)
    how = ("dask=distributed", "dask.workers=2", "dask.dashboard=false")
    back = export(tmp_path / "run", f"model.source={tmp_path / 'saved'}", *MAIN, "export=hf", *how)
    assert (back / "model.safetensors").read_bytes() == (direct / "model.safetensors").read_bytes()


def test_mixed_precision_is_kept_scheme_by_scheme(tmp_path: Path) -> None:
    """Double quantized NF4, minima, and scales for rows: read back as they were, and decoded alike."""
    rules = "model.rules=[{role: experts, to: quant}, {role: attention, to: q4_1}, {role: head, to: int8}]"
    quant = ("quant=nf4", "quant.block_elems=32", "quant.scale=dynamic8", "quant.second=dynamic8", rules)
    there = export(tmp_path / "there", *quant, "export=orbax")
    leaves = Orbax().open(there)
    specs = JoinedStore(leaves, Pytree().decode(leaves.specs, leaves.config())).specs
    schemes = {s.scheme for s in specs.values()} - {None}
    nf4, q4_1 = Scheme("nf4", 32, "dynamic8", second="dynamic8"), Scheme("uint4", 32, "f16", zero="min_f16")
    assert {nf4, q4_1} < schemes
    assert {s.element for s in schemes if s is not None} == {"nf4", "uint4", "int8"}
    again = export(tmp_path / "again", f"model.source={there}", "quant=none", "export=hf", "export.dtype=bf16")
    at_once = export(tmp_path / "at_once", *quant, "export=hf", "export.dtype=bf16")
    assert files(again) == files(at_once)
    target = abstract(there)
    restored = ocp.StandardCheckpointer().restore(there, target)
    assert jax.tree.structure(restored) == jax.tree.structure(target)
    name = "model.layers.0.mlp.experts.down_proj.second"
    assert np.asarray(restored[name.removesuffix(".second")].second).tobytes() == leaves.read(name).tobytes()


def test_killed_it_goes_on_where_it_was(written: Path, tmp_path: Path) -> None:
    args = (*MAIN[:1], "dask.chunk=32KiB", "export=orbax", "export.container.chunk_nbytes=4194304")
    process = start(*QUIETLY, *args, f"paths.run={tmp_path / 'run'}")
    after_chunks(tmp_path / "run", 2, process)
    kill_tree(process.pid)
    end(process)
    assert not (tmp_path / "run/model").exists()
    assert files(export(tmp_path / "run", *args)) == files(written)
    assert manifest(tmp_path / "run")["chunks"]["reused"] >= 2
