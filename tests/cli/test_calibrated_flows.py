"""Flows that look at a model before they quantize it: bits are allocated, and blocks calibrated one after another."""

from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from pipeline.errors import ConfigError, PlanError, StageError
from tests.cli.run import pipeline
from tests.cli.test_flows import SHORT, run, small


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bits_are_allocated_and_the_rules_are_used(here: Path, thorough: bool) -> None:
    quants = "[int3,mxfp4,int8]" if thorough else "[mxfp4,int8]"
    asked = ("flow=allocate", f"allocate.quants={quants}", *SHORT)
    report = small(*asked, "allocate.bits=6")
    found, tried = report.results["allocate"], report.results["trials"]
    assert found["bits"] <= 6
    assert found["kl"] <= 0.003 < tried["together"]["mxfp4"]["kl"]  # of 4.25 bits
    assert found["kl"] == pytest.approx(found["predicted"], rel=0.3)
    assert len({*found["picks"].values()}) > 1
    folder = Path(report.run)
    assert (folder / "allocation.png").read_bytes().startswith(b"\x89PNG")
    used = small("flow=evaluate", "quant=keep", f"rules_file={folder / 'rules.yaml'}", *SHORT)
    assert used.results["evaluate"]["texts"]["sotu_eval.txt"]["kl"] == pytest.approx(found["kl"], rel=1e-3)
    if thorough:
        better, smaller = (small(*asked, budget).results for budget in ("allocate.kl=0.001", "allocate.bits=4.25"))
        assert better["trials"] == smaller["trials"] == tried
        assert better["allocate"]["kl"] <= 0.001
        assert len({*better["allocate"]["picks"].values()}) > 1
        assert smaller["allocate"]["bits"] <= 4.25
        assert smaller["allocate"]["kl"] <= tried["together"]["mxfp4"]["kl"]  # which is 4.25 bits, too
        assert smaller["allocate"]["kl"] == pytest.approx(smaller["allocate"]["predicted"], rel=0.3)
    both = small("quant=auto", "quant.bits=6", f"quant.quants={quants}", "flow=evaluate", *SHORT)
    assert both.results["evaluate"]["texts"]["sotu_eval.txt"]["kl"] == pytest.approx(found["kl"], rel=1e-3)
    said = pipeline("plan", "+model=gpt_oss", "quant=auto", "quant.bits=6", *SHORT)
    assert said.code == 0
    assert "and then: +model=gpt_oss" in said.err
    assert "quant=auto is two runs" in pipeline("-m", "+model=gpt_oss", "quant=auto,int8", "quant.bits=6").err
    with pytest.raises(PlanError, match=r"allocate\.bits: 2: the smallest .* bits a weight; allocate\.quants"):
        small(*asked, "allocate.bits=2", "allocate.keep=false")
    with pytest.raises(StageError, match=r"allocate\.kl: nothing loses as little as 1e-09 nats"):
        small("flow=allocate", "allocate.quants=[mxfp4]", *SHORT, "allocate.kl=1e-9", "allocate.keep=false")


@pytest.mark.repeats
def test_blocks_are_calibrated_on_quantized_ones(here: Path) -> None:
    few = ("quant=int4", "calibrate=gptq", "calibrate.method.grid=[]", "calibrate.windows.tokens=512")

    def exported(*more: str) -> dict[str, Any]:
        report = run("flow=convert", *few, *more)
        with safe_open(Path(report.run, "model", "model.safetensors"), "np") as file:
            return {n: file.get_tensor(n) for n in file.keys() if n.endswith("weight_packed")}  # noqa: SIM118

    was, blocks, matrices = (
        exported(*more) for more in ((), ("calibrate.sequential=blocks",), ("calibrate.sequential=matrices",))
    )
    assert was.keys() == blocks.keys() == matrices.keys()
    first = [n for n in was if ".layers.0." in n]
    into = [n for n in first if "gate" in n or "up" in n]
    assert first
    assert into
    assert all((was[n] == blocks[n]).all() for n in first), "nothing before the first block is quantized"
    assert all((was[n] == matrices[n]).all() for n in into), "nor before these"
    for found in (blocks, matrices):
        assert any((was[n] != found[n]).any() for n in was if ".layers.1." in n)
    assert any((blocks[n] != matrices[n]).any() for n in first)
    kl = run("flow=evaluate", *few, "calibrate.sequential=matrices", *SHORT).results["evaluate"]["texts"]
    nearest = run("flow=evaluate", "quant=int4", *SHORT).results["evaluate"]["texts"]
    assert kl["sotu_eval.txt"]["kl"] < nearest["sotu_eval.txt"]["kl"]
    with pytest.raises(PlanError, match=r"calibrate\.sequential=blocks: .*; calibrate=gptq or imatrix do"):
        run("flow=convert", "quant=int4", "calibrate=none", "calibrate.sequential=blocks")
    with pytest.raises(PlanError, match=r"calibrate\.sequential: 'block' is not a choice; did you mean 'blocks'"):
        run("flow=convert", *few, "calibrate.sequential=block")
    with pytest.raises(PlanError, match=r"calibrate\.sequential=blocks: .* several together"):
        run(
            "flow=allocate",
            "allocate.quants=[mxfp4]",
            "allocate.bits=4.25",
            *few,
            *SHORT,
            "calibrate.sequential=blocks",
        )


@pytest.mark.repeats
def test_what_blocks_learn_is_what_is_exported(here: Path) -> None:
    few = ("calibrate=reconstruct", "calibrate.windows.tokens=2048", "calibrate.reconstruct.updates=10",
           "calibrate.reconstruct.look=5", "calibrate.reconstruct.round_rate=0.03")  # fmt: skip
    report = run("flow=convert", "quant=mxfp4", *few)
    blocks = report.results["reconstruct"]["blocks"]
    assert [*blocks] == [f"model.layers.{i}" for i in range(4)]
    assert all(of["after"] < of["before"] for of in blocks.values())
    kl = [
        run("flow=evaluate", "quant=mxfp4", *more, *SHORT).results["evaluate"]["texts"]["sotu_eval.txt"]["kl"]
        for more in ((), few)
    ]
    assert kl[1] < kl[0]
    with pytest.raises(PlanError, match=r"calibrate\.reconstruct: model\.layers.*coded together"):
        run("flow=convert", "quant=iq4_nl", "export=gguf", *few)
    with pytest.raises(PlanError, match=r"activations_rotate: rotates inputs of packed weights"):
        run("flow=evaluate", "quant=mxfp4", "activations=mxfp4", "activations_rotate=32", *few, *SHORT)
    with pytest.raises(ConfigError, match=r"update.*did you mean 'updates'"):
        run("flow=convert", "quant=mxfp4", *few, "calibrate.reconstruct.update=3")
    with pytest.raises(PlanError, match=r"calibrate\.reconstruct=Reconstruction: .* several together"):
        run("flow=allocate", "allocate.quants=[mxfp4]", "allocate.bits=4.25", *few, *SHORT)


@pytest.mark.repeats
def test_bits_are_allocated_among_what_is_calibrated(here: Path) -> None:
    """Options are tried as the run rounds that takes the rules, and those that it would refuse are none."""
    gptq = ("calibrate=gptq", "calibrate.windows.tokens=1024", *SHORT)
    report = run("flow=allocate", "allocate.quants=[int3,mxfp4,fp8_e4m3]", "allocate.bits=4.25", *gptq)
    found, tried = report.results["allocate"], report.results["trials"]
    assert [*tried["together"]] == ["int3", "mxfp4"]  # fp8_e4m3 has one scale a matrix
    plain = run("flow=allocate", "allocate.quants=[int3,mxfp4]", "allocate.bits=4.25", *SHORT).results["trials"]
    for name in ("int3", "mxfp4"):
        assert tried["together"][name]["kl"] < 0.8 * plain["together"][name]["kl"]
    assert found["kl"] <= tried["together"]["mxfp4"]["kl"]
    assert found["kl"] == pytest.approx(found["predicted"], rel=0.3)
    used = run("flow=evaluate", "quant=keep", f"rules_file={Path(report.run) / 'rules.yaml'}", *gptq)
    assert used.results["evaluate"]["texts"]["sotu_eval.txt"]["kl"] == pytest.approx(found["kl"], rel=1e-3)
    with pytest.raises(PlanError, match=r"calibrate\.smooth=Awq: .* several together; calibrate=gptq or imatrix"):
        run("flow=allocate", "allocate.quants=[mxfp4]", "allocate.bits=4.25", "calibrate=awq", *SHORT)
    with pytest.raises(PlanError, match=r"allocate\.quants: fp8_e4m3: calibrate=gptq: is for blocks in one row"):
        run("flow=allocate", "allocate.quants=[fp8_e4m3]", "allocate.bits=8.5", *gptq)
