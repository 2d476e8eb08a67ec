"""Quantized once, and what is scored is what was written: evaluate and generate read the export of the run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pipeline as weightmill
from pipeline.api import compose_run
from pipeline.digest import digest_file
from pipeline.errors import ConfigError, StageError, StorageError
from pipeline.planning.memory import plan_run
from pipeline.planning.wiring import Plan
from pipeline.stage import Exported
from plugins.quant.blockwise import Blockwise
from stages.evaluate import Evaluate
from stages.export_work import ExportWork
from tests.cases import two_layers

MODEL = ["+model=gpt_oss", f"model.source={two_layers.folder()}", "quant=mxfp4"]
QUICK = [f"evaluate.windows.{o}" for o in ("tokens=64", "window=32", "batch=1")] + ["sampling.max_tokens=2"]
FULL = ["stages=[load,decode,quantize,export,evaluate,generate]", "evaluate.texts=[text.txt]", *QUICK]
SCORED = "stages=[load,decode,quantize,export,evaluate]"
TEXT = "The state of the Union is what the people of it make of it. " * 12


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("read_back")
    (folder / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as during:
        during.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def undisturbed(here: Path) -> Any:
    return run(SCORED, "paths.run=undisturbed")


@pytest.fixture(scope="module")
def direct(here: Path) -> Any:
    """Without an export."""
    return run("stages=[load,decode,quantize,evaluate,generate]", "paths.run=direct")


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many values each call of the method encoded."""
    found: list[int] = []
    real = Blockwise.encode

    def watched(self: Blockwise, values: Any, **more: Any) -> Any:
        found.append(values.size)
        return real(self, values, **more)

    monkeypatch.setattr(Blockwise, "encode", watched)
    return found


def run(*overrides: str) -> Any:
    """Each run folder has results of its own, or it would be handed what another found."""
    apart = [o.replace("paths.run=", "paths.outputs=") + ".outputs" for o in overrides if o.startswith("paths.run=")]
    return weightmill.run([*MODEL, "progress=false", *FULL, *apart, *overrides])


def planned(*overrides: str) -> Plan:
    return plan_run(compose_run([*MODEL, *FULL, *overrides]), Path("nowhere"))


def reads(plan: Plan) -> list[str]:
    return [plan.takes[name].reads for name in ("evaluate", "generate") if name in plan.nodes]


def perplexity(report: Any) -> float:
    [row] = report.results["evaluate"]["texts"].values()
    return float(row["perplexity"])


def tampered(monkeypatch: pytest.MonkeyPatch, name: str, at: int, *, known: bool = False) -> None:
    """From now on one bit of the export flips as soon as it is in place; `known`: as if it had been written so."""
    real = ExportWork.finish

    def finish(self: ExportWork, records: Any) -> Exported:
        found = real(self, records)
        content = bytearray((found.path / name).read_bytes())
        content[at] ^= 0x20
        (found.path / name).write_bytes(content)
        return replace(found, files=tuple(digest_file(f.path) for f in found.files)) if known else found

    monkeypatch.setattr(ExportWork, "finish", finish)


def test_every_value_is_quantized_once(here: Path, direct: Any, encoded: list[int]) -> None:
    full = run("paths.run=once")
    specs = planned().nodes["quantize"].result.store.specs
    assert sum(encoded) == sum(s.size for s in specs.values() if s.scheme is not None) > 0
    for name in ("evaluate", "generate"):
        assert full.results[name]["facts"]["read_from"] == str(Path(full.run) / "model")
    assert direct.results["evaluate"]["texts"] == full.results["evaluate"]["texts"]
    assert direct.results["generate"]["tokens"] == full.results["generate"]["tokens"]
    assert direct.results["evaluate"]["facts"]["read_from"] == str(two_layers.folder())


@pytest.mark.parametrize(("name", "at"), [("model.safetensors", -1), ("tokenizer.json", 5000)])
@pytest.mark.brief("model.safetensors--1")
def test_a_byte_that_changed_stops_the_run(
    here: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch, encoded: list[int], name: str, at: int
) -> None:
    where = here / name.partition(".")[0]
    with monkeypatch.context() as during:
        tampered(during, name, at)
        with pytest.raises(StorageError, match=rf"{name}: is no longer what this run wrote there"):
            run(SCORED, f"paths.run={where}")
    assert not (where / "manifest.json").exists()
    encoded.clear()
    again = run(SCORED, f"paths.run={where}")  # goes on, and writes again what is not what it was
    assert bool(encoded) == (name == "model.safetensors")
    assert perplexity(again) == perplexity(undisturbed)


def test_the_bytes_of_the_export_are_what_is_scored(
    here: Path, undisturbed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (here / "undisturbed/model/model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    at = header + json.loads(content[8:header])["model.norm.weight"]["data_offsets"][0]
    tampered(monkeypatch, "model.safetensors", at + 1, known=True)  # an exponent: little-endian bf16
    assert perplexity(run(SCORED, "paths.run=other")) != perplexity(undisturbed)


def test_a_run_that_was_stopped_after_its_export(
    here: Path, monkeypatch: pytest.MonkeyPatch, encoded: list[int]
) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise ConfigError("stopped")

    with monkeypatch.context() as during:
        during.setattr(Evaluate, "_baseline", stopped)
        with pytest.raises(ConfigError, match="stopped"):
            run(SCORED, "paths.run=stopped")
    assert (here / "stopped/model/config.json").exists()
    encoded.clear()
    assert run(SCORED, "paths.run=stopped").results["evaluate"]["facts"]["read_from"] == str(here / "stopped/model")
    assert not encoded


@pytest.mark.parametrize(
    "override", ["export=auto", "export=hf", "export=original", "export=gguf", "export=compressed_tensors",
                 "export=orbax", "quant=none", "quant=none export=plain", "quant=none export=numpy"],
)  # fmt: skip
def test_the_plan_says_that_the_export_is_read(here: Path, override: str) -> None:
    assert reads(planned(*override.split())) == ["reads the export"] * 2


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("export=plain", "mlp.experts.gate_up_proj as BF16, not as e2m1/32/e8m0"),
        ("export=numpy", "mlp.experts.gate_up_proj as BF16, not as e2m1/32/e8m0"),
        ("export.dtype=fp16", "as F16, not as BF16"),
        ("quant=none export.dtype=fp32", "as F32, not as BF16"),
        ("stages=[load,decode,export,quantize,evaluate,generate]", "a stage after the export changed it"),
    ],
)
def test_the_plan_says_why_the_export_is_not_read(here: Path, override: str, why: str) -> None:
    for said in reads(planned(*override.split())):
        assert said.startswith("reads the checkpoint and not the export: ")
        assert said.endswith(why)


def test_what_the_export_does_not_hold_is_read_from_the_checkpoint(here: Path, direct: Any) -> None:
    report = run(SCORED, "export=plain")
    assert report.results["evaluate"]["facts"]["read_from"] == str(two_layers.folder())
    assert report.results["evaluate"]["texts"] == direct.results["evaluate"]["texts"]


def test_without_an_export_all_is_as_it_was(here: Path) -> None:
    assert reads(planned("stages=[load,decode,quantize,evaluate,generate]")) == ["", ""]
    assert reads(planned("stages=[load,decode,quantize,evaluate,export]")) == [""]  # it is not there yet


def test_what_an_export_widens_is_planned(here: Path, undisturbed: Any) -> None:
    """GGUF has vectors as F32: that is what the device takes, and the values are the same."""
    plan, report = planned("export=gguf"), run("export=gguf")
    facts = report.results["generate"]["facts"]
    weights = [p.takes["generate"].device_nbytes - p.takes["generate"].cache_nbytes for p in (plan, planned())]
    assert facts["device_nbytes"] == weights[0] == facts["planned_nbytes"]
    assert facts["device_nbytes"] > weights[1]
    assert perplexity(report) == pytest.approx(perplexity(undisturbed), rel=1e-6)


def test_an_export_that_load_does_not_know(here: Path) -> None:
    """As of a dialect of one's own, which load has not been told of: said where, and what was tried."""
    why = r"model: what was exported cannot be opened again, to be read here: .*no dialect recognizes its tensors"
    dialects = "stages.load.dialects={original: null, plain: null}"
    with pytest.raises(StageError, match=why):
        run("export=original", dialects)
