"""`flow=bench`: who is measured and who is not, what is slow or wrong, what was done already, and what got worse."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.bench import against, energy, rows, turns
from pipeline.bench import leaks as leaks_
from pipeline.bench.per_token import PerToken, per_token
from pipeline.config.measuring import of_model, of_quality, unfinished
from pipeline.errors import ConfigError, WeightmillError
from pipeline.records import schemas
from pipeline.records.registry import find
from pipeline.tensors.spec import TensorSpec
from stages.bench_work import EXPORTS, LOGITS
from tests.cases import model_runs
from tests.cases.fake_engines import LIMITS, MODULE, TARGET, written
from tests.cases.guests import guest

SMALL = (
    "bench.prefill=[4]", "bench.batches=[1,2]", "bench.new=4", "bench.repeats=1", "bench.rounds=2", "bench.tokens=32",
    "bench.window=16", "bench.prompt=4", "bench.greedy=4", "bench.threads=1",
)  # fmt: skip
LIMITED = f"stages.bench.limits._target_={LIMITS}"


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = written(tmp_path_factory.mktemp("guest"))
    with guest(folder, {"plugins.contenders.fake": MODULE}):
        yield folder


def bench(fakes: Path, outputs: Path, *overrides: str) -> Any:
    typed = ["+model=gpt_oss", "flow=bench", f"stages.bench.reference._target_={TARGET}", *SMALL, LIMITED, *overrides]
    return pipeline.run([*typed, f"paths.outputs={outputs}"], config_dir=fakes, progress=False)


def record(report: Any) -> dict[str, Any]:
    return schemas.read("benchmark", Path(report.run) / against.NAME)


@pytest.fixture(scope="module")
def first(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    outputs = tmp_path_factory.mktemp("bench") / "outputs"
    return outputs, bench(fakes, outputs, "bench.keep_exports=true", "engines=[fake,slow,wrong,absent,picky,broken]")


def test_every_cell_is_a_row(first: tuple[Path, Any]) -> None:
    outputs, report = first
    found = {row["engine"]: row for row in record(report)["rows"]}
    states = {name: row["state"] for name, row in found.items()}
    assert states == {
        "fake": "measured", "slow": "measured", "wrong": "measured", "absent": "missing", "picky": "unsupported",
        "broken": "failed",
    }  # fmt: skip
    assert found["absent"]["why"] == "not installed; pip install acme_engine"
    assert found["picky"]["why"] == "it has no none"
    assert "no such instruction" in found["broken"]["why"]
    assert report.exit_code == 6, "one failed"
    right, slow, wrong = (found[name] for name in ("fake", "slow", "wrong"))
    rates = [row["metrics"]["decode × 2"]["value"] for row in (right, slow)]
    assert rates[0] > 2 * rates[1], rates
    assert right["quality"]["kl"] == 0
    assert right["quality"]["greedy"] == 4
    assert not right["wrong"]
    assert not slow["wrong"]
    assert wrong["wrong"].startswith("KL divergence")
    assert wrong["quality"]["greedy"] == 0
    assert right["versions"] == {"fake": "1.0"}
    read = model_runs.checkpoint(Path(report.run) / "exports" / "none-hf")
    takes = per_token(read.store.specs, read.config)
    assert right["of_limits"] == {
        "prefill 4": pytest.approx(right["metrics"]["prefill 4"]["value"] * (takes.flops + takes.head_flops / 4) / 1e9),
        "decode × 1": pytest.approx(right["metrics"]["decode × 1"]["value"] * takes.nbytes / 1e9),
    }
    assert len(right["metrics"]["load"]["rounds"]) == 2
    assert right["metrics"]["peak memory"]["value"] > 1 << 20
    [run] = find(outputs, [Path(report.run).name])
    assert run.state == "complete"
    assert "decode, slow none" in run.metrics


def test_what_a_token_takes_of_experts_and_of_an_embedding() -> None:
    """Of four experts two, of an embedding that is no head nothing, of one that is all, and of the head apart; a vector
    multiplies nothing."""
    layer = {
        "model.layers.0.mlp.experts.down_proj": TensorSpec((4, 8, 16), "BF16"),
        "model.layers.0.self_attn.q_proj.weight": TensorSpec((8, 8), "F32"),
        "model.norm.weight": TensorSpec((8,), "F32"),
    }
    embedding = {"model.embed_tokens.weight": TensorSpec((32, 8), "BF16")}
    config = {"num_local_experts": 4, "num_experts_per_tok": 2}
    experts, rest = 4 * 8 * 16 / 2, 8 * 8
    untied = {**layer, **embedding, "lm_head.weight": TensorSpec((32, 8), "BF16")}
    for specs in (untied, {**layer, **embedding}):
        assert per_token(specs, config) == PerToken(
            2 * experts + 4 * rest + 4 * 8 + 2 * 32 * 8, 2 * (experts + rest), 2 * 32 * 8
        )


@pytest.mark.repeats
def test_memory_that_grows_with_each_generation_is_wrong(fakes: Path, tmp_path: Path) -> None:
    report = bench(fakes, tmp_path / "outputs", "engines=[fake,leaky]", "bench.leak=40", "bench.contexts=[9]")
    right, leaky = record(report)["rows"]
    assert not right["wrong"]
    assert right["leak"]["generations"] == 40
    assert "KiB more with each of 40 generations" in leaky["wrong"]
    assert leaky["leak"]["slope"] == pytest.approx(1 << 18, rel=0.1)
    assert right["metrics"]["decode after 9"]["unit"] == "tokens/s"


def test_a_line_through_what_grows() -> None:
    noise = np.random.default_rng(0).normal(0, 1e5, 400)
    for slope, leaks in ((0.0, False), (3000.0, False), (9000.0, True)):
        rss = [int(5e8 + slope * i + noise[i]) for i in range(400)]
        found = leaks_.growth(rss)
        assert abs(found["slope"] - slope) < 4 * found["error"]
        assert bool(leaks_.leak(found)) == leaks
    warm = [int(1e8 + 1e6 * min(i, 10)) for i in range(100)]  # pools that grow at first
    assert leaks_.growth(warm)["slope"] == 0


def powercap(folder: Path, *micro: int) -> Path:
    for i, number in enumerate(micro):
        zone = folder / f"intel-rapl:{i}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "energy_uj").write_text(f"{number}\n")
        (zone / "max_energy_range_uj").write_text("10000000\n")
        (folder / f"intel-rapl:{i}:0").mkdir(exist_ok=True)  # a part of it
    return folder


def test_energy_of_all_processors_and_counters_that_begin_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_devices", dict)
    with energy.Energy(powercap(tmp_path, 1_000_000, 9_000_000)) as seen:
        powercap(tmp_path, 3_500_000, 500_000)
    assert seen.joules == pytest.approx(2.5 + 1.5)
    with energy.Energy(tmp_path / "nothing") as seen:
        pass
    assert seen.joules is None
    assert "no processor's energy" in seen.why


def test_energy_of_some_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, or a processor, that says nothing in the end."""
    told = [{0: 5, 1: 7}, {0: 9}, {}, {}]
    monkeypatch.setattr(energy, "_devices", lambda: told.pop(0))
    with energy.Energy(powercap(tmp_path, 1_000_000)) as seen:
        pass
    assert (seen.joules, seen.why) == (None, "NVML knew of devices [0, 1] at first, and of [0] in the end")
    with energy.Energy(powercap(tmp_path, 1_000_000)) as seen:
        (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert seen.joules is None
    assert "energy_uj: No such file" in seen.why


def test_rounds_are_in_turn(first: tuple[Path, Any]) -> None:
    lines = (Path(first[1].run) / turns.NOTES).read_text().splitlines()
    noted = [(n["what"], n["round"]) for n in map(json.loads, lines) if "decode" in n["found"]]
    cells = ["fake none", "slow none", "wrong none"]
    assert noted == [(cell, round_) for round_ in (0, 1) for cell in cells]


@pytest.mark.repeats  # test_ops.py: of kernels
def test_the_next_one_is_held_against_it(first: tuple[Path, Any], fakes: Path) -> None:
    """The same engines by the same names; one is slower now, and one wrong."""
    outputs, before = first
    name = Path(before.run).name
    worse = (f"bench.against='{name}'", "engines=[fake,slow]", "+engines.fake.step_s=0.02", "+engines.slow.shift=1")
    report = bench(fakes, outputs, *worse)
    assert report.exit_code == against.CODE
    said = record(report)["regressions"]
    assert any(text.startswith("fake none: ") for text in said), said  # on a busy machine not of every figure
    assert any(text.startswith("slow none: was right, and is wrong now") for text in said), said


def test_what_was_measured_is_not_measured_again(fakes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, called = turns.done, []

    def until_killed(job: Any, threads: int, log: Path) -> Any:
        if len(called) == 7:
            raise RuntimeError("killed")
        called.append(log.stem)
        return real(job, threads, log)

    typed = (tmp_path / "outputs", "engines=[fake,slow]")
    monkeypatch.setattr(turns, "done", until_killed)
    with pytest.raises(WeightmillError, match="killed"):
        bench(fakes, *typed)
    [notes] = typed[0].rglob(turns.NOTES)
    notes.write_text(notes.read_text() + '{"key": "torn')
    turn = ["limits-of-the-machine", "fake-none", "slow-none"]
    assert called == ["quality-the-reference", "export-none-hf", *turn, *turn[:2]]
    called.clear()
    monkeypatch.setattr(turns, "done", lambda *args: called.append(args[2].stem) or real(*args))
    report = bench(fakes, *typed)
    assert called == ["slow-none", "quality-fake-none", "quality-slow-none"]
    assert Path(report.run) == notes.parent
    assert len(record(report)["rows"]) == 2
    assert not (notes.parent / LOGITS).exists()
    assert not (notes.parent / EXPORTS).exists(), "nobody asked for them"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("engines=[fak]", "fake"), ("quants=[int9]", "int8"), ("quants=[none,none]", "twice"),
        ("bench.roundz=1", "'rounds'"), ("bench.tolerance=5", "5%"), ("bench.threads=999", "cores"),
        ("bench.leak=3", "20 or more"), ("bench.contexts=[0]", "1 or more"),
        ("bench.against=nothing", "nothing"), ("bench.window=64", "at least a window"),
        ("engines.fake.dyes=true", "dies"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_said_before_anything_runs(
    fakes: Path, tmp_path: Path, override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "done", lambda *_: pytest.fail("it ran"))
    engines = () if override.startswith("engines=") else ("engines=[fake]",)
    with pytest.raises(WeightmillError, match=said):
        bench(fakes, tmp_path / "outputs", *engines, override)


def row(value: float, spread: float = 0.0, better: str = "higher") -> dict[str, Any]:
    metric = {"value": value, "unit": "tokens/s", "better": better, "spread": spread}
    return {"engine": "a", "quant": "none", "state": "measured", "why": "", "wrong": "", "metrics": {"x": metric}}


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        (row(100), row(96), False), (row(100), row(94), True), (row(100), row(106), False),
        (row(100), row(94, 0.03), False), (row(100, 0.03), row(94), False), (row(100, 0.01), row(94), True),
        (row(100, better="lower"), row(106, better="lower"), True),
        (row(100), row(100) | {"wrong": "KL"}, True), (row(100) | {"wrong": "KL"}, row(100) | {"wrong": "KL"}, False),
        (row(100), row(100) | {"state": "failed"}, True),
    ],
)  # fmt: skip
def test_worse_is_more_than_tolerance_and_noise(before: Any, after: Any, worse: bool) -> None:
    assert bool(against.regressions([after], [before], 0.05)) == worse


def test_another_machine_is_not_compared(tmp_path: Path) -> None:
    file = tmp_path / against.NAME
    schemas.write("benchmark", file, {"benchmark": "engines", "machine": {"kind": "A × 2"}, "rows": []})
    assert against.baseline(str(file), tmp_path, "A × 2", "engines")["rows"] == []
    with pytest.raises(ConfigError, match="A × 2, and this is B × 4"):
        against.baseline(str(file), tmp_path, "B × 4", "engines")
    with pytest.raises(ConfigError, match="of engines, and this is one of scale"):
        against.baseline(str(file), tmp_path, "A × 2", "scale")


@pytest.mark.parametrize(
    ("gaps", "each"),
    [
        ([0.08, 2e-6, 3e-6, 2e-6, 0.04, 2e-6], [0.02000175] * 4 + [0.020001] * 2),  # four at once, then two
        ([2e-6, 0.03, 0.03], [2e-6, 0.03, 0.03]),  # nothing came before it that it could be a part of
        ([0.01, 0.012, 0.3], [0.01, 0.012, 0.3]),  # one at a time, and one stall: a stall stays one
        ([4e-5, 6e-5, 5e-5], [4e-5, 6e-5, 5e-5]),  # a model whose steps are as quick as counting is
        ([0.001, 2e-4, 0.5], [0.001, 2e-4, 0.5]),  # a step beside a stall is no counting
    ],
)
def test_tokens_that_come_together_share_the_wait(gaps: list[float], each: list[float]) -> None:
    assert rows.even(gaps) == pytest.approx(each)
    assert sum(rows.even(gaps)) == pytest.approx(sum(gaps))


def test_percentiles_of_chunks_are_those_of_one_token_after_another() -> None:
    chunked, single = [*[0.04, 1e-6, 1e-6, 1e-6] * 8], [0.01] * 32
    for gaps in (chunked, single):
        found = rows.latencies([{"decode": {"1": [gaps]}}])["1"]
        assert found == {name: pytest.approx(10, rel=1e-3) for name in ("p50", "p90", "p99")}


def test_a_baseline_that_asked_something_else_is_refused(fakes: Path, first: tuple[Path, Any], tmp_path: Path) -> None:
    """Of another workload by the plan, of other weights by the run, and nothing is measured."""
    typed = ("engines=[fake]", f"bench.against={first[1].run}")
    with pytest.raises(WeightmillError, match=r"here is bench\.new=5, which was 4\. Ask the same"):
        bench(fakes, tmp_path / "workload", *typed, "bench.new=5")
    other = tmp_path / "other.txt"
    other.write_text("of something else, and long enough " * 40)
    with pytest.raises(WeightmillError, match=r"here is bench\.text=other\.txt,\w{32}, which was \w+"):
        bench(fakes, tmp_path / "text", *typed, f"bench.text={other}")
    with pytest.raises(WeightmillError, match="here is seed=7, which was nothing"):
        bench(fakes, tmp_path / "weights", *typed, "seed=7")
    assert not [*tmp_path.glob("*/*/rounds.jsonl")]


def test_a_median_and_how_far_rounds_lie_apart() -> None:
    found = rows.Metric.of([90, 100, 110], "tokens/s", "higher")
    assert (found.value, found.spread) == (100, 0.1)
    assert rows.Metric.of([5], "s", "lower").spread == 0


def test_a_benchmark_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert unfinished(str(tmp_path), "a") == "a"
    (tmp_path / "a").mkdir()
    assert unfinished(str(tmp_path), "a") == "a", "it was interrupted"
    (tmp_path / "a" / "manifest.json").touch()
    assert unfinished(str(tmp_path), "a") == "a-2"


def test_only_what_says_which_weights_goes_to_exports() -> None:
    typed = ["+model=llama", "model.source=x", "model.extra_rules=[]", "flow=bench", "quants=[int8]", "seed=3"]
    assert of_model(typed) == ["+model=llama", "model.extra_rules=[]", "seed=3"]


@pytest.mark.parametrize(("of", "listed"), [(of_model, "quants"), (of_quality, "bench.quants")])
def test_one_quant_is_refused_where_several_are_measured(of: Any, listed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"quant: this measures a list of them; write '{listed}=[int4]'")):
        of(["+model=llama", "quant=int4"])


@pytest.mark.parametrize(
    ("kl", "perplexity", "cost", "wrong"),
    [
        (0.01, 10.0, 0.0, False), (0.06, 10.0, 0.0, True), (0.3, 12.0, 0.28, False), (0.4, 12.0, 0.28, True),
        (0.01, 21.0, 0.0, True), (None, 10.0, 0.0, True), (0.01, None, 1.0, True),
    ],
)  # fmt: skip
def test_wrong_is_beyond_what_quantization_costs(
    kl: float | None, perplexity: float | None, cost: float, wrong: bool
) -> None:
    assert bool(rows.wrong({"kl": kl, "perplexity": perplexity, "reference": 10.0}, cost, 0.05)) == wrong


@pytest.mark.repeats
def test_an_engine_alone_with_its_quant_is_held_against_what_that_costs(fakes: Path, tmp_path: Path) -> None:
    """`picky` reads what we quantized; `maker` quantizes by itself, and is held against what ours costs."""
    engines = ("engines=[picky,maker]", "quants=[mxfp4]", "+engines.maker.shift=1")
    report = bench(fakes, tmp_path / "outputs", *engines, "bench.rounds=1")
    right, wrong = record(report)["rows"]
    assert (right["quality"]["kl"], right["quality"]["cost"], right["wrong"]) == (0, 0, "")
    assert right["form"] == "mxfp4 hf"
    assert wrong["wrong"].startswith("KL divergence")
    assert wrong["form"] == "none hf, smaller by itself"
    assert wrong["nbytes"] == len("smaller"), "what it made, and not what it made it of"
    assert wrong["state"] == "measured"
