"""The native kernels: with every instruction set what the other backends give; and how they come to be there."""

import itertools
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError, StageError, StorageError, Unsupported, ValueRangeError
from pipeline.tensors.scheme import MXFP4
from plugins.kernels.native import build, library
from plugins.kernels.quantize import native as native_quantize
from plugins.kernels.quantize import numpy as numpy_quantize

BF16 = ml_dtypes.bfloat16

pytestmark = pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler")


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if library.ISAS.index(request.param) > library.core().wm_isa():
        pytest.skip(f"this machine has no {request.param}")
    monkeypatch.setenv(library.ISA, request.param)
    return str(request.param)


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    patterns = np.arange(1 << 16, dtype=np.uint16)
    finite = patterns[(patterns & 0x7FFF) < 0x7F80]
    near = (rng.standard_normal((3, 3, 65, 128)) * 0.1).astype(np.float32)
    wild = rng.integers(0, 1 << 32, (50, 64), dtype=np.uint32).view(np.float32)
    return {
        "every bfloat16": np.resize(finite, (len(finite) // 32 + 1) * 32).view(BF16).reshape(-1, 32),
        "mixed": rng.permutation(finite)[: 70 * 96].view(BF16).reshape(70, 96),
        "float32": near,
        "float16": near.astype(np.float16),
        "transposed": np.ascontiguousarray(near.swapaxes(-1, -2)).swapaxes(-1, -2),
        "transposed bfloat16": np.ascontiguousarray(near.astype(BF16).swapaxes(-1, -2)).swapaxes(-1, -2),
        "every other row": near[:, :, ::2],
        "a row": near[0, 0, 0],
        "any float32": np.where(np.isfinite(wild), wild, np.float32(1)),
        "not aligned": np.frombuffer(b"x" + near.tobytes(), np.uint8)[1:].view(np.float32).reshape(near.shape),
        "nothing": np.zeros((0, 64), np.float32),
    }


@pytest.mark.parametrize("name", inputs())
def test_codes_and_scales_are_those_of_numpy(isa: str, name: str) -> None:
    x = inputs()[name]
    rules, ties = ("floor", "ceil", "even", "rceil"), ("even", "zero", "away")
    for rule, tie, zero, tiny, block in itertools.product(
        rules, ties, ("signed", "positive"), ("spec", "torchao"), (32, 16)
    ):
        options: dict[str, Any] = {"scale_rule": rule, "ties": tie, "zero": zero, "tiny": tiny, "overflow": "inf"}
        scheme = replace(MXFP4, block_elems=block)
        found, stats = native_quantize.quantize(x, scheme, measure=True, **options)
        if not x.size:
            assert (found.codes.size, stats.count) == (0, 0)
            continue
        want, lost = numpy_quantize.quantize(x, scheme, measure=True, **options)
        assert np.array_equal(found.codes, want.codes), options
        assert np.array_equal(found.scales, want.scales), options
        if tiny == "spec":  # the other decodes wrong, and NumPy measures against the codes that are right
            assert stats.count == lost.count
            sums = (stats.max_abs, stats.sq_error, stats.sq_signal)
            np.testing.assert_allclose(sums, (lost.max_abs, lost.sq_error, lost.sq_signal), rtol=3e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_first_value_that_is_not_finite_is_named(isa: str, transposed: bool) -> None:
    x = np.ones((3, 70, 96), BF16)
    x[1, 40, 37], x[1, 40, 3], x[2, 0, 0] = np.nan, np.inf, np.nan
    x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if transposed else x
    with pytest.raises(ValueRangeError, match=f"flat index {70 * 96 + 40 * 96 + 3}: inf has no E2M1 value"):
        native_quantize.quantize(x, MXFP4)
    poisoned = native_quantize.quantize(x, MXFP4, nonfinite="poison")
    want = numpy_quantize.quantize(x, MXFP4, nonfinite="poison")
    assert np.array_equal(poisoned.codes, want.codes)
    assert np.array_equal(poisoned.scales, want.scales)


def test_an_instruction_set_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.ISA, "portabel")
    with pytest.raises(ConfigError, match=r"WEIGHTMILL_ISA=portabel: this machine has .*; did you mean 'portable'"):
        library.isa()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without libraries, and nothing remembered of compilers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    build.compiler.cache_clear()
    yield tmp_path
    build.compiler.cache_clear()


def test_without_a_compiler_it_is_left_to_others(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(elsewhere))
    with pytest.raises(Unsupported, match=r"no C\+\+ compiler: neither CXX is set nor c\+\+, .* on the path"):
        build.library()


def test_a_compiler_or_a_folder_that_will_not_do_is_known_before(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.missing.cache_clear()
    monkeypatch.setenv("CXX", "false")
    assert "the C++ compiler 'false' does not run" in str(build.missing())
    monkeypatch.delenv("CXX")
    for cached in (build.missing, build.compiler, build._compiler_version):
        cached.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(StorageError, match="the native kernels cannot be kept there"):
        build.library()
    build.missing.cache_clear()


def test_sources_that_do_not_compile_leave_nothing(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = shutil.copytree(build.SOURCES, elsewhere / "src")
    (sources / "core.cc").write_text("int wm_isa() { return nothing; }\n")
    monkeypatch.setattr(build, "SOURCES", sources)
    with pytest.raises(StageError, match=r"(?s)the native kernels do not compile .*nothing"):
        build.library()
    assert list(build.folder().iterdir()) == []


def test_a_changed_source_is_another_library(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def run(command: list[str], **options: Any) -> Any:
        if "-o" in command:
            compiled.append(command[-1])
            Path(command[command.index("-o") + 1]).write_bytes(b"a library")
        return subprocess.CompletedProcess(command, 0, "a compiler", "")

    sources = shutil.copytree(build.SOURCES, elsewhere / "src")
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setattr(build.subprocess, "run", run)
    build._compiler_version.cache_clear()
    first = build.library()
    assert build.library() == first
    assert len(compiled) == 1
    (sources / "floats.h").write_text((sources / "floats.h").read_text() + "// changed\n")
    assert build.library() != first
    assert len(compiled) == 2
    build._compiler_version.cache_clear()
