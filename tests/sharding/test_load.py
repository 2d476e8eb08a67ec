"""Weights onto meshes: the same bytes as on one device, each read once, and as many as were planned."""

from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pipeline.planning.reading import bytes_read
from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import box_nbytes
from plugins.engine.load import device_nbytes, parameters
from tests.cases import model_runs
from tests.sharding import models, toys

FOLDER = TemporaryDirectory(prefix="loading-")
MESHES = {
    "data": toys.mesh("data", data=4), "fsdp": toys.mesh("fsdp", fsdp=4), "tensor": toys.mesh("tensor", tensor=4),
    "expert": toys.mesh("expert", expert=4), "fsdp_tensor": toys.mesh("fsdp_tensor"),
    "multihost": toys.mesh("multihost", host=2, fsdp=2),
}  # fmt: skip
OPTIONS = models.OPTIONS
TWICE = 2  # the turn in which scales are quantized too, across whole tensors
NF4_TWICE = "quant.scale=dynamic8", "quant.second=dynamic8"


@cache
def folder(kind: str) -> Path:
    return toys.write(Path(FOLDER.name) / kind, kind)


@cache
def checkpoint(kind: str, turn: int) -> Checkpoint:
    """A toy; in turns from 1 on every matrix has another option of conf/quant."""
    if not turn:
        return model_runs.checkpoint(folder(kind))
    if turn == TWICE:
        rules = "[{match: '*.self_attn.*_proj.weight', to: quant}]"
        return model_runs.checkpoint(folder(kind), *NF4_TWICE, quant="nf4", rules=rules)
    rules = ", ".join(f"{{match: '{pattern}', to: {option}}}" for pattern, option in dealt(kind, turn).items())
    return model_runs.checkpoint(folder(kind), quant="mxfp4", rules=f"[{rules}]")


def dealt(kind: str, turn: int) -> dict[str, str]:
    """Every matrix, or all of a layer's experts, → its option."""
    matrices = [n for n, s in toys.specs(kind).items() if len(s.shape) > 1 and "bias" not in n]
    patterns = dict.fromkeys(_experts(n) if ".experts." in n else n for n in matrices)
    return {p: OPTIONS[(i + turn * 7) % len(OPTIONS)] for i, p in enumerate(patterns)}


def _experts(name: str) -> str:
    """All experts of a layer take the same option, as they are stacked."""
    head, _, tail = name.partition(".experts.")
    return f"{head}.experts.{'*.' * tail[0].isdigit()}{tail.partition('.')[2] if tail[0].isdigit() else tail}"


@cache
def alone(kind: str, turn: int) -> dict[str, list[Any]]:
    """What one device holds."""
    return toys.held(toys.load(checkpoint(kind, turn)))


def test_every_option_has_its_turn() -> None:
    assert {option for kind in toys.CONFIGS for option in dealt(kind, 1).values()} == set(OPTIONS)


@pytest.mark.parametrize(
    ("name", "turn"), [*((name, 1) for name in MESHES), *product(("fsdp_tensor", "multihost"), (0, TWICE))]
)
@pytest.mark.parametrize("kind", toys.CONFIGS)
@pytest.mark.brief
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


@pytest.mark.parametrize(
    ("kind", "name"),
    [("llama", "model.layers.1.mlp.down_proj.weight"), ("qwen3_moe", "model.layers.0.mlp.experts.2.up_proj.weight")],
)
def test_a_parameter_alone_is_read_again(kind: str, name: str) -> None:
    """Packed where the model is plain, so blocks are no obstacle to where it is divided."""
    plain, packed, mesh = checkpoint(kind, 0), checkpoint(kind, 1), MESHES["fsdp_tensor"]
    store, read = toys.counted(packed.store)
    model, one = toys.load(plain, mesh), toys.load(plain)
    toys.read(model, replace(packed, store=store), mesh, only=(name,))
    toys.read(one, packed, only=(name,))
    changed = {n for n, arrays in toys.held(one).items() if arrays[0].tobytes() != alone(kind, 0)[n][0].tobytes()}
    (param,) = [p for p in parameters(model) if name in p.names]
    assert changed == {param.names[0]}
    assert {tensor for leaf in read if (tensor := leaf) in packed.store.specs} == set(param.names)
    for n, arrays in toys.held(model).items():
        assert arrays[0].tobytes() == toys.held(one)[n][0].tobytes()
