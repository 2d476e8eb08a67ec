"""Decoding in C++: with every instruction set what the definition gives, bit for bit, for every scheme."""

import itertools
import shutil
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import ELEMENT_BITS, MXFP4, SCALE_DTYPES, Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.kernels.dequantize import native, reference
from plugins.kernels.native import build, library

pytestmark = pytest.mark.skipif(not any(map(shutil.which, build.COMPILERS)), reason="no C++ compiler")


@pytest.fixture(params=library.ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if library.ISAS.index(request.param) > library.core().wm_isa():
        pytest.skip(f"this machine has no {request.param}")
    monkeypatch.setenv(library.ISA, request.param)
    return str(request.param)


def schemes() -> list[Scheme]:
    """Every element with every scale, zero point and second-level scale that it may have, and every kind of block."""
    found = []
    for element, scale in itertools.product(ELEMENT_BITS, SCALE_DTYPES):
        if scale == "e8m0" and element.startswith("uint"):
            continue
        zeros = ("int", "min_f16") if element.startswith("uint") else (None,)
        seconds = {"e8m0": (None,), "dynamic8": ("dynamic8",)}.get(scale, (None, "f32", "inverse_f32"))
        found += [Scheme(element, 32, scale, zero=z, second=s) for z, s in itertools.product(zeros, seconds)]
    for element, (down, across) in itertools.product(
        ("e2m1", "int3", "uint4", "e4m3", "nf4"), [(1, 16), (1, 8), (1, 0), (0, 0), (4, 64), (16, 1), (3, 24)]
    ):
        found.append(Scheme(element, across, "f32", down, "int" if element == "uint4" else None))
    return found


def name(scheme: Scheme) -> str:
    block = f"{scheme.block_rows}x{scheme.block_elems}"
    return " ".join(str(part) for part in (scheme.element, block, scheme.scale, scheme.zero, scheme.second) if part)


def any_codes(scheme: Scheme, shape: tuple[int, ...]) -> QTensor:
    """Every pattern that there is, in codes and in scales: infinities, NaN and subnormals with them."""
    rng = np.random.default_rng(len(name(scheme)) + sum(shape))
    parts: dict[str, Any] = {}
    for component, dims in scheme.components(shape).items():
        dtype = np.dtype(numpy_dtype(scheme.dtypes[component]))
        if component == "second":
            parts[component] = np.float32(2.0) ** rng.integers(-9, 9, dims).astype(np.float32) * np.float32(0.7)
        elif dtype == np.float32:
            parts[component] = np.ldexp(rng.standard_normal(dims), rng.integers(-140, 120, dims)).astype(np.float32)
        else:
            count = int(np.prod(dims)) * dtype.itemsize
            parts[component] = rng.integers(0, 256, count, np.uint8).view(dtype).reshape(dims)
    return QTensor(scheme=scheme, **parts)


def patterns(y: Any) -> Any:
    """As integers. NaNs are one: what a product of two of them keeps, C++ does not say."""
    bits = np.ascontiguousarray(y).view(f"u{y.itemsize}").copy()
    bits[np.isnan(y.astype(np.float32))] = 0xFFFF
    return bits


@pytest.mark.parametrize("scheme", schemes(), ids=name)
def test_values_are_those_of_the_definition(isa: str, scheme: Scheme) -> None:
    for shape in ((5, 192), (2, 3, 4, 24 if scheme.block_elems == 24 else 64)):
        if scheme.problem(shape):
            continue
        q = any_codes(scheme, shape)
        for dtype in ("F32", "BF16", "F16"):
            overflow: Any = "clamp" if dtype == "F16" else "error"
            want = reference.dequantize(q, dtype, overflow=overflow)
            assert np.array_equal(patterns(native.dequantize(q, dtype, overflow=overflow)), patterns(want)), dtype
