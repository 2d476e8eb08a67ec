"""Decoding in C++: with every instruction set what the definition gives, bit for bit, for every scheme."""

import itertools
import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ValueRangeError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import numpy_dtype
from plugins.facts import codebooks
from plugins.kernels.dequantize import native, reference
from plugins.kernels.dequantize import numpy as numpy_dequantize
from tests.cases.native import kinds, needs_compiler

pytestmark = needs_compiler


def schemes() -> list[Scheme]:
    """Every kind, and every kind of block."""
    found = kinds()
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


@cache
def defined(scheme: Scheme, shape: tuple[int, ...]) -> dict[str, Any]:
    q = any_codes(scheme, shape)
    return {
        "F32": reference.dequantize(q, "F32"),
        "BF16": reference.dequantize(q, "BF16"),
        "F16": reference.dequantize(q, "F16", overflow="clamp"),
    }


@pytest.mark.parametrize("scheme", schemes(), ids=name)
@pytest.mark.brief(each=("scheme",))
def test_values_are_those_of_the_definition(isa: str, scheme: Scheme) -> None:
    shape = (2, 3, 192)
    q = any_codes(scheme, shape)
    for dtype, want in defined(scheme, shape).items():
        found = native.dequantize(q, dtype, overflow="clamp" if dtype == "F16" else "error")
        assert np.array_equal(patterns(found), patterns(want)), dtype


@pytest.mark.parametrize("scheme", schemes(), ids=name)
def test_long_rows_and_views_are_decoded_as_by_numpy(isa: str, scheme: Scheme) -> None:
    """Rows of several tiles, the last one not whole; components that are not contiguous."""
    n = 24 * 90 if scheme.block_elems == 24 else 2048 + 128 + (0 if scheme.block_elems else 8)
    q = any_codes(scheme, (4, n))
    if scheme.second != "dynamic8" and scheme.block_rows == 1:
        q = replace(q, **{part: array[::2] for part, array in q.components.items() if part != "second"})
    with np.errstate(all="ignore"):
        want = numpy_dequantize.dequantize(q, "F32")
    assert np.array_equal(patterns(native.dequantize(q, "F32")), patterns(want))


def test_a_vector_a_value_of_nothing_and_the_code_book(isa: str) -> None:
    q = any_codes(MXFP4, (64,))
    assert np.array_equal(patterns(native.dequantize(q)), patterns(reference.dequantize(q)))
    assert native.dequantize(any_codes(MXFP4, (3, 0, 64)), "F32").shape == (3, 0, 64)
    codes = QTensor(np.arange(0, 256, dtype=np.uint8)[None], np.ones((1, 16), np.float32), Scheme("nf4", 32, "f32"))
    pairs = np.asarray(codebooks.NF4, np.float32)[np.stack([np.arange(256) & 15, np.arange(256) >> 4], 1)]
    assert np.array_equal(native.dequantize(codes, "F32"), pairs.reshape(1, 512))


@pytest.mark.parametrize("scheme", [MXFP4, Scheme("int8", 32, "f32")], ids=name)
def test_what_is_past_float16_is_refused_where_it_is(isa: str, scheme: Scheme) -> None:
    """The first of them, with its exact value, as the definition says it; not a value that was infinite before."""
    q = any_codes(scheme, (2, 70, 3072))
    q.codes[...] = 0x11
    q.scales[...] = 127 if scheme.scale == "e8m0" else 1
    for matrix, row, block, scale in ((1, 40, 70, 2.0**127), (1, 40, 90, 2.0**15), (1, 50, 0, 2.0**16)):
        q.scales[matrix, row, block] = np.log2(scale) + 127 if scheme.scale == "e8m0" else scale
    q.codes[1, 40, 70 * q.codes.shape[-1] // 96 + 1] = 0x77
    q.codes[0, 0, 0] = 0
    first = (70 + 40) * 3072 + 70 * 32
    exact = 0.5 * 2.0**127 if scheme.scale == "e8m0" else 17 * 2.0**127
    if scheme.scale == "f32":  # float32 has no such value: it is infinite before it is rounded, and stays so
        first, exact = (70 + 40) * 3072 + 90 * 32, 17 * 2.0**15
    with pytest.raises(ValueRangeError, match=re.escape(f"flat index {first}: {exact} is out of range of F16")):
        native.dequantize(q, "F16")
    clamped = native.dequantize(q, "F16", overflow="clamp")
    assert clamped.flat[first] == 65504
    assert np.isinf(clamped).sum() == (32 if scheme.scale == "f32" else 0)
