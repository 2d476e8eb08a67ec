"""Weights onto meshes: the same bytes as on one device, each read once, and as many as were planned."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pipeline.planning.reading import bytes_read
from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import box_nbytes
from plugins.engine.load import device_nbytes, parameters
from tests.cases import model_runs
from tests.sharding import toys

FOLDER = TemporaryDirectory(prefix="loading-")
MESHES = {
    "data": toys.mesh("data", data=4), "fsdp": toys.mesh("fsdp", fsdp=4), "tensor": toys.mesh("tensor", tensor=4),
    "expert": toys.mesh("expert", expert=4), "fsdp_tensor": toys.mesh("fsdp_tensor"),
    "multihost": toys.mesh("multihost", host=2, fsdp=2),
}  # fmt: skip
OPTIONS = sorted(p.stem for p in (model_runs.CONF / "quant").glob("*.yaml") if p.stem != "none")
NF4_TWICE = "quant.scale=dynamic8", "quant.second=dynamic8"


@cache
def folder(kind: str) -> Path:
    return toys.write(Path(FOLDER.name) / kind, kind)


@cache
def checkpoint(kind: str, turn: int) -> Checkpoint:
    """A toy; in turns from 1 on every matrix has another option of conf/quant."""
    if not turn:
        return model_runs.checkpoint(folder(kind))
    matrices = [n for n, s in toys.specs(kind).items() if len(s.shape) > 1 and "norm" not in n and "bias" not in n]
    patterns = list(dict.fromkeys(n if ".experts." not in n else _experts(n) for n in matrices))
    dealt = [(p, OPTIONS[(i + turn * 7) % len(OPTIONS)]) for i, p in enumerate(patterns)]
    rules = ", ".join(f"{{match: '{p}', to: {option}}}" for p, option in dealt)
    return model_runs.checkpoint(folder(kind), quant="mxfp4", rules=f"[{rules}]")


def _experts(name: str) -> str:
    """All experts of a layer take the same option, as they are stacked."""
    head, _, tail = name.partition(".experts.")
    return f"{head}.experts.{'*.' * tail[0].isdigit()}{tail.partition('.')[2] if tail[0].isdigit() else tail}"


@cache
def alone(kind: str, turn: int) -> dict[str, list[Any]]:
    """What one device holds."""
    return toys.held(toys.load(checkpoint(kind, turn)))


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("kind", toys.CONFIGS)
@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_holds_what_one_device_does_and_reads_what_was_planned(name: str, kind: str, turn: int) -> None:
    mesh, given = MESHES[name], checkpoint(kind, turn)
    store, read = toys.counted(given.store)
    model = toys.load(replace(given, store=store), mesh)
    for param, arrays in toys.held(model).items():
        for got, want in zip(arrays, alone(kind, turn)[param], strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), param
            assert got.tobytes() == want.tobytes(), param
    layouts = toys.layouts_of(mesh, given)
    assert (
        sum(read.values())
        == bytes_read(given.store, mesh, toys.parameters_of(given.config), layouts, [range(mesh.size)])[0]
    )
    assert device_nbytes(model) == sum(box_nbytes(p.spec, layouts[p.names[0]].box(mesh, 0)) for p in parameters(model))
