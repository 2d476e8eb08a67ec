"""What a key depends on: everything that can change a result, and nothing else."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipeline.api import compose_run
from pipeline.planning.identity import Key, differences, keyed, node_keys, resolved, settled
from pipeline.planning.memory import plan_run

MAIN = ("+model=gpt_oss", "quant=mxfp4")


def keys(*overrides: str) -> dict[str, Key]:
    run = compose_run([*MAIN, *overrides])
    return dict(plan_run(run, Path("/nowhere"), fetch=False).keys)


@pytest.fixture(scope="module")
def main() -> dict[str, Key]:
    return keys()


def new(before: dict[str, Key], now: dict[str, Key]) -> dict[str, list[str]]:
    """Node → what is new in its key."""
    found = {n: [str(d) for d in differences(before[n].parts, now[n].parts)] for n in now}
    assert all((before[n].id == now[n].id) == (not found[n]) for n in now)
    return {n: d for n, d in found.items() if d}


def test_every_node_has_a_key_and_equal_configs_equal_keys(main: dict[str, Key]) -> None:
    assert list(main) == ["load", "decode", "quantize", "export", "shard", "evaluate", "generate"]
    assert len({k.id for k in main.values()}) == 7
    assert new(main, keys()) == {}


WITHOUT_EFFECT = (
    "paths.outputs=x",
    "export.path=/elsewhere",
    "engine.programs=null",
    "dask=distributed",
    "dask.chunk=1MiB",
    "hub.cache=/x",
    "digest_inputs=false",
    "overwrite=true",
    "model.model_types=[gpt_oss,other]",
)


def test_what_cannot_change_a_result_is_in_no_key(main: dict[str, Key]) -> None:
    assert new(main, keys(*WITHOUT_EFFECT)) == {}


@pytest.mark.repeats
@pytest.mark.parametrize("override", WITHOUT_EFFECT)
def test_none_of_it_is(main: dict[str, Key], override: str) -> None:
    assert new(main, keys(override)) == {}


def test_two_spellings_are_one_key(main: dict[str, Key]) -> None:
    spelt = keys("engine.dtype=bf16", "export.dtype=fp16", "sampling.temperature=1.0")
    assert new(spelt, keys("engine.dtype=bfloat16", "export.dtype=half", "sampling.temperature=1")) == {}
    found = new(main, spelt)
    assert "field engine.dtype: auto → bf16" in found["evaluate"]
    assert "field dtype: keep → fp16" in found["export"]
    assert "field sampling.temperature: 0.0 → 1.0" in found["generate"]
    assert new(keys("engine.dtype=fp32"), keys("engine.dtype=float32")) == {}


def test_a_secret_is_not_put_back_into_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came from the environment is there by name and digest, whatever the stage holds."""
    monkeypatch.setenv("WORD", "float32")
    assert "${oc.env:WORD}" in str(keys("export.dtype=${oc.env:WORD}")["export"].parts["config"])


def test_a_field_is_named_where_it_is_and_what_comes_after_takes_another_input(main: dict[str, Key]) -> None:
    taken = ["input checkpoint"]
    assert new(main, keys("quant.scale_rule=even")) == {
        "quantize": ["field method.scale_rule: None → even"], "export": taken, "shard": taken,
        "evaluate": [*taken, "input exported"], "generate": [*taken, "input exported"],
    }  # fmt: skip
    assert new(main, keys("evaluate.windows.tokens=99")) == {"evaluate": ["field windows.tokens: auto → 99"]}


def test_a_mesh_counts_where_a_model_runs(main: dict[str, Key]) -> None:
    """Sums over devices round otherwise; what is quantized and written is the same."""
    divided = keys("mesh=expert")
    found = new(main, divided)
    assert set(found) == {"shard", "evaluate", "generate"}
    assert "field mesh.axes.expert: nothing → 2" in found["shard"]
    assert "field engine.mesh.axes.expert: nothing → 2" in found["evaluate"]
    allowed = new(divided, keys("mesh=expert", "mesh.replicated_most=1"))
    assert allowed == {}


def test_what_was_chosen_counts_and_not_what_it_was_chosen_from(main: dict[str, Key]) -> None:
    """`export=auto` takes hf here, so that asking for hf is the same."""
    assert new(main, keys("export=hf")) == {}
    [line, *_] = new(main, keys("export=original"))["export"]
    assert line.startswith("resolved dialect._target_: ")
    assert not {m for m in main["load"].parts["code"] if "gguf" in m or "bitsandbytes" in m}


def test_the_backend_that_is_chosen_is_followed(main: dict[str, Key]) -> None:
    found = new(main, keys("kernels=xla"))["quantize"]
    assert "module plugins.kernels.quantize.xla (new)" in found
    assert any(line.startswith("library jax: nothing → ") for line in found)


def test_content_stands_for_a_file_as_soon_as_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where no digest is known yet
    main = keys()
    weights = {s[0]: "0" * 32 for s in main["load"].parts["files"].values() if isinstance(s, list)}
    assert len(weights) == 3
    known = settled(main, weights)
    assert not [f for f in known["load"].parts["files"].values() if isinstance(f, list)]
    assert all(known[n].id != main[n].id for n in main)
    run = compose_run(list(MAIN))
    plan = plan_run(run, Path("/nowhere"), fetch=False)
    again = node_keys(run, plan, lambda file: "0" * 32)
    assert {n: k.id for n, k in again.items()} == {n: k.id for n, k in known.items()}


@dataclass(frozen=True)
class Device:
    kind: str

    def identity(self) -> dict[str, str]:
        return {"device": self.kind}


def test_what_only_the_run_knows_is_open_until_then(main: dict[str, Key]) -> None:
    assert {n: list(k.open) for n, k in main.items() if k.open} == {"evaluate": ["engine"], "generate": ["engine"]}
    cpu, gpu = (resolved(replace(main["evaluate"], open={"engine": Device(d)})) for d in ("cpu", "gpu"))
    assert len({cpu.id, gpu.id, main["evaluate"].id}) == 3
    assert not cpu.open
    assert [str(d) for d in differences(cpu.parts, gpu.parts)] == ["resolved engine.device: cpu → gpu"]
    assert resolved(main["load"]) == main["load"]


def test_who_can_look_at_the_seed(main: dict[str, Key]) -> None:
    """None of ours does by its context; what is random there has a field, which says so where it counts."""
    found = new(main, keys("seed=1"))
    assert found["quantize"] == ["field method.seed: 0 → 1"]
    assert not any(line.startswith("seed") for lines in found.values() for line in lines)


def test_work_that_has_its_key_is_left_as_it_is() -> None:
    """A copy would work out its thousands of chunks anew."""
    run = compose_run(list(MAIN))
    plan = plan_run(run, Path("/nowhere"), fetch=False)
    keyed(run, plan, lambda file: None)  # digests of an earlier run may have been known
    work = plan.works["export"]
    keyed(run, plan, lambda file: None)
    assert plan.works["export"] is work
    keyed(run, plan, lambda file: "0" * 32)
    assert plan.works["export"] is not work


def test_keys_without_digests_are_those_of_a_machine_that_has_read_nothing() -> None:
    run = compose_run(["+model=gpt_oss", "quant=mxfp4"])
    plan = plan_run(run, Path("outputs/x"))
    keyed(run, plan, lambda file: "0" * 32)
    unread, known = node_keys(run, plan), node_keys(run, plan, lambda file: "0" * 32)
    assert {n: k.parts for n, k in plan.stand_ins.items()} == {n: k.parts for n, k in unread.items()}
    assert [k.id for k in plan.stand_ins.values()] == [k.id for k in unread.values()]
    assert [k.id for k in plan.keys.values()] == [k.id for k in known.values()] != [k.id for k in unread.values()]
