"""What people do with a model works on a mesh as on one device: generate, score, look inside, replace tensors."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.api import quant_method
from pipeline.engine import Against, Windows
from pipeline.errors import PlanError
from pipeline.mesh import Mesh
from pipeline.ops import Kernel
from plugins.engine import score as scoring
from plugins.engine.generate import generate
from plugins.engine.options import Sampling
from plugins.engine.runtime import Runtime
from plugins.engine.sizes import rows
from plugins.engine.start import start
from plugins.kernels.attention import xla as attention
from plugins.kernels.matmul import weights
from tests.cases import model_runs
from tests.sharding import models
from tests.sharding.models import IDS, MESHES, POSITIONS, VOCAB, apart

USED = [  # and the dtype of the cache
    ("llama", "fsdp_tensor", "int8"), ("gemma3", "tensor", "bf16"), ("mistral", "data", "auto"),
    ("qwen3_moe", "expert_tensor", "auto"), ("gpt_oss", "data_expert", "auto"),
]  # fmt: skip
THREE = Mesh({"data": 3}, {"batch": "data"}, {}, 1.0)
PROMPTS = [np.random.default_rng(n).integers(0, VOCAB, n).tolist() for n in (5, 17, 3)]
GREEDY = Sampling(max_tokens=12)  # round the ring of a window of 7
WARM = Sampling(max_tokens=12, temperature=0.8, top_p=0.9, repetition_penalty=1.2)
TEXT = np.random.default_rng(3).integers(0, VOCAB, 100).tolist()
CUT = Windows(16, batch=4)  # of the last batch not all rows are windows


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield


def tokens(runtime: Any, sampling: Sampling, prompts: Any = PROMPTS) -> list[tuple[int, ...]]:
    return [c.tokens for c in generate(runtime, prompts, sampling)[0]]


@pytest.mark.parametrize(("kind", "name", "dtype"), USED)
@pytest.mark.brief("gpt_oss-data_expert-auto", "llama-fsdp_tensor-int8")
def test_tokens_are_those_of_one_device(kind: str, name: str, dtype: str) -> None:
    """Three prompts of unequal length, in four rows or more; every device has its rows and heads of the cache."""
    mesh = MESHES[name]
    of = models.checkpoint(kind, layers=1)
    alone, runtime = (models.model(kind, m, of=of, cache=dtype).runtime for m in (None, mesh))
    assert tokens(runtime, GREEDY) == tokens(alone, GREEDY)
    cache = runtime.new_cache(4, 20)  # compiled already
    local = [s.data.nbytes for a in jax.tree.leaves(cache) for s in a.addressable_shards[:1]]
    parts = mesh.ways(mesh.over("batch")) * mesh.ways(mesh.over("kv_heads"))
    k = cache.layers[0].k
    assert k.addressable_shards[0].data.size * parts == k.size
    assert sum(local) == runtime.cache_nbytes(4, 20)
    assert {key[0] for key in runtime.compiled} == {"cache", "prefill", "first", "step"}


@pytest.mark.parametrize(
    ("kind", "name", "option"),
    [("gpt_oss", "data_expert", "mxfp8_e4m3"), ("llama", "fsdp", "int8"), ("qwen3_moe", "expert", "nvfp4")],
)
@pytest.mark.repeats  # test_rounded.py: of inputs that are rotated too, and of experts under calibrated scales
def test_inputs_are_rounded_as_on_one_device(kind: str, name: str, option: str) -> None:
    """Where no device has a part of them only: the same codes, so the same numbers but for the order of sums."""
    given = {"of": models.packed(kind, 0, layers=1), "activations": quant_method(option)}
    alone, mesh = (models.model(kind, m, **given).runtime.forward(IDS, POSITIONS) for m in (None, MESHES[name]))
    as_they_are = models.model(kind, None, of=given["of"]).runtime.forward(IDS, POSITIONS)
    assert apart(as_they_are, alone) > 1e-3
    # A last bit may take a value to the next code.
    assert np.median(np.abs(np.asarray(mesh) - np.asarray(alone))) < 1e-6 * np.abs(np.asarray(alone)).max()
    assert apart(mesh, alone) < apart(as_they_are, alone) / 3


class Slow:
    """What is to be compiled, and takes a minute by a clock that nothing else moves."""

    def __init__(self, jitted: Any, clock: list[float]):
        self.jitted, self.clock = jitted, clock

    def lower(self, *args: Any) -> Any:
        self.clock[0] += 60
        return self.jitted.lower(*args)


def test_compiling_is_counted_as_such_and_in_no_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a cache too, which is a program on a mesh."""
    clock, compile_ = [0.0], Runtime._compile
    monkeypatch.setattr(
        Runtime, "_compile", lambda self, key, jitted, *args: compile_(self, key, Slow(jitted, clock), *args)
    )
    for module in ("generate", "runtime"):
        monkeypatch.setattr(f"plugins.engine.{module}.time", SimpleNamespace(perf_counter=lambda: clock[0]))
    runtime = models.model("llama", MESHES["data"]).runtime
    for programs in (4, 0):  # a cache, prefill, first and step; and then they are there
        timings = generate(runtime, PROMPTS[:1], Sampling(max_tokens=3))[1]
        assert (timings.compile, timings.prepare, timings.prefill, timings.decode) == (60 * programs, 0, 0, 0)


@pytest.mark.parametrize(("kind", "name"), [("llama", "fsdp_tensor"), ("gpt_oss", "expert_tensor")])
@pytest.mark.brief("llama-fsdp_tensor")
def test_native_kernels_of_several_devices_run_at_once(kind: str, name: str) -> None:
    native = ("matmul", "moe", "attention")
    of = models.packed(kind, 0, layers=1)
    runtime = models.model(kind, MESHES[name], *native, of=of).runtime
    alone = models.model(kind, None, *native, of=of).runtime
    assert apart(runtime.forward(IDS, POSITIONS), alone.forward(IDS, POSITIONS)) < 1e-5
    assert tokens(runtime, GREEDY) == tokens(alone, GREEDY)


@pytest.mark.parametrize(("kind", "name"), [("llama", "fsdp_tensor"), ("gpt_oss", "expert")])
@pytest.mark.brief("gpt_oss-expert")
def test_scores_and_hidden_states_are_those_of_one_device(kind: str, name: str, tmp_path: Path) -> None:
    """A baseline of one device serves a mesh, and the other way round."""
    of = models.checkpoint(kind, layers=1)
    alone, mesh = (models.model(kind, m, of=of) for m in (None, MESHES[name]))
    found = {}
    for name_, model in (("alone", alone), ("mesh", mesh)):
        found[name_] = model.score(TEXT, CUT, keep=tmp_path / name_)
        model.keep_head(tmp_path / f"{name_}.head")
    assert found["mesh"].nll == pytest.approx(found["alone"].nll, rel=1e-5)
    for model, base in ((mesh, "alone"), (alone, "mesh")):
        scored = model.score(TEXT, CUT, against=Against(tmp_path / base, tmp_path / f"{base}.head"))
        assert scored.nll == pytest.approx(found["alone"].nll, rel=1e-5)
        assert scored.kl == pytest.approx(0, abs=1e-6)
        assert scored.top1 == 1
    assert (tmp_path / "alone").stat().st_size == (tmp_path / "mesh").stat().st_size
    expected = alone.taps(TEXT[:9])
    taps = mesh.taps(TEXT[:9])
    assert list(taps) == list(expected)
    assert max(apart(taps[name], expected[name]) for name in expected) < 1e-5


@pytest.mark.repeats
def test_sizes_that_take_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in bands, queries and scores in blocks, and more tokens than the sampler looks at first."""
    monkeypatch.setattr(weights, "CPU_BAND_NBYTES", 4096)
    monkeypatch.setattr(attention, "QUERIES", 4)
    monkeypatch.setattr(scoring, "LOGITS_NBYTES", 4 * 320 * 10)
    of = models.checkpoint("gpt_oss", 320, layers=1)
    alone, mesh = (models.model("gpt_oss", m, of=of) for m in (None, MESHES["expert_tensor"]))
    assert tokens(mesh.runtime, WARM) == tokens(alone.runtime, WARM)
    scores = [model.score(TEXT, CUT, keep=tmp_path / "kept").nll for model in (alone, mesh)]
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)


def test_replaced_tensors_lie_as_those_they_replace() -> None:
    model, of = models.model("llama", MESHES["fsdp_tensor"], of=models.checkpoint("llama")), models.packed("llama", 0)
    names = ["model.layers.0.mlp.down_proj.weight", "model.layers.1.self_attn.k_proj.weight"]
    before = np.asarray(model.runtime.forward(IDS, POSITIONS))
    with model.replaced(names, of):
        changed = model.runtime.forward(IDS, POSITIONS)
        alone = models.alone("llama")
        with alone.replaced(names, of):
            assert apart(changed, alone.runtime.forward(IDS, POSITIONS)) < 1e-5
    assert apart(changed, before) > 1e-3
    assert len(models.programs(model.runtime, "forward")) == 1
    np.testing.assert_array_equal(model.runtime.forward(IDS, POSITIONS), before)


@pytest.mark.repeats
def test_rows_that_do_not_divide_are_padded() -> None:
    """Padding has position -1, and does not show."""
    runtime, alone = models.model("llama", THREE).runtime, models.alone("llama").runtime
    for n in (1, 3, 4):
        found = runtime.forward(IDS[:n], POSITIONS[:n])
        assert apart(found, models.logits("llama")[:n]) < 1e-5
    assert tokens(runtime, GREEDY, PROMPTS[:2]) == tokens(alone, GREEDY, PROMPTS[:2])
    assert [rows(n, 3) for n in (1, 2, 3, 4, 5)] == [3, 3, 6, 6, 9]
    assert [rows(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, 8]


def test_what_runs_on_one_device_is_refused() -> None:
    engine = models.engine()
    slow = replace(engine.ops, softmax=Kernel("softmax", ("reference",)), rope=Kernel("rope", ("xla", "reference")))
    wrong = replace(engine, mesh=MESHES["tensor"], device="cpu:1", ops=slow)
    with pytest.raises(PlanError) as why:
        wrong.load(models.checkpoint("llama"))
    assert {p.where: p.message for p in why.value.problems} == {
        "engine.device": "'cpu:1' is one device, and the mesh has 2; 'cpu' is all of its kind",
        "kernels": "reference cannot be compiled, and what is not runs on one device; kernels=auto, or mesh=single",
    }


def test_a_mesh_takes_all_devices_or_none() -> None:
    engine = replace(models.engine(), mesh=MESHES["tensor"])
    with pytest.raises(PlanError, match=r"tensor 2 = 2 devices, and there are 4;.*device_count=2 makes a CPU so many"):
        engine.load(models.checkpoint("llama"))


def operations(program: Any) -> list[str]:
    """Of a compiled program, without where in the source they come from: that differs by who called."""
    return [re.sub(r", metadata=\{[^}]*\}", "", line) for line in program.as_text().splitlines() if " = " in line]


def test_one_device_runs_the_program_without_a_mesh() -> None:
    """Whatever its axes are called."""
    one = Mesh({"data": 1, "tensor": 1}, {"batch": "data", "heads": "tensor", "mlp": "tensor"})
    texts = []
    for mesh in (None, one):
        runtime = start(
            replace(models.engine(), mesh=mesh) if mesh else models.engine(), models.checkpoint("llama")
        ).runtime
        runtime.forward(IDS, POSITIONS)
        [program] = models.programs(runtime, "forward")
        assert not list(models.collectives(program))
        texts.append(operations(program))
    assert texts[0] == texts[1]
    assert texts[0]
    assert "shard_map" not in str(texts[0])
