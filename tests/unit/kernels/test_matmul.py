"""matmul: bands, planes, precision and memory; values on named cases are the contract's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline.tensors.pytree  # noqa: F401
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import numpy_dtype
from pipeline.testing.model_op import agree
from plugins.kernels.cases import BF16, SCHEMES, normal
from plugins.kernels.embed.xla import embed
from plugins.kernels.matmul import planes, weights, xla
from plugins.kernels.matmul.reference import matmul as reference
from tests.cases.quantized import quantized

MATMUL = Kernel("matmul", ("xla",))


# Any two of scheme, rows and platform meet once.
BANDS = [
    pytest.param(name, (1, 3)[(i + elsewhere) % 2], elsewhere, id=f"{name}, {where}")
    for i, name in enumerate(("mxfp4", "nvfp4", "nf4 twice", "int8 a row", "int8 a matrix", "fp8 in tiles", "e3m2"))
    for elsewhere, where in ((False, "cpu"), (True, "other platforms"))
]


@pytest.mark.parametrize(("name", "rows", "elsewhere"), BANDS)
@pytest.mark.brief
@pytest.mark.usefixtures("quick")
def test_bands_and_what_is_left_of_them(monkeypatch: pytest.MonkeyPatch, name: str, rows: int, elsewhere: bool) -> None:
    """22 rows in bands of 5 or 6, and the rest; the same from the middle of a stack."""
    monkeypatch.setattr(weights, "CPU_BAND_NBYTES", 6 * 128 * 4)
    monkeypatch.setattr(weights, "BAND_NBYTES", 6 * 128 * 4)
    x = normal(np.random.default_rng(0), rows, 128)
    stack = quantized(SCHEMES[name], (3, 22, 128))
    whole = Kernel("dequantize", ("numpy",))(stack, "F32")
    call = xla._elsewhere if elsewhere else xla.product
    found = jax.jit(lambda x, w, at: call(x, w, at))(x, stack, np.int32(2))
    agree(reference(x, whole[2]), found)
    matrix = quantized(SCHEMES[name], (22, 128))
    agree(reference(x, matrix), jax.jit(lambda x, w: call(x, w, None))(x, matrix))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [np.float32, BF16])
@pytest.mark.usefixtures("quick_at_first")
def test_plain_weights_of_another_dtype_in_bands(monkeypatch: pytest.MonkeyPatch, rows: int, dtype: Any) -> None:
    monkeypatch.setattr(weights, "CPU_BAND_NBYTES", 6 * 40 * 4)
    rng = np.random.default_rng(0)
    x, w = normal(rng, rows, 40, dtype=dtype), normal(rng, 23, 40, dtype=BF16 if dtype == np.float32 else np.float32)
    agree(reference(x, w), jax.jit(MATMUL)(x, w))


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("name", ["e2m1", "e4m3", "e5m2", "mxint8", "nf4", "int2"])
@pytest.mark.brief(each=("name",))
@pytest.mark.usefixtures("quick_at_first")
def test_planes_hold_every_code_under_every_scale(name: str, dtype: str) -> None:
    """Bit for bit what dequantize says, but for what is below the smallest normal number, which is 0."""
    scheme = Scheme(name, 32, "e8m0")
    bits = scheme.element_bits
    codes = np.tile(np.arange(256, dtype=np.uint8).reshape(-1, 4 * bits), (256, 1))
    scales = np.repeat(np.arange(256, dtype=np.uint8), len(codes) // 256)[:, None]
    q = QTensor(codes, scales, scheme)
    expected = np.asarray(Kernel("dequantize", ("reference",))(q, dtype)).astype(np.float32)
    expected[np.abs(expected) < 2.0**-126] = 0
    kind = jnp.float32 if dtype == "F32" else jnp.bfloat16
    found, after = jax.jit(lambda q: planes.planes(q, kind))(q)
    assert after is None
    many = 8 // bits
    assert len(found) == planes.count(q) == many
    for p, plane in enumerate(found):
        assert plane.dtype == numpy_dtype(dtype)
        given = np.asarray(plane).astype(np.float32)
        given[np.abs(given) < 2.0**-126] = 0
        np.testing.assert_array_equal(given, expected[:, p::many])


def test_float32_products_are_full() -> None:
    """The bound of a float32 sum of exact products; bfloat16 or TF32 passes miss it by a factor of hundreds."""
    rng = np.random.default_rng(0)
    x, w = normal(rng, 3, 96), normal(rng, 5, 96)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    bound = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T * 2.0**-24 * 8
    assert (np.abs(np.asarray(MATMUL(x, w)) - exact) <= bound).all()


@pytest.mark.usefixtures("quick_at_first")
def test_the_bias_is_added_before_the_cast() -> None:
    x, w = np.ones((1, 2), BF16), np.array([[1, 2.0**-6], [3, 0]], BF16)
    y = MATMUL(x, w, np.array([-1, 0.25], np.float32))
    assert np.asarray(y).astype(np.float32).tolist() == [[2.0**-6, 3.25]]


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("shape", [(5760, 2880), (201088, 2880)], ids=["gate_up of gpt-oss", "a head as large as its"])
@pytest.mark.brief(each=("shape",))
def test_a_packed_matrix_is_never_there_decoded(shape: tuple[int, int], dtype: Any, rows: int) -> None:
    """What XLA sets aside for the program, beside arguments and result, is some bands: decoded, 31 MiB and up."""
    call = jax.jit(MATMUL).lower(jax.ShapeDtypeStruct((rows, shape[1]), dtype), shaped(MXFP4, shape))
    sizes = call.compile().memory_analysis()
    result = rows * shape[0] * 4
    assert sizes.temp_size_in_bytes < (16 << 20) + 3 * result


def test_embedding_decodes_the_rows_asked_for() -> None:
    call = jax.jit(lambda ids, w: embed(ids, w, dtype=jnp.bfloat16))
    sizes = call.lower(jax.ShapeDtypeStruct((7,), jnp.int32), shaped(MXFP4, (201088, 2880))).compile()
    assert sizes.memory_analysis().temp_size_in_bytes < 1 << 20


def shaped(scheme: Scheme, shape: tuple[int, ...]) -> QTensor:
    """A QTensor of shapes only."""
    parts = {
        name: jax.ShapeDtypeStruct(dims, numpy_dtype(scheme.dtypes[name]))
        for name, dims in scheme.components(shape).items()
    }
    return QTensor(scheme=scheme, **parts)


@pytest.mark.usefixtures("quick_at_first")
def test_swapped_nibbles_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = planes.planes

    def swapped(q: QTensor, dtype: Any) -> tuple[list[Any], Any]:
        found, after = real(q, dtype)
        return found[::-1], after

    x, w = normal(np.random.default_rng(0), 2, 64), quantized(MXFP4, (7, 64))
    agree(reference(x, w), MATMUL(x, w))
    monkeypatch.setattr(xla, "planes", swapped)
    with pytest.raises(AssertionError):
        agree(reference(x, w), jax.jit(lambda x, w: xla.matmul(x, w))(x, w))
