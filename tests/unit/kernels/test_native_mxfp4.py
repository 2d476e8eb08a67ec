"""The native kernels: with every instruction set what the other backends give."""

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import ConfigError, ValueRangeError
from pipeline.tensors.scheme import MXFP4
from plugins.kernels.native import library
from plugins.kernels.quantize import native as native_quantize
from plugins.kernels.quantize import numpy as numpy_quantize
from tests.cases.native import needs_compiler

BF16 = ml_dtypes.bfloat16

pytestmark = needs_compiler


def inputs() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    patterns = np.arange(1 << 16, dtype=np.uint16)
    finite = patterns[(patterns & 0x7FFF) < 0x7F80]
    near = (rng.standard_normal((3, 3, 65, 128)) * 0.1).astype(np.float32)
    mixed = rng.permutation(finite)[: 70 * 96].view(BF16).reshape(70, 96)
    every = np.resize(finite, (len(finite) // 32 + 1) * 32).view(BF16).reshape(-1, 32)
    wild = rng.integers(0, 1 << 32, (50, 64), dtype=np.uint32).view(np.float32)
    return {
        "every bfloat16": every,
        "every bfloat16, transposed": np.asfortranarray(every[:-1].reshape(-1, 64)),
        "mixed": mixed,
        "mixed, transposed": np.asfortranarray(mixed.reshape(105, 64)),
        "float32": near,
        "float16": near.astype(np.float16),
        "transposed": np.ascontiguousarray(near.swapaxes(-1, -2)).swapaxes(-1, -2),
        "bfloat16, transposed": (rng.standard_normal((2, 192, 101)) * 0.1).astype(BF16).swapaxes(-1, -2),
        "every other row": near[:, :, ::2],
        "a row": near[0, 0, 0],
        "any float32": np.where(np.isfinite(wild), wild, np.float32(1)),
        "not aligned": np.frombuffer(b"x" + near.tobytes(), np.uint8)[1:].view(np.float32).reshape(near.shape),
        "nothing": np.zeros((0, 64), np.float32),
    }


@pytest.mark.parametrize("name", inputs())
@pytest.mark.brief(each=("name",))
def test_codes_and_scales_are_those_of_numpy(isa: str, name: str) -> None:
    x = inputs()[name]
    rules, ties = ("floor", "ceil", "even", "rceil"), ("even", "zero", "away")
    for rule, tie, zero, tiny, block in itertools.product(
        rules, ties, ("signed", "positive"), ("spec", "torchao"), (32, 64 if ", transposed" in name else 16)
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
    with pytest.raises(
        ConfigError, match=r"WEIGHTMILL_ISA=portabel: is none that this machine has; did you mean 'portable'"
    ):
        library.isa()
