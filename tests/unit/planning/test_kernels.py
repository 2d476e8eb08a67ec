"""The plan says which backend every op and layer will run, and stops where none can."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.api import compose_run
from pipeline.backends import backends_of
from pipeline.config.options import CONF
from pipeline.errors import PlanError
from pipeline.ops import Kernel
from pipeline.planning import kernels
from pipeline.planning.memory import plan_run
from plugins.kernels.fastest import sizes
from plugins.kernels.native import library
from tests.cases import guests, model_runs, toy_gpt_oss

FAST = """
def matmul(x, w, bias=None, *, out_dtype=None):
    raise AssertionError("nothing is called by a plan")

def declines(request):
    return "more than 4 rows" if request.given["x"].shape[0] > 4 else None
"""
ELSEWHERE = """
from pipeline.backends import Backend
BACKEND = Backend(platforms=("tpu",))

def matmul(x, w, bias=None, *, out_dtype=None):
    raise AssertionError("nothing is traced before all ops are known to run")
"""


@pytest.fixture(scope="module", autouse=True)
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    modules = {"plugins.fast.rows": FAST, "plugins.fast.elsewhere": ELSEWHERE}
    with guests.guest(tmp_path_factory.mktemp("guest"), modules) as folder:
        yield folder


def planned(tmp_path: Path, *overrides: str) -> Any:
    return plan_run(compose_run(["+model=gpt_oss", "quant=mxfp4", *overrides]), tmp_path / "run")


def test_calls_that_are_alike_are_one_row(tmp_path: Path) -> None:
    plan = planned(tmp_path, "kernels=numpy")
    assert not plan.problems
    rows = {(op, of): tuple(rest) for op, of, *rest in kernels.rows(plan)}
    experts = "mlp.experts.gate_up_proj, mlp.experts.down_proj ×8"
    assert rows["quantize", "BF16"] == (experts, "quantize", "numpy", "")
    assert rows["moe", "e2m1/32/e8m0"] == ("mlp.experts ×4", "evaluate, generate", "xla", "")
    assert rows["moe", "BF16"] == ("mlp.experts ×4", "evaluate", "xla", "")  # the baseline
    assert rows["matmul", "BF16"][0].endswith("and 3 more ×21")
    assert {op for op, _ in rows} == {
        "quantize", "embed", "rms_norm", "matmul", "rope", "attention", "moe", "softmax"
    }  # fmt: skip


def test_by_default_native_kernels_do_what_they_can(tmp_path: Path) -> None:
    rows = {(op, of): (backend, why) for op, of, _, _, backend, why in kernels.rows(planned(tmp_path))}
    assert rows["quantize", "BF16"] == ("native", "")
    assert rows["moe", "e2m1/32/e8m0"][0].startswith("native")
    assert rows["rope", "F32"] == ("native", "")
    assert rows["embed", "BF16"] == ("native", "")


def test_without_native_kernels_the_plan_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "missing", lambda: "no C++ compiler")
    kernels._chosen.cache_clear()
    rows = {(op, of): (backend, why) for op, of, _, _, backend, why in kernels.rows(planned(tmp_path))}
    assert rows["quantize", "BF16"] == ("numpy", "native: no C++ compiler")
    assert rows["moe", "e2m1/32/e8m0"][0] == "xla"
    problems = planned(tmp_path, "flow=convert", "kernels=native").problems
    kernels._chosen.cache_clear()
    assert "no chosen backend can do this (native: no C++ compiler); kernels.quantize=[…]" in str(problems[0])


def test_an_option_names_native_first_or_alone() -> None:
    """And the others follow as they do without it; between them what was measured on a GPU, of what models multiply."""
    said = {p.stem: yaml.safe_load(p.read_text()) for p in (CONF / "kernels").glob("*.yaml")}
    for op in said["numpy"]:
        native = ["native"] if "native" in backends_of(op) else []
        measured = ["fastest"] if op in sizes.OPS else []
        assert said["auto"][op] == native + measured + said["numpy"][op]
        assert said["native"][op] == (native or said["numpy"][op])


def test_steps_and_prompts_may_differ(tmp_path: Path) -> None:
    plan = planned(tmp_path, "kernels.matmul=[plugins.fast.rows,xla]")
    found = {row[4:] for row in kernels.rows(plan) if row[0] == "matmul"}
    assert ("plugins.fast.rows (1 row), xla (512 rows)", "plugins.fast.rows: more than 4 rows") in found
    assert ("plugins.fast.rows", "") in found  # the head takes the last token alone


def test_what_exports_cast_and_unpack_is_there(tmp_path: Path) -> None:
    rows = kernels.rows(planned(tmp_path, "flow=convert", "kernels=xla", "export.dtype=fp16"))
    assert {(row[0], row[3], row[4]) for row in rows} == {
        ("quantize", "quantize", "xla"), ("dequantize", "export", "xla"), ("cast", "export", "numpy")
    }  # fmt: skip


def test_what_nobody_can_do_is_a_problem(tmp_path: Path) -> None:
    plan = planned(tmp_path, "flow=convert", "kernels.quantize=xla", "quant.stochastic=true")
    assert len(plan.problems) == 8
    assert str(plan.problems[0]).startswith("quantize of model.layers.0.mlp.experts.")
    said = "(xla: xla neither searches nor rounds at random); kernels.quantize=[…] chooses others"
    assert said in str(plan.problems[0])


def test_a_model_is_not_loaded_where_an_op_cannot_run(tmp_path: Path) -> None:
    source = toy_gpt_oss.write(tmp_path, toy_gpt_oss.make())
    ops = replace(model_runs.engine().ops, matmul=Kernel("matmul", ("plugins.fast.elsewhere",)))
    with pytest.raises(
        PlanError, match=r"q_proj.weight: no chosen backend of matmul can do this \(.*runs on tpu, not on cpu"
    ):
        model_runs.load(source, ops=ops)
