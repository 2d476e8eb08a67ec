"""Inputs that are rounded under scales of calibration, and rotated, on a mesh: each device does what one does with all
of a row, to the part that it has."""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from pipeline.errors import PlanError
from pipeline.mesh import Mesh
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.testing.memory import quantized
from plugins.engine.load import parameters
from plugins.models.common.rounding import Fed, Rounder, Turn
from plugins.quant.hadamard import Hadamard
from stages.quantize import Quantize
from tests.cases import model_runs
from tests.cases.quantized import quant_method
from tests.sharding import models
from tests.sharding.models import IDS, MESHES, POSITIONS, apart
from tests.unit.engine.test_activations import rounder
from tests.unit.stages.test_smooth import MATRICES, Seen

INT8 = quant_method("int8")
BY = Hadamard(32, seed=3)
# One of weights that are gathered, and otherwise with inputs of down projections divided: dynamic scales are refused.
CALIBRATED = [
    ("llama", "fsdp_tensor", "int8"), ("gpt_oss", "expert_tensor", "int8"), ("qwen3_moe", "expert", "nvfp4"),
    ("mistral", "tensor", "nvfp4"), ("qwen3", "fsdp", "fp8_e4m3"), ("gpt_oss", "fsdp", "int8"),
]  # fmt: skip
TURNED = [
    ("llama", "fsdp_tensor", "mxfp8_e4m3"), ("gpt_oss", "expert_tensor", None), ("qwen3_moe", "fsdp", None),
    ("mistral", "two_axes", None),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield


def coded(kind: str, folder: Path, **more: Any) -> Checkpoint:
    """In int8, after calibration that saw other inputs of every width."""
    plain = models.checkpoint(kind, layers=1)
    names = {n: s for n, s in plain.store.specs.items() if any(fnmatchcase(n, p) for p in MATRICES)}
    rules = tuple(Rule("quant", p) for p in (MATRICES if kind == "gpt_oss" else MATRICES[:1]))
    return Quantize(INT8, rules, **more).run(Context(folder), replace(plain, statistics=Seen(names)))


def logits(kind: str, mesh: Mesh | None, of: Checkpoint, **options: Any) -> tuple[Any, dict[Any, Any]]:
    """Of `IDS`; and what came with each packed weight, by its names."""
    runtime = models.model(kind, mesh, of=of, **options).runtime
    held = {p.names: p.get_value() for p in parameters(runtime.model()) if p.spec.scheme is not None}
    return np.asarray(runtime.forward(IDS, POSITIONS)), held


@pytest.mark.parametrize(("kind", "name", "option"), CALIBRATED)
@pytest.mark.brief("gpt_oss-expert_tensor-int8")
def test_calibrated_scales_are_those_of_one_device(kind: str, name: str, option: str, tmp_path: Path) -> None:
    """Each weight has its own wherever it lies, and a device whose part saw no large value takes no smaller one."""
    method = quant_method(option)
    of = coded(kind, tmp_path, inputs=method)
    given: dict[str, Any] = {"activations": method, "activations_scales": "calibrated"}
    replace(models.engine(), mesh=MESHES[name], **given).plan(of, text=False)
    alone, held = logits(kind, None, of, **given)
    mesh, spread = logits(kind, MESHES[name], of, **given)
    as_they_are, _ = logits(kind, None, of)
    assert {n: w.inputs for n, w in spread.items()} == {n: w.inputs for n, w in held.items()}
    assert len({w.inputs for w in held.values()}) > 1
    assert apart(as_they_are, alone) > 1e-3
    # A last bit may take a value to the next code.
    assert np.median(np.abs(mesh - alone)) < 1e-6 * np.abs(alone).max()
    assert apart(mesh, alone) < apart(as_they_are, alone) / 3


@pytest.mark.parametrize(("kind", "name", "option"), TURNED)
@pytest.mark.brief("llama-fsdp_tensor-mxfp8_e4m3", "gpt_oss-expert_tensor-None")
def test_inputs_are_rotated_as_on_one_device(kind: str, name: str, option: str | None, tmp_path: Path) -> None:
    of = coded(kind, tmp_path, turn=BY)
    given = {} if option is None else {"activations": quant_method(option)}
    replace(models.engine(), mesh=MESHES[name], **given).plan(of, text=False)
    alone, _ = logits(kind, None, of, **given)
    mesh, held = logits(kind, MESHES[name], of, **given)
    without, _ = logits(kind, None, replace(of, turned=None), **given)
    assert {w.turn.rotation for w in held.values()} == {BY}
    assert apart(without, alone) > 0.1
    assert np.median(np.abs(mesh - alone)) < 1e-6 * np.abs(alone).max()
    assert apart(mesh, alone) < (1e-5 if option is None else 0.02)


@pytest.mark.parametrize("option", ["int8", "nvfp4"])
def test_a_part_of_a_row_gets_the_codes_that_all_of_it_gets(option: str) -> None:
    """Bit for bit, under a scale that was made before."""
    by = replace(rounder(option), fed=True)
    weight = Fed.of(quantized(INT8.scheme, (8, 192)), 0.02)  # type: ignore[arg-type]
    x = np.random.default_rng(0).standard_normal((3, 192)).astype(np.float32)
    x[:, :48] *= 50  # what the first of four devices has
    np.testing.assert_array_equal(divided(by.before(weight), x), jax.jit(by.before(weight))(x))


def test_each_part_of_a_row_is_rotated_by_its_own_blocks() -> None:
    """Signs differ from block to block."""
    x = np.random.default_rng(0).standard_normal((3, 256)).astype(np.float32)
    weights = [Fed.of(quantized(INT8.scheme, (8, 256)), None, Turn(BY, over)) for over in ((), ("a", "b"))]  # type: ignore[arg-type]
    whole, part = (rounder("mxfp4").before(w) for w in weights)
    found, wanted = divided(part, x), np.asarray(whole(x))
    assert np.mean(found == wanted) > 0.99  # the order of sums may take a value to the next code
    assert not np.array_equal(wanted[:, :64], wanted[:, 64:128])
    assert apart(divided(part, np.tile(x[:, :64], 4))[:, 64:128], whole(np.tile(x[:, :64], 4))[:, :64]) > 0.1


def divided(fn: Rounder, x: Any) -> Any:
    """`fn` of each of four devices' part of the rows of `x`."""
    devices = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows = P(None, ("a", "b"))  # type: ignore[no-untyped-call]
    return np.asarray(jax.jit(jax.shard_map(fn, mesh=devices, in_specs=rows, out_specs=rows))(x))


def test_blocks_that_a_mesh_cuts_are_said(tmp_path: Path) -> None:
    nvfp4, eight, many = quant_method("nvfp4"), Mesh({"tensor": 8}, {"mlp": "tensor"}, {}, 1.0), {"tensor": 32}
    engine = replace(models.engine(), activations=nvfp4, activations_scales="calibrated", mesh=eight)
    of = coded("llama", tmp_path, inputs=nvfp4)
    engine.plan(of, text=False)  # 32 on each device
    with pytest.raises(PlanError) as why:
        replace(engine, mesh=replace(eight, axes=many)).plan(of, text=False)
    assert [(p.where, p.message) for p in why.value.problems] == [
        ("activations", "before model.layers.0.mlp.down_proj.weight: its input is divided over tensor, 8 on each "
         "device, and scales are of blocks of 16; mesh.stored divides weights and no inputs")
    ]  # fmt: skip
    turned = coded("llama", tmp_path, turn=Hadamard(64))
    with pytest.raises(PlanError) as why:
        replace(models.engine(), mesh=eight).plan(turned, text=False)
    assert {(p.where, p.message.partition(": ")[2]) for p in why.value.problems} == {
        ("activations_rotate", "its input is divided over tensor, 32 on each device, and blocks of 64 are rotated "
         "together; mesh.stored divides weights and no inputs")
    }  # fmt: skip
