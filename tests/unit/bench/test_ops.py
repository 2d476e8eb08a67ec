"""`flow=bench_ops`: what is slow or wrong is seen, what was measured is not measured again, and every case is right."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.bench import against, op_rows, turns
from pipeline.bench.op import Case, Measure, wrongness
from pipeline.errors import WeightmillError
from pipeline.records import schemas
from plugins.bench.ops import data
from plugins.bench.ops.attention import Attention
from plugins.bench.ops.codecs import Cast, Codec, Gptq
from plugins.bench.ops.in_numpy import Plain
from plugins.bench.ops.matmul import MatMul
from plugins.bench.ops.moe import Moe
from plugins.bench.ops.ours import Ours
from plugins.bench.ops.rows import Embed, RmsNorm, Rope, SoftMax
from plugins.bench.ops.sample import Sample
from tests.cases.guests import guest

MODULE = """
import os
import time
from dataclasses import dataclass


def cast(x, dtype, *, overflow="error"):
    from plugins.kernels.cast.numpy import cast as real

    time.sleep(float(os.environ.get("ACME_S", "0.002")))
    return real(x, dtype, overflow=overflow)


def rms_norm(x, weight, *, eps, plus_one=False):
    from plugins.kernels.rms_norm.xla import rms_norm as norm

    return norm(x, weight, eps=eps, plus_one=plus_one) * float(os.environ.get("ACME_GAIN", "1"))


@dataclass(frozen=True)
class Fixed:
    def of(self, threads):
        return {"read": 1e10, "multiply_add": 1e11}


@dataclass(frozen=True)
class Absent:
    needs = {"acme_engine": "pip install acme_engine"}
    unit = 0.0

    def call(self, case): ...

    def has(self, op): ...

    def given(self, result): ...

    def versions(self): ...
"""
SMALL = (
    "flow=bench_ops", "bench.ops=[cast,rms_norm]", "bench.matrix=[4,32]", "bench.tokens=[2]", "bench.width=32",
    "bench.rounds=2", "bench.threads=1", "bench.seconds=0.001", "stages.bench_ops.limits._target_=plugins.acme.Fixed",
)  # fmt: skip


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("guest")
    with guest(folder, {"plugins.acme": MODULE}):
        yield folder


def bench(acme: Path, outputs: Path, *overrides: str) -> Any:
    return pipeline.run([*SMALL, *overrides, f"paths.outputs={outputs}"], config_dir=acme, progress=False)


def record(report: Any) -> dict[str, Any]:
    return schemas.read("benchmark", Path(report.run) / against.NAME)


@pytest.fixture(scope="module")
def first(acme: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    outputs = tmp_path_factory.mktemp("bench") / "outputs"
    more = "+stages.bench_ops.peers.absent={_target_: plugins.acme.Absent}"
    return outputs, bench(acme, outputs, "bench.backends=[plugins.acme,numpy,plain,absent]", more)


def test_every_case_of_every_backend_is_a_row(first: tuple[Path, Any]) -> None:
    found = record(first[1])
    rows = {(row["engine"], row["quant"]): row for row in found["rows"]}
    cast, norm = "cast f32 → bf16 [4, 32]", "rms_norm f32 [2, 32]"
    assert {key for key, row in rows.items() if row["state"] == "measured"} == {
        ("plugins.acme", cast), ("plugins.acme", "rms_norm bf16 [2, 32]"), ("plugins.acme", norm), ("numpy", cast),
        ("plain", norm),
    }  # fmt: skip
    assert rows["absent", op_rows.EVERY]["why"] == "not installed; pip install acme_engine"
    slow = rows["plugins.acme", cast]
    time = slow["metrics"]["time"]
    assert time["value"] >= 2000, "microseconds, of which it sleeps 2000"
    assert len(time["rounds"]) == 2
    assert slow["rates"]["bytes"] == pytest.approx(4 * 32 * 6 / time["value"] * 1e6)
    assert slow["rates"]["of_read"] == pytest.approx(slow["rates"]["bytes"] / 1e10)
    assert not (Path(first[1].run) / "programs").exists(), "what was compiled for it is no result"
    assert rows["numpy", cast]["metrics"]["time"]["value"] < 1000
    assert found["limits"] == {"read": 1e10, "multiply_add": 1e11}
    assert first[1].exit_code == 0


@pytest.fixture(scope="module")
def second(first: tuple[Path, Any], acme: Path) -> Any:
    """Held against the first: of its kernels one is slow now, and one is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACME_S", "0.05")
        patch.setenv("ACME_GAIN", "1.1")
        return bench(acme, first[0], "bench.backends=[plugins.acme]", f"bench.against='{Path(first[1].run).name}'")


def test_a_slowed_kernel_is_caught(second: Any) -> None:
    assert second.exit_code == against.CODE
    said = [text for text in record(second)["regressions"] if text.startswith("plugins.acme cast")]
    assert len(said) == 1
    assert "time" in said[0]


def test_a_wrong_kernel_is_caught_and_has_no_figures(second: Any) -> None:
    assert second.exit_code == against.CODE
    found = record(second)
    said = [text.split(":")[1] for text in found["regressions"] if "rms_norm" in text]
    assert said == [" was right, and is wrong now"] * 2
    wrong = [row for row in found["rows"] if row["quant"].startswith("rms_norm")]
    assert len(wrong) == 2
    assert all(row["wrong"].startswith("off by") and not row["metrics"] for row in wrong)
    [table] = [t for t in second.results["bench_ops"]["tables"] if t["title"].startswith("rms_norm")]
    assert "✗ plugins.acme" in str(table)


@pytest.mark.repeats
def test_what_was_measured_is_not_measured_again(acme: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, called = turns.done, []

    def until_killed(job: Any, threads: int, log: Path) -> Any:
        if len(called) == 3:
            raise RuntimeError("killed")
        called.append(log.stem)
        return real(job, threads, log)

    typed = (tmp_path / "outputs", "bench.backends=[numpy]", "bench.ops=[cast]")
    monkeypatch.setattr(turns, "done", until_killed)
    with pytest.raises(WeightmillError, match="killed"):
        bench(acme, *typed)
    assert called == ["limits-of-the-machine", "numpy", "limits-of-the-machine"]
    called.clear()
    monkeypatch.setattr(turns, "done", lambda *args: called.append(args[2].stem) or real(*args))
    assert len(record(bench(acme, *typed))["rows"]) == 1
    assert called == ["numpy"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("bench.ops=[matmull]", "matmul"), ("bench.ops=[]", "at least one"), ("bench.ops=[cast,cast]", "twice"),
        ("bench.backends=[nativ]", "native"), ("bench.backends=[acme.nowhere]", "acme.nowhere"),
        ("bench.formats=[mxfp5]", "mxfp4"), ("bench.sizes=[[3]]", "2 numbers"), ("bench.rows=[0]", "1 or more"),
        ("bench.moe=[2,3,64,64]", "of 2 experts"), ("bench.heads=[6,4,8]", "divide"),
        ("bench.seconds=0", "more than 0"), ("bench.roundz=1", "'rounds'"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_said_before_anything_runs(
    acme: Path, tmp_path: Path, override: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "done", lambda *_: pytest.fail("it ran"))
    with pytest.raises(WeightmillError, match=said):
        bench(acme, tmp_path / "outputs", override)


SUITES = (
    MatMul(((48, 64),), (1, 3), ("bf16", "f32", "mxfp4", "q8_0", "nvfp4"), None),
    Moe((4, 2, 64, 32), (1, 5), ("f32", "mxfp4")),
    Attention((4, 2, 8), (16,), (6,), 4),
    SoftMax((1, 3), 40),
    Sample((1, 3), 400),
    RmsNorm((1, 3), 40),
    Rope((1, 3), (4, 2, 8)),
    Embed(70, 64, ("f32", "q8_0")),
    *(Codec(op, (6, 256), ("mxfp4", "q8_0", "nvfp4")) for op in ("quantize", "dequantize", "quantize_dequantize")),  # type: ignore[arg-type]
    Codec("quantize", (6, 256), (), ("int4_128",)),
    Gptq((6, 256), ("mxfp4", "int4_128")),
    Cast((3, 32)),
)
EVERY = [case for suite in SUITES for case in suite.cases()]


def test_names_tell_cases_apart() -> None:
    names = [(case.op, case.name) for case in EVERY]
    assert len({*names}) == len(names)
    assert {op for op, _ in names} == {
        "matmul", "moe", "attention", "softmax", "sample", "rms_norm", "rope", "embed", "quantize", "dequantize",
        "quantize_dequantize", "gptq", "cast",
    }  # fmt: skip


@pytest.mark.repeats
@pytest.mark.parametrize("runner", [Ours("xla"), Ours("numpy"), Plain()], ids=lambda r: getattr(r, "backend", "plain"))
def test_right_results_are_right_and_others_are_not(runner: Any) -> None:
    done = 0
    for case in EVERY:
        call = runner.call(case) if runner.has(case.op) else None
        if not callable(call):
            continue
        done += 1
        found = runner.given(call())
        assert wrongness(case, found, runner.unit)[0] == "", f"{case.op} {case.name}"
        assert wrongness(case, spoilt(found), runner.unit)[0], f"{case.op} {case.name} is held to nothing"
    assert done >= 5


def spoilt(found: Any) -> Any:
    """A result with a value changed in its last row, which parts of all cases have."""
    if hasattr(found, "components"):
        parts = {name: np.array(array) for name, array in found.components.items()}
        parts["codes"].view(np.uint8)[-1] ^= 1
        return type(found)(scheme=found.scheme, **parts)
    found = np.array(found)
    if found.ndim == 1:  # tokens
        return found + 1
    found[:, ..., -1] = found[:, ..., -1] + 3 * np.abs(found.astype(np.float32)).max().astype(found.dtype)
    found[..., :4] = found[..., :4] * found.dtype.type(-2) + found.dtype.type(1)
    return found


class Unmade:
    nbytes = 0

    def cases(self) -> Any:
        pytest.fail("data are made for an op that is not there")


def test_a_case_that_fails_leaves_the_others() -> None:
    class Half:
        unit, versions = 0.0, staticmethod(dict)

        def has(self, op: str) -> bool:
            return op == "rms_norm"

        def call(self, case: Case) -> Any:
            if "bf16" in case.name:
                raise ValueError("no such type")
            return "it is too wide" if "[3" in case.name else lambda: case.args[0]

        def given(self, result: Any) -> Any:
            return result

    found = Measure({"rms_norm": RmsNorm((1, 3), 40), "rope": Unmade()}, Half(), 0.001)()["cases"]  # type: ignore[arg-type]
    assert found["rms_norm bf16 [1, 40]"]["failed"] == "ValueError: no such type"
    assert found["rms_norm f32 [3, 40]"]["declined"] == "it is too wide"
    assert "off by" in found["rms_norm f32 [1, 40]"]["wrong"]


def test_no_two_rows_of_values_are_alike() -> None:
    x = data.values((100, 4096))
    assert len({row.tobytes() for row in x}) == 100
    assert json.dumps(float(x.std())).startswith(("0.99", "1.0"))
