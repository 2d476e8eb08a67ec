"""`fastest` in a list of backends: what was measured on this kind of GPU decides, and nothing else does."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline import backends
from pipeline.errors import StorageError
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.bench import fastest
from plugins.bench.ops import data
from plugins.bench.ops.matmul import MatMul
from plugins.bench.ops.ours import Ours
from plugins.engine import hardware
from plugins.kernels.fastest import sizes, table
from plugins.kernels.fastest.table import Row
from tests.cases import model_runs
from tests.cases.quantized import quant_method

DEVICE = "NVIDIA Made-Up 9"
OF = "BF16 × e2m1/32/e8m0"
HEAD = {"version": table.VERSION, "device": DEVICE, "jax": metadata.version("jax")}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing known but what is kept here."""
    monkeypatch.setattr(table, "HERE", tmp_path / "none")
    monkeypatch.setattr(table, "cache_folder", lambda: tmp_path)
    table.rows.cache_clear()
    yield tmp_path / "fastest" / "nvidia_made_up_9.json"
    table.rows.cache_clear()


def row(rows: int, **us: float) -> Row:
    return Row("matmul", OF, (rows, 4096, 2048), us)


def chosen(rows: int, device: str = DEVICE, names: tuple[str, ...] = ("fastest", "xla"), out: int = 4096) -> Any:
    w = TensorSpec((out, 2048), "BF16", MXFP4)
    return Kernel("matmul", names, "gpu", device).choose({"x": TensorSpec((rows, 2048), "BF16"), "w": w})


def test_the_fastest_of_ours_runs_where_it_is_faster_than_xla(kept: Path) -> None:
    table.keep(DEVICE, [row(1, mosaic_gpu=9, pallas=8, xla=50), row(64, mosaic_gpu=9, xla=9.2), row(2048, xla=9)])
    assert chosen(1).backend == "pallas"
    assert [*table.order(Kernel("matmul", ("xla",), "gpu", DEVICE).request(*specs(1)))[0]] == ["pallas", "mosaic_gpu"]
    assert chosen(64).backend == "xla"  # by less than what may be noise
    assert chosen(64).reasons == f"fastest: xla was the fastest on {DEVICE}"


def specs(rows: int) -> tuple[TensorSpec, TensorSpec]:
    return TensorSpec((rows, 2048), "BF16"), TensorSpec((4096, 2048), "BF16", MXFP4)


def test_what_declines_is_passed_over(kept: Path) -> None:
    table.keep(
        DEVICE, [Row("matmul", "F32 × e2m1/32/e8m0", (1, 4096, 2048), {"mosaic_gpu": 1, "pallas": 2, "xla": 50})]
    )
    x, w = specs(1)
    found = Kernel("matmul", ("fastest", "xla"), "gpu", DEVICE).resolve(TensorSpec(x.shape, "F32"), w)
    assert found.backend == "pallas"
    assert [name for name, _ in found.declined] == ["mosaic_gpu"]  # multiplies bfloat16 alone


@pytest.mark.parametrize(
    ("rows", "out", "near"), [(4, 4096, True), (8, 4096, False), (1, 16384, True), (1, 32768, False)]
)
def test_a_call_that_was_not_timed_takes_the_nearest_within_four_times(
    rows: int, out: int, near: bool, kept: Path
) -> None:
    table.keep(DEVICE, [row(1, mosaic_gpu=9, xla=50)])
    found = chosen(rows, out=out)
    assert found.backend == ("mosaic_gpu" if near else "xla")
    assert found.reasons == ("" if near else f"fastest: no such call, or one near it, was measured on {DEVICE}")


def test_of_two_the_nearer_counts(kept: Path) -> None:
    table.keep(DEVICE, [row(1, mosaic_gpu=9, xla=50), row(8, mosaic_gpu=90, xla=50)])
    assert [chosen(n).backend for n in (1, 2, 5, 8)] == ["mosaic_gpu", "mosaic_gpu", "xla", "xla"]


def test_nothing_measured_and_nothing_known_are_said(kept: Path) -> None:
    assert chosen(1).reasons == f"fastest: nothing was measured on {DEVICE}; `python -m pipeline tune` does it there"
    assert chosen(1, "").reasons == "fastest: no kind of gpu is known here"
    on_cpu = Kernel("matmul", ("fastest", "xla")).resolve(*specs(1))
    assert (on_cpu.backend, on_cpu.declined) == ("xla", ())  # goes without saying
    alone = Kernel("matmul", ("fastest",)).resolve(*specs(1))
    assert alone.reasons == "fastest: there are tables of what calls take on gpu, and none of cpu"


def test_what_was_measured_here_comes_before_what_is_known(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "HERE", kept.parent / "known")
    (kept.parent / "known").mkdir(parents=True)
    said = [{"op": "matmul", "of": OF, "sizes": [n, 4096, 2048], "us": {"pallas": 1, "xla": 2}} for n in (1, 64)]
    (kept.parent / "known" / kept.name).write_text(json.dumps({**HEAD, "rows": said}))
    assert [chosen(n).backend for n in (1, 64)] == ["pallas", "pallas"]
    before = backends.measured(DEVICE, ["matmul"])
    table.keep(DEVICE, [row(1, mosaic_gpu=9, xla=50)])
    assert [chosen(n).backend for n in (1, 64)] == ["mosaic_gpu", "pallas"]
    assert backends.measured(DEVICE, ["matmul"]) != before
    table.keep(DEVICE, [row(64, xla=50)])
    assert [chosen(n).backend for n in (1, 64)] == ["mosaic_gpu", "xla"]  # both are kept


GOOD = {"op": "matmul", "of": OF, "sizes": [1, 4096, 2048], "us": {"xla": 9, "pallas": 1}}
DAMAGED = {
    "no JSON": "{", "empty": "", "a list": "[]", "no rows": HEAD,
    "of another device": {**HEAD, "device": "another", "rows": []},
    "of another version": {**HEAD, "version": 0, "rows": [GOOD]},
    **{
        name: {**HEAD, "rows": [GOOD, {**GOOD, **changed}]}
        for name, changed in {
            "a size of 0": {"sizes": [0, 1, 1]}, "too few sizes": {"sizes": [1, 4096]}, "no size": {"sizes": []},
            "a size without end": {"sizes": [10**400, 1, 1]}, "text": {"sizes": ["1", 1, 1]},
            "time below 0": {"us": {"xla": -1}}, "a time without end": {"us": {"xla": 10**400}}, "a number": {"us": 3},
            "pairs": {"us": [["xla", 5]]}, "not of xla": {"us": {"pallas": 5}}, "no encodings": {"of": 3},
            "no such op": {"op": "none"},
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("said", [pytest.param(said, id=name) for name, said in DAMAGED.items()])
def test_a_damaged_file_counts_for_nothing_and_that_is_said(
    said: Any, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.parent.mkdir()
    kept.write_text(said if isinstance(said, str) else json.dumps(said))
    assert chosen(1).backend == chosen(2).backend == "xla"
    assert capsys.readouterr().err.count(f"{kept}: no table of what calls take on {DEVICE}") == 1
    table.keep(DEVICE, [row(1, mosaic_gpu=9, xla=50)])
    assert chosen(1).backend == "mosaic_gpu"


def test_a_folder_that_cannot_be_written_is_an_error(kept: Path) -> None:
    kept.parent.write_text("a file")
    with pytest.raises(StorageError):
        table.keep(DEVICE, [row(1, xla=1)])


TABLES = sorted(Path(table.__file__).parent.glob("*.json"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_comes_along_can_be_read(path: Path) -> None:
    device = json.loads(path.read_text())["device"]
    assert table._name(device) == path.name
    _, found = table.read(path, device)
    assert all({*r.us} <= {table.USUAL, *table.OURS} for r in found)
    assert all(n == sizes.power(n) for r in found for n in r.sizes if n is not None)
    assert len({table._call(r) for r in found}) == len(found) > 0


def test_an_h200_takes_what_was_measured_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the JAX that it was measured with; with another nothing, and that is said."""
    installed = ["0.12.0"]
    monkeypatch.setattr(table.metadata, "version", lambda _: installed[0])
    monkeypatch.setattr(table, "kept", lambda _: Path("none"))
    table.rows.cache_clear()
    found = (
        model_runs.engine("auto")
        .ops.on("gpu", "NVIDIA H200")
        .attention.choose({"q": TensorSpec((1, 2048, 64, 64), "BF16")})
    )
    assert found.backend == "xla"
    assert "on NVIDIA H200 was measured with JAX 0.11, and this is 0.12; `python" in found.reasons
    installed[0] = "0.11.9"
    table.rows.cache_clear()
    ops = model_runs.engine("auto").ops.on("gpu", "NVIDIA H200")
    into, out = TensorSpec((32, 5760, 2880), "BF16", MXFP4), TensorSpec((32, 2880, 2880), "BF16", MXFP4)
    for tokens in (1, 16, 512, 4096):
        given = {"x": TensorSpec((tokens, 2880), "BF16"), "w_in": (into,), "w_out": out}
        assert ops.moe.choose(given).backend == "mosaic_gpu"
    # A prompt by our kernel, a token after it by XLA's: as fast as each was.
    assert ops.attention.choose({"q": TensorSpec((1, 2048, 64, 64), "BF16")}).backend == "mosaic_gpu"
    assert ops.attention.choose({"q": TensorSpec((1, 1, 64, 64), "BF16")}).backend == "xla"
    assert "fastest" not in ops.named().backends  # what is trained has gradients, which nobody timed
    table.rows.cache_clear()


def test_the_driver_says_which_gpus_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as plans know, which see no JAX."""
    monkeypatch.setattr(hardware, "NVIDIA", tmp_path)
    found, gpu = replace(model_runs.engine("auto"), device="gpu"), "Model: \t\t NVIDIA H200\nIRQ:   \t\t 40\n"
    assert found._kind == ""
    for name, said in (("0", gpu), ("1", gpu), ("2", "Model:  NVIDIA A100-SXM4-40GB\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "information").write_text(said)
        assert found._kind == ("" if name == "2" else "NVIDIA H200")  # which of two kinds it will be is not known
    (tmp_path / "3" / "information").mkdir(parents=True)
    assert found._kind == ""
    assert replace(found, device="cpu")._kind == ""


def test_results_of_a_gpu_depend_on_its_table(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.engine import start

    gpu = SimpleNamespace(platform="gpu", device_kind=DEVICE)
    monkeypatch.setattr(start, "resolved", lambda engine: (gpu, "bf16", "bf16"))
    first = model_runs.engine("auto").identity()
    table.keep(DEVICE, [row(1, mosaic_gpu=9, xla=50)])
    second = model_runs.engine("auto").identity()
    assert first["fastest"] != second["fastest"]
    assert {**first, "fastest": ""} == {**second, "fastest": ""}
    table.keep(DEVICE, [row(1, mosaic_gpu=9.5, xla=51)])  # measured again: the same is chosen
    assert model_runs.engine("auto").identity() == second
    monkeypatch.setattr(
        start, "resolved", lambda engine: (SimpleNamespace(platform="cpu", device_kind="cpu"), "f32", "f32")
    )
    assert "fastest" not in model_runs.engine("auto").identity()


# Measuring


class Took:
    """A program that takes so many microseconds."""

    def __init__(self, us: float, gives: float = 1.0) -> None:
        self.us, self.gives = us, gives

    def __call__(self) -> Any:
        return np.full((3, 4), self.gives, np.float32)

    def took(self, seconds: float) -> Any:
        return SimpleNamespace(seconds=self.us * 1e-6)


def test_each_call_is_kept_as_soon_as_it_was_timed(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    def call(self: Ours, case: Any) -> Any:
        if case.args[0].shape[0] == 256:
            raise KeyboardInterrupt
        if self.backend == "pallas":
            raise RuntimeError("ptxas gave up")
        if self.backend == "xla" and case.args[1].shape[0] == 32:
            raise RuntimeError("out of memory")
        few = case.args[0].shape[0] == 1
        return Took(40) if self.backend == "xla" else Took(10) if few else Took(10, gives=1.1)

    monkeypatch.setattr(fastest.on_device, "is_gpu", lambda: True)
    monkeypatch.setattr(jax, "devices", lambda *_: [SimpleNamespace(device_kind=DEVICE)])
    monkeypatch.setattr(Ours, "call", call)
    monkeypatch.setattr(
        fastest, "cases", lambda: MatMul(((64, 96), (32, 96)), (1, 16), ("mxfp4",), None, "bf16").cases()
    )
    said: list[str] = []
    found = fastest.tune(said.append)
    assert found == [
        ("matmul of mxfp4 [64, 96] × 1 of bf16", "xla", "mosaic_gpu", 4.0),
        ("matmul of mxfp4 [64, 96] × 16 of bf16", "xla", "xla", 1.0),
    ]
    assert "pallas: matmul of mxfp4 [64, 96] × 1 of bf16: ptxas gave up" in said
    assert "mosaic_gpu: matmul of mxfp4 [64, 96] × 16 of bf16: results are 0.1 of their size from xla's" in said
    assert "xla: matmul of mxfp4 [32, 96] × 1 of bf16: out of memory" in said
    assert [(r.sizes, r.us) for r in table.read(kept, DEVICE)[1]] == [
        ((1, 64, 128), {"xla": 40, "mosaic_gpu": 10}), ((16, 64, 128), {"xla": 40}),
    ]  # fmt: skip
    cases = MatMul(((640, 96),), (1, 256), ("mxfp4",), None, "bf16")
    monkeypatch.setattr(fastest, "cases", lambda: cases.cases())
    with pytest.raises(KeyboardInterrupt):
        fastest.tune(said.append)
    assert [r.sizes for r in table.read(kept, DEVICE)[1]] == [(1, 64, 128), (16, 64, 128), (1, 512, 128)]


def test_without_a_gpu_nothing_is_timed(kept: Path) -> None:
    assert fastest.tune(print) == []
    assert not kept.exists()


def test_what_is_timed_is_as_quant_makes_it() -> None:
    """Under any export: a second scale may be stored as its reciprocal."""
    timed = {w.encoding for name in fastest.FORMATS if (w := TensorSpec((4, 4), "BF16", data.FORMATS[name][0]))}
    made = [quant_method(name).scheme for name in ("mxfp4", "nvfp4", "int4", "int8", "fp8_e4m3")]
    int4, nvfp4 = made[2], made[1]
    made += [replace(int4, block_elems=64), replace(nvfp4, second="inverse_f32")]
    x = TensorSpec((1, 256), "BF16")
    assert {sizes._said(x, TensorSpec((4, 256), "BF16", s)) for s in made} == {
        f"BF16 × {encoding}" for encoding in timed
    }


def test_attention_over_a_packed_cache_is_another_call(kept: Path) -> None:
    us = {"pallas": 1.0, "xla": 9.0}
    table.keep(DEVICE, [Row("attention", "BF16 × BF16", (1, 1, 1024, 1024, 8, 2, 64), us)])
    q, plain = TensorSpec((1, 1, 8, 64), "BF16"), TensorSpec((1, 1024, 2, 64), "BF16")
    packed = replace(plain, scheme=Scheme("int8", 0, "f32"))
    kernel = Kernel("attention", ("fastest", "xla"), "gpu", DEVICE)
    assert [kernel.choose({"q": q, "k": k, "v": k}).backend for k in (plain, packed)] == ["pallas", "xla"]


@pytest.mark.parametrize("grid", [fastest.OUT, fastest.INTO, fastest.ROWS, fastest.SLOTS, fastest.PROMPTS])
def test_between_what_is_timed_every_size_is_near_something(grid: tuple[int, ...]) -> None:
    between = [2**n for n in range(int(math.log2(min(grid))), int(math.log2(max(grid))) + 1)]
    assert all(any(sizes.apart((n,), (m,)) < math.inf for m in grid) for n in between)
