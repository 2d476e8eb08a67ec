"""What comes with `flow=bench_scale`: checkpoints that are made up, of any size, and a model at work on them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from pipeline.contender import Form
from pipeline.errors import ConfigError, PlanError, StageError
from plugins.contenders.jax import Jax
from plugins.formats.safetensors.container import SafeTensors
from plugins.scales import synthetic
from plugins.scales.convert import Convert
from plugins.scales.model import Model
from plugins.scales.plan import Plan

SMALL = synthetic.Llama(layers=2, hidden=32, inner=64, heads=2, vocab=16)


def test_a_checkpoint_has_values_in_shards_that_others_read(tmp_path: Path) -> None:
    synthetic.write(SMALL, tmp_path, 20_000, values=True)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    specs = dict(SMALL.specs())
    assert list(index["weight_map"]) == list(specs)
    assert index["metadata"]["total_size"] == SMALL.nbytes
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert all(file.stat().st_size < 22_000 for file in files)
    for file in files:
        with safe_open(file, "flax") as held:
            for name in held.keys():  # noqa: SIM118  it is no dict
                values = np.asarray(held.get_tensor(name), np.float32)
                assert values.shape == specs[name].shape
                assert 0.015 < values.std() < 0.025
                assert abs(values.mean()) < 0.01


def test_headers_alone_take_no_disk(tmp_path: Path) -> None:
    synthetic.write(SMALL, tmp_path, 1 << 30, values=False)
    [file] = tmp_path.glob("*.safetensors")
    assert file.stat().st_size > SMALL.nbytes
    assert 512 * file.stat().st_blocks < 0.5 * SMALL.nbytes
    assert SafeTensors().open(tmp_path).specs == dict(SMALL.specs())


@pytest.mark.parametrize("size", [1_000_000, 3_000_000, 30_000_000, 100_000_000, 3_000_000_000])
def test_a_conversion_s_source_is_as_large_as_it_is_said(size: int) -> None:
    from plugins.scales.convert import _model

    assert _model(size).nbytes == pytest.approx(size, rel=0.15)
    assert _model(size).hidden % (2 * _model(size).heads) == 0


@pytest.mark.parametrize("size", [100, 1000])
def test_a_plan_is_of_as_many_tensors_as_it_is_said(size: int, tmp_path: Path) -> None:
    plan = Plan((100, 1000, 10_000, 100_000), {"seconds": 1}, ())
    plan.prepare(size, tmp_path)
    held = sum(512 * file.stat().st_blocks for file in tmp_path.rglob("*") if file.is_file())
    assert held < plan.disk_nbytes(size)
    assert len(SafeTensors().open(tmp_path / "source").specs) == pytest.approx(size, abs=5)


def test_a_plan_with_problems_is_no_measurement(tmp_path: Path) -> None:
    plan = Plan((100, 1000, 10_000, 100_000), {}, ("quant=mxfp4", "export=bitsandbytes"))
    plan.prepare(30, tmp_path)
    with pytest.raises(PlanError, match="bitsandbytes"):
        plan.measure(30, tmp_path, 1)


@pytest.mark.parametrize("size", [1_000_000, 2_000_000])
def test_a_conversion_writes_and_can_be_repeated(size: int, tmp_path: Path) -> None:
    convert = Convert(("1MB", "2MB", "3MB", "4MB"), {}, "500KB", ("quant=int8", "export=auto"))
    convert.prepare(size, tmp_path)
    for _ in range(2):
        assert convert.measure(size, tmp_path, 1) == {}
        assert len([*(tmp_path / "out").rglob("config.json")]) == 1
    held = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    assert size < held < convert.disk_nbytes(size)


@dataclass(frozen=True)
class Counting:
    """A contender that multiplies nothing, and remembers what it was asked."""

    asked: list[Any] = field(default_factory=list)
    lost: int = 0
    needs: Mapping[str, str] = field(default_factory=dict)

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        return Form(quant, "hf", why_not="it has no Llama" if self.lost < 0 else "")

    def load(self, place: Path, threads: int) -> "Counting":
        self.asked.append(("load", json.loads((place / "config.json").read_text())["num_hidden_layers"]))
        return self

    def versions(self) -> Mapping[str, str]:
        return {}

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.asked.append(("prefill", np.shape(prompts)))

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        self.asked.append(("decode", np.shape(prompts), new))
        for _ in range(new - self.lost):
            seen()
        return [[0] * new for _ in prompts]


def model(over: str, engine: Counting | Jax, **given: int) -> Model:
    numbers = {"layers": 2, "hidden": 32, "inner": 64, "heads": 2, "vocab": 16, "context": 5, "batch": 3, "new": 4,
               "repeats": 2}  # fmt: skip
    return Model(over, (1, 2, 4, 8), {}, engine, **{**numbers, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("over", "asked", "finds"),
    [
        ("context", [("load", 2), *[("decode", (3, 4), 5)] * 3], "token"),
        ("batch", [("load", 2), *[("decode", (4, 5), 5)] * 3], "token"),
        ("layers", [("load", 4), *[("decode", (3, 5), 5)] * 3], "token"),
        ("prompt", [("load", 2), *[("prefill", (1, 4))] * 3], "prompt"),
    ],
)
def test_a_model_is_asked_for_its_size(over: str, asked: Any, finds: str, tmp_path: Path) -> None:
    engine = Counting()
    growing = model(over, engine)
    growing.prepare(4, tmp_path)
    found = growing.measure(4, tmp_path, 1)
    assert engine.asked == asked
    assert found.keys() == growing.units.keys() == {finds}
    assert 0 < found[finds] < 1


def test_what_an_engine_does_not_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="engine: it has no Llama"):
        model("batch", Counting(lost=-1))
    growing = model("batch", Counting(lost=1))
    growing.prepare(1, tmp_path)
    with pytest.raises(StageError, match="5 tokens were asked for, and it says that it made 4"):
        growing.measure(1, tmp_path, 1)


@pytest.mark.parametrize("over", ["batch", "prompt"])
def test_our_engine_runs_what_is_made_up(over: str, tmp_path: Path) -> None:
    growing = model(over, Jax())
    growing.prepare(2, tmp_path)
    [seconds] = growing.measure(2, tmp_path, 1).values()
    assert 1e-6 < seconds < 1
