"""What a mesh holds is written as if it came from files: byte for byte, in every container, a chunk at a time."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.errors import StageError
from pipeline.formats import Container, Dialect
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.store import TensorStore
from pipeline.testing.memory import same
from plugins.engine.load import on_devices
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.gguf.file import GgufContainer
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.gpt_oss.dialect import GptOss
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from plugins.mesh.store import DeviceStore
from stages.export import Export
from tests.cases import model_runs
from tests.sharding import toys
from tests.sharding.test_load import MESHES, checkpoint, folder

CASES: dict[str, tuple[str, str, str, Dialect, Container]] = {
    "safetensors": ("qwen3_moe", "none", "", HuggingFaceDialect(), SafeTensors()),
    "gpt-oss": ("gpt_oss", "mxfp4", "*experts.*_proj", GptOss(), SafeTensors()),
    "compressed tensors": ("llama", "fp8_e4m3", "*layers.*_proj.weight", CompressedTensors(), SafeTensors()),
    "gguf": ("llama", "q8_0", "*_proj.weight", GgufDialect(), GgufContainer()),
    "gguf of experts": ("qwen3_moe", "q4_0", "*.experts.*", GgufDialect(), GgufContainer()),
}


def write(given: Checkpoint, target: Path, dialect: Dialect, container: Container) -> dict[str, bytes]:
    """Export as the stage does; what the files hold but for the marker, which names the run."""
    engine = model_runs.engine()
    stage = Export(dialect, container, engine.unpack, engine.cast, str(target), None)
    work = stage.run(Context(target.parent, chunk_nbytes=1 << 16), given)
    work.begin(fresh=True)
    records = [{"digest": work.do(chunk)} for chunk in work.chunks]
    work.finish(records)
    found = (p for p in target.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in found}


def on_mesh(given: Checkpoint, name: str) -> Checkpoint:
    """What a mesh holds of it."""
    return replace(given, store=on_devices(toys.load(given, MESHES[name]), given.store.specs), stored={})


@pytest.mark.parametrize("name", CASES)
def test_files_are_the_same_as_without_a_mesh(name: str, tmp_path: Path) -> None:
    kind, quant, pattern, dialect, container = CASES[name]
    rules = f"[{{match: '{pattern}', to: quant}}]" if pattern else model_runs.KEEP
    given = model_runs.checkpoint(folder(kind), quant=quant, rules=rules)
    want = write(given, tmp_path / "files", dialect, container)
    got = write(on_mesh(given, "fsdp_tensor"), tmp_path / "mesh", dialect, container)
    assert list(got) == list(want)
    assert all(got[file] == want[file] for file in want)


@pytest.mark.parametrize("kind", toys.CONFIGS)
def test_orbax_in_every_scheme_and_on_other_meshes(kind: str, tmp_path: Path) -> None:
    """Written from one mesh by us; restored by Orbax, and read by us, on others."""
    given = checkpoint(kind, 1)
    want = write(given, tmp_path / "files", Pytree(), Orbax())
    got = write(on_mesh(given, "fsdp_tensor"), tmp_path / "mesh", Pytree(), Orbax())
    assert got == want
