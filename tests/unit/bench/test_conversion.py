"""`flow=bench_convert`: commands are timed until files are written, beside `cp`; what fails or cannot is a row."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.bench import against, turns
from pipeline.bench.conversion import Conversion
from pipeline.bench.converted import Right
from pipeline.config.measuring import of_conversion
from pipeline.errors import StageError, WeightmillError
from pipeline.ops import Kernel
from pipeline.records import schemas
from pipeline.tensors.scheme import MXFP4
from plugins.bench.converters import LlamaQuantize, Loop
from tests.cases.guests import guest
from tests.cases.memory_store import MemoryStore

MODULE = """
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Copying:
    command_: str = "sleep $ACME_S; cp -r"
    module: str = "json"
    why: str = ""

    @property
    def needs(self):
        return {self.module: f"pip install {self.module}"}

    def why_not(self, source, quant, config):
        assert config["model_type"] == "gpt_oss"
        return self.why or ("" if quant == "keep" else f"no {quant}")

    def command(self, source, place, quant):
        return ["sh", "-c", f"{self.command_} {source} {place}"]
"""
PEER = "+stages.bench_convert.peers.{}={{_target_: plugins.acme_copies.Copying{}}}"
SMALL = (
    "+model=gpt_oss", "flow=bench_convert", "~bench.ours.ours_unmeasured",
    "~stages.bench_convert.peers.safetensors_torch", "bench.rounds=2", "bench.threads=1", PEER.format("copies", ""),
)  # fmt: skip
PEERLESS = "~bench.ours.ours"


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("guest")
    with guest(folder, {"plugins.acme_copies": MODULE}), pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACME_S", "0.05")
        yield folder


def bench(acme: Path, outputs: Path, *overrides: str) -> Any:
    return pipeline.run([*SMALL, *overrides, f"paths.outputs={outputs}"], config_dir=acme, progress=False)


def record(report: Any) -> dict[str, Any]:
    return schemas.read("benchmark", Path(report.run) / against.NAME)


@pytest.fixture(scope="module")
def first(acme: Path, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> tuple[Path, Any]:
    outputs = tmp_path_factory.mktemp("bench") / "outputs"
    others = [
        PEER.format("broken", ", command_: 'echo no disk; false'"), PEER.format("idle", ", command_: 'true'"),
        PEER.format("absent", ", module: acme_engine"), PEER.format("picky", ", why: too large"),
    ]  # fmt: skip
    return outputs, bench(acme, outputs, *others, f"bench.rounds={2 if thorough else 1}")


def test_nothing_is_taken_over_from_earlier_runs(acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where a command of its own looks
    convert, kept = ["+model=gpt_oss", "flow=convert", "paths.outputs=outputs"], tmp_path / "kept"
    pipeline.run(convert, progress=False)
    assert pipeline.run([*convert, f"export.path={tmp_path}/there"], progress=False).found, "there is something"
    bench(acme, tmp_path / "outputs", f'bench.ours.ours=["paths.run={kept}"]', "bench.rounds=1")
    report = pipeline.report.load(kept)
    assert (report.found, report.chunks["reused"]) == ({}, 0)


@pytest.mark.repeats
def test_every_command_is_a_row(first: tuple[Path, Any]) -> None:
    found = {row["engine"]: row for row in record(first[1])["rows"]}
    assert {name for name, row in found.items() if row["state"] == "measured"} == {"cp", "ours", "copies"}
    assert found["cp"]["of_cp"] == 1
    assert found["copies"]["metrics"]["time"]["value"] >= 0.05
    assert found["copies"]["written"] == found["cp"]["written"] >= found["cp"]["read"] > 1 << 20
    assert found["ours"]["of_cp"] > 1
    assert found["ours"]["metrics"]["peak memory"]["value"] > 32 << 20
    assert found["ours"]["rate"] == pytest.approx(found["ours"]["read"] / found["ours"]["metrics"]["time"]["value"])
    assert "no disk" in found["broken"]["why"]
    assert found["idle"]["why"] == "it ended well and wrote nothing"
    assert found["absent"]["why"] == "not installed; pip install acme_engine"
    assert (found["picky"]["state"], found["picky"]["why"]) == ("unsupported", "too large")
    assert first[1].exit_code == StageError.exit_code, "two failed"
    assert not list(Path(first[1].run).glob("converted*")), "what was converted is no result"


SPOILT = (
    ("b[-8:] = bytes(8)", "of its size, and is to be as it was"),  # the last values of the last tensor
    ("b[8:9] = b'!'", "cannot be opened"),
    ("b[:] = b.replace(b'model.norm.weight', b'model.nOrm.weight')", "model.norm.weight: missing"),
)


def test_what_is_quick_and_wrong_is_no_figure(acme: Path, tmp_path: Path) -> None:
    peers = []
    for n, (spoilt, _) in enumerate(SPOILT):
        (tmp_path / f"spoil{n}.py").write_text(
            "import pathlib, shutil, sys\n"
            "shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)\n"
            f"for path in pathlib.Path(sys.argv[2]).rglob('*.safetensors{'*' if 'replace' in spoilt else ''}'):\n"
            f"    b = bytearray(path.read_bytes())\n    {spoilt}\n    path.write_bytes(b)\n"
        )
        peers.append(PEER.format(f"spoils{n}", f", command_: '{sys.executable} {tmp_path}/spoil{n}.py'"))
    report = bench(acme, tmp_path / "outputs", PEERLESS, *peers, "bench.rounds=1")
    found = {row["engine"]: row for row in record(report)["rows"]}
    for n, (_, said) in enumerate(SPOILT):
        assert said in found[f"spoils{n}"]["wrong"], found[f"spoils{n}"]["why"]
        assert found[f"spoils{n}"]["metrics"] == {}
        assert f"✗ spoils{n}" in str(report.results["bench_convert"]["tables"][0])
    assert found["copies"]["wrong"] == found["cp"]["wrong"] == ""


@pytest.mark.parametrize(("gain", "right"), [(1.0, True), (2.0, False), (0.0, False)])
def test_codes_are_held_to_what_was_packed(gain: float, right: bool) -> None:
    values = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    packed = Kernel("quantize", ("numpy",))(values * np.float32(gain), MXFP4)
    source, written = (MemoryStore({"x": v}) for v in (values, packed))
    why = Right(source, lambda _: None, Kernel("dequantize", ("numpy",)))._tensor(written, "x")  # type: ignore[arg-type, return-value]
    assert (why == "") is right, why


def test_what_the_processes_took_is_counted(first: tuple[Path, Any]) -> None:
    measured = {row["what"]: row["measured"] for row in first[1].predicted}
    rows = {row["engine"]: row for row in record(first[1])["rows"]}
    assert measured["memory"] > rows["ours"]["metrics"]["peak memory"]["value"] + (32 << 20), "with whoever waits"
    assert measured["disk"] > rows["ours"]["written"]


@pytest.mark.repeats
def test_a_slower_command_is_caught(first: tuple[Path, Any], acme: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_S", "0.7")
    report = bench(acme, first[0], PEERLESS, f"bench.against='{Path(first[1].run).name}'", "bench.tolerance=100%")
    assert report.exit_code == against.CODE
    assert [text.split(":")[0] for text in record(report)["regressions"]] == ["copies keep"]


@pytest.mark.repeats
def test_what_was_measured_is_not_measured_again(acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, called = turns.done, []

    def until_killed(job: Any, threads: int, log: Path) -> Any:
        if len(called) == 3:
            raise RuntimeError("killed")
        called.append(log.stem)
        return real(job, threads, log)

    monkeypatch.setattr(turns, "done", until_killed)
    with pytest.raises(WeightmillError, match="killed"):
        bench(acme, tmp_path / "outputs", PEERLESS)
    assert called == ["warming-up-cp", "warming-up-copies", "cp"]
    called.clear()
    monkeypatch.setattr(turns, "done", lambda *args: called.append(args[2].stem) or real(*args))
    assert len(record(bench(acme, tmp_path / "outputs", PEERLESS))["rows"]) == 5
    assert called == ["copies", "cp", "copies"]


@pytest.mark.parametrize(
    ("override", "said"),
    [("bench.rounds=0", "1 or more"), ("bench.tolerance=5", "5%"), ("+bench.ours.cp=[]", "'cp' is what another one")],
)
def test_what_is_typed_wrong_is_said_before_anything_runs(
    acme: Path, tmp_path: Path, override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "done", lambda *_: pytest.fail("it ran"))
    with pytest.raises(WeightmillError, match=said):
        bench(acme, tmp_path / "outputs", override)


def test_what_says_how_it_is_converted_goes_on_to_the_command() -> None:
    typed = [
        "+model=gpt_oss",
        "model.source=/here",
        "quant=mxfp4",
        "quant.scale_rule=even",
        "export=hf",
        "bench.rounds=1",
    ]
    assert of_conversion([*typed, "export.path=there", "flow=bench_convert", "dask.workers=1"]) == [
        "+model=gpt_oss", "quant=mxfp4", "quant.scale_rule=even", "export=hf", "dask.workers=1"
    ]  # fmt: skip


class Unread:
    def wrong(self, place: Path) -> str:
        return ""


def test_a_command_is_timed_until_its_files_are_written(tmp_path: Path) -> None:
    room = tmp_path / "run" / "room"
    typed = ("sh", "-c", f"sleep 0.2; echo twelve bytes > {room}/out/file")
    found = Conversion(typed, room, room / "out", 24, Unread())()  # type: ignore[arg-type]
    assert 0.2 < found["s"] < 5
    assert (found["written"], found["read"]) == (13, 24)
    assert not room.exists()


def test_others_say_what_they_cannot(tmp_path: Path) -> None:
    bf16, packed = {"model_type": "gpt_oss"}, {"model_type": "gpt_oss", "quantization_config": {}}
    assert "folders" in Loop("ml_dtypes").why_not(tmp_path, "mxfp4", bf16)
    (tmp_path / "model.safetensors").touch()
    assert Loop("ml_dtypes").why_not(tmp_path, "mxfp4", bf16) == ""
    assert "gpt-oss" in Loop("torchao").why_not(tmp_path, "int8", bf16)
    assert "gpt-oss" in Loop("torchao").why_not(tmp_path, "mxfp4", packed)
    assert "no int8" in Loop("copy").why_not(tmp_path, "int8", bf16)
    program = LlamaQuantize()
    assert "one .gguf" in program.why_not(tmp_path, "q8_0", bf16)
    assert "q8_0" in program.why_not(Path("a.gguf"), "int8", bf16)
    assert program.why_not(Path("a.gguf"), "q8_0", bf16) == ""
