"""Methods that look at activations: GPTQ against an fp64 reference, and searches that weigh columns."""

import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from pipeline.calibration import LinearStatistics
from pipeline.errors import ConfigError, ValueRangeError
from pipeline.ops import Kernel
from plugins.kernels.quantize.numpy import quantize as quick
from plugins.kernels.quantize.reference import quantize as slow
from plugins.quant.blockwise import Blockwise
from plugins.quant.by_outputs import Clip
from plugins.quant.gptq import Gptq
from plugins.quant.imatrix import Imatrix
from tests.oracles.gptq import gptq

GRID = (0.8, 0.9, 0.95, 1.05)
SCHEMES = {
    "int4": {"element": "int4", "block_elems": 32, "scale": "bf16", "scale_rule": "amax"},
    "uint4": {"element": "uint4", "block_elems": 16, "scale": "f16", "zero_point": "int", "scale_rule": "minmax"},
    "int8": {"element": "int8", "block_elems": 64, "scale": "f32", "scale_rule": "amax"},
    "int4 rows": {"element": "int4", "block_elems": 0, "scale": "f32", "scale_rule": "amax"},
    "mxfp4": {"element": "e2m1", "block_elems": 32, "scale": "e8m0"},
    "nvfp4": {"element": "e2m1", "block_elems": 16, "scale": "e4m3", "second": "f32", "scale_rule": "amax"},
    "q4_0": {"element": "int4", "block_elems": 32, "scale": "f16", "scale_rule": "signed"},
    "nf4": {"element": "nf4", "block_elems": 64, "scale": "f32", "scale_rule": "amax"},
}


def inputs(n, tokens=400, seed=0):
    """Inputs [tokens, n] that go together, some columns much larger than others."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((tokens, n)) @ (np.eye(n) + 0.3 * rng.standard_normal((n, n)) / np.sqrt(n))
    return (mixed * np.exp(rng.standard_normal(n))).astype(np.float32)


def statistics(x):
    h = x.T @ x / len(x)
    return LinearStatistics(np.asarray(len(x)), np.diag(h).copy(), np.abs(x).max(0), lambda: h)


def matrix(rows=24, n=192, seed=1):
    return np.random.default_rng(seed).standard_normal((rows, n)).astype(np.float32)


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("name", SCHEMES)
def test_with_inputs_that_do_not_go_together_gptq_rounds_to_the_nearest(name, act_order):
    method, w = Blockwise(**SCHEMES[name]), matrix()
    one = LinearStatistics(np.asarray(9), np.ones(192), np.ones(192), lambda: np.eye(192, dtype=np.float32))
    found, plain = Gptq(act_order=act_order).calibrated(method).encode(w, statistics=one), method.encode(w)
    assert {c: a.tobytes() for c, a in found.components.items()} == {
        c: a.tobytes() for c, a in plain.components.items()
    }


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("name", ["int4", "int4 rows", "mxfp4", "nvfp4"])
def test_gptq_is_its_definition(name, act_order):
    """Under the scales that were found: 192 columns, more than are brought up to date together."""
    method, w, x = Blockwise(**SCHEMES[name]), matrix(), inputs(192)
    h = (x.T @ x / len(x)).astype(np.float32)
    stats = SimpleNamespace(hessian=lambda: h)
    q = Gptq(damping=0.05, act_order=act_order).calibrated(method).encode(w, statistics=stats)
    order = np.argsort(-np.diag(h), kind="stable") if act_order else np.arange(192)
    size = method.block_elems or 192
    second = 1.0 if q.second is None else float(q.second.reshape(()))
    scale = q.scales.astype(np.float64) if name != "mxfp4" else 2.0 ** (q.scales.astype(np.float64) - 127)
    least = np.arange(-7, 8) if name.startswith("int4") else np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    levels = np.unique(np.concatenate([least, -least]))

    def rounded(j, values):
        step = scale[:, order[j] // size] * second
        near = np.abs(values[:, None] / step[:, None] - levels).argmin(1)
        return levels[near] * step

    wanted = np.empty_like(w, np.float64)
    wanted[:, order] = gptq(w[:, order], h[np.ix_(order, order)], 0.05, rounded)
    np.testing.assert_allclose(method.decode(q, "F32"), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", SCHEMES)
def test_both_lose_less_of_the_outputs(name):
    method, w, x = Blockwise(**SCHEMES[name]), matrix(), inputs(192)

    def lost(q):
        return float(np.square((w - method.decode(q, "F32")) @ x.T).sum())

    plain = lost(method.encode(w))
    weighed, corrected = (
        lost(c.calibrated(method).encode(w, statistics=statistics(x))) for c in (Imatrix(GRID), Gptq())
    )
    assert weighed < plain
    assert corrected < 0.8 * plain


@pytest.mark.parametrize("name", SCHEMES)
def test_searched_scales_of_gptq_lose_less_still(name):
    method, searching = Blockwise(**SCHEMES[name]), Gptq(grid=GRID)
    w, x = matrix(96), inputs(192)

    def lost(calibrator):
        q = calibrator.calibrated(method).encode(w, statistics=statistics(x))
        return float(np.square((w - method.decode(q, "F32")) @ x.T).sum())

    assert lost(searching) < lost(Gptq())


def test_gptq_searches_by_itself_where_nobody_says_how_scales_are_made():
    usual = Blockwise(element="int4", block_elems=32, scale="bf16")
    searched = replace(usual, search="mse", search_grid=GRID, scale_rule="half_range")
    w = matrix()
    one = LinearStatistics(np.asarray(9), np.ones(192), np.ones(192), lambda: np.eye(192, dtype=np.float32))
    found, wanted = Gptq(grid=GRID).calibrated(usual).encode(w, statistics=one), searched.encode(w)
    assert found.codes.tobytes() == wanted.codes.tobytes()
    assert found.scales.tobytes() == wanted.scales.tobytes()
    like = Gptq(grid=GRID).calibrated(replace(usual, like="compressed_tensors"))
    assert like.recipe.search == "none"


@pytest.mark.parametrize("calibrator", [Gptq(grid=GRID), Imatrix(GRID), Clip(GRID)], ids=lambda c: type(c).__name__)
def test_a_search_of_its_own_stays(calibrator):
    own = Blockwise(
        element="int4", block_elems=32, scale="bf16", scale_rule="amax", search="mse", search_grid=(0.9,)
    )  # fmt: skip
    found = calibrator.calibrated(own).recipe
    assert (found.scale_rule, found.search, found.search_grid) == ("amax", "mse", (0.9,))


def test_experts_take_their_own_hessians_and_rows_may_come_in_parts():
    method, w = Blockwise(**SCHEMES["int4"]), np.stack([matrix(seed=s) for s in (1, 2)])
    xs = [inputs(192, seed=s) for s in (3, 4)]
    hs = np.stack([x.T @ x / len(x) for x in xs])
    both = LinearStatistics(np.full(2, 400), np.stack([np.diag(h) for h in hs]), np.ones((2, 192)), lambda e: hs[e])
    corrected = Gptq().calibrated(method)
    whole = corrected.encode(w, statistics=both)
    second = corrected.encode(w[1:, 8:16], statistics=both.of((slice(1, 2),), slice(0, 192)))
    np.testing.assert_array_equal(second.codes[0], whole.codes[1, 8:16])
    alone = corrected.encode(w[1], statistics=statistics(xs[1]))
    np.testing.assert_array_equal(alone.codes, whole.codes[1])


@pytest.mark.parametrize("name", SCHEMES)
def test_the_reference_weighs_columns_too(name):
    x, searching = inputs(192), Imatrix(GRID).calibrated(Blockwise(**SCHEMES[name]))
    weights = np.square(x).mean(0)
    options = {f: getattr(searching.recipe, f) for f in searching.recipe.__dataclass_fields__}
    a, b = (fn(matrix(2), searching.scheme, importance=weights, **options) for fn in (quick, slow))
    assert a.codes.tobytes() == b.codes.tobytes()
    assert a.scales.tobytes() == b.scales.tobytes()
    assert a.codes.tobytes() != quick(matrix(2), searching.scheme, **options).codes.tobytes()


def test_what_cannot_be_is_said():
    rows = Blockwise(element="int8", block_elems=0, scale="f32", scale_rule="amax")
    with pytest.raises(ConfigError, match="blocks in one row"):
        Gptq().calibrated(replace(rows, block_rows=0))
    with pytest.raises(ConfigError, match=r"searches for scales, as search=mse does: .* a whole matrix"):
        Imatrix(GRID).calibrated(replace(rows, block_rows=0))
    with pytest.raises(ConfigError, match="importance: of shape"):
        Imatrix(GRID).calibrated(Blockwise(**SCHEMES["int4"])).encode(
            matrix(), statistics=SimpleNamespace(mean_square=np.ones(191))
        )


def taken(method, w, one):
    """Bytes that encoding takes at its peak, the result aside."""
    method.encode(w[:1], statistics=one)  # imports
    tracemalloc.start()
    try:
        q = method.encode(w, statistics=one)
        return tracemalloc.get_traced_memory()[1] - q.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("rows", "n", "size"), [(1500, 512, 32), (3000, 128, 128), (300, 768, 0), (4000, 256, 16)], ids=str
)
@pytest.mark.parametrize("act_order", [True, False])
def test_memory_is_what_is_said(rows, n, size, act_order):
    """Of either backend; what LAPACK and C++ take for themselves is a few columns."""
    method = Blockwise("int8", size, "f32")
    w, h = np.ones((rows, n), np.float32).astype(ml_dtypes.bfloat16), np.eye(n, dtype=np.float32)
    one = LinearStatistics(np.asarray(9), np.ones(n), np.ones(n), lambda: h.copy())
    for backends in (("numpy",), ("native", "numpy")):
        corrected = Gptq(grid=GRID, act_order=act_order, kernel=Kernel("gptq", backends)).calibrated(method)
        assert 0.2 < taken(corrected, w, one) / corrected.scratch(w.shape) < 1.05


def test_inputs_that_are_no_numbers_are_refused():
    h = np.eye(192, dtype=np.float32)
    h[3, 5] = h[5, 3] = np.nan
    one = LinearStatistics(np.asarray(9), np.ones(192), np.ones(192), lambda: h)
    with pytest.raises(ValueRangeError, match="not finite"):
        Gptq().calibrated(Blockwise(**SCHEMES["int4"])).encode(matrix(), statistics=one)
