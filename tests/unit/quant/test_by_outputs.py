"""Scales by what a matrix gives: the search is its definition, and loses less than one that looks at columns alone."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from pipeline.calibration import LinearStatistics
from pipeline.errors import ConfigError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.quantize_by_outputs import search
from plugins.quant.blockwise import Blockwise
from plugins.quant.by_outputs import ByOutputs, Clip
from plugins.quant.gptq import Gptq
from plugins.quant.imatrix import Imatrix, Weighted
from plugins.quant.structs import Structs, WeightedStructs
from tests.unit.quant.test_calibrated import GRID, SCHEMES, inputs, matrix, statistics, taken

CLIP = Clip(GRID)


def same(a, b):
    return {c: v.tobytes() for c, v in a.components.items()} == {c: v.tobytes() for c, v in b.components.items()}


@pytest.mark.parametrize("name", SCHEMES)
def test_with_inputs_that_do_not_go_together_it_is_a_search_of_weights(name):
    method, w = Blockwise(**SCHEMES[name]), matrix()
    one = LinearStatistics(np.asarray(9), np.ones(192), np.ones(192), lambda: np.eye(192, dtype=np.float32))
    assert same(CLIP.calibrated(method).encode(w, statistics=one), Imatrix(GRID).calibrated(method).encode(w))


@pytest.mark.parametrize("name", SCHEMES)
def test_less_is_lost_of_the_outputs_than_by_columns_alone(name):
    method, w, x = Blockwise(**SCHEMES[name]), matrix(96), inputs(192)

    def lost(calibrator):
        q = calibrator.calibrated(method).encode(w, statistics=statistics(x))
        return float(np.square((w - method.decode(q, "F32")) @ x.T).sum())

    assert lost(CLIP) < 0.995 * lost(Imatrix(GRID))


@pytest.mark.parametrize("name", ["int4", "mxfp4"])
def test_what_is_finite_is_rounded_whatever_is_done_with_what_is_not(name):
    method, w, stats = Blockwise(**SCHEMES[name]), matrix(16), statistics(inputs(192))
    poisons = replace(method, nonfinite="poison")
    assert same(
        CLIP.calibrated(poisons).encode(w, statistics=stats), CLIP.calibrated(method).encode(w, statistics=stats)
    )


def test_where_zeros_have_a_sign_columns_are_weighed():
    """As ModelOpt has them in MXFP4; gptq says so before anything is read."""
    method, w, stats = replace(Blockwise(**SCHEMES["mxfp4"]), like="modelopt"), matrix(16), statistics(inputs(192))
    found = CLIP.calibrated(method)
    assert not isinstance(found, ByOutputs)
    assert same(found.encode(w, statistics=stats), Imatrix(GRID).calibrated(method).encode(w, statistics=stats))
    with pytest.raises(ConfigError, match="rounds finite values to the nearest"):
        Gptq().calibrated(method)


@pytest.mark.parametrize("zero", [None, "int"])
def test_every_scale_is_the_one_that_loses_least_beside_what_the_others_lose(zero):
    """Row by row and whole outputs at a time, in fp64."""
    method = Blockwise(**SCHEMES["int4" if zero is None else "uint4"])
    method = replace(method, block_elems=48, scale="f32")
    w, x = matrix(6), inputs(192)
    stats = statistics(x)
    h, found = stats.hessian().astype(np.float64), CLIP.calibrated(method).encode(w, statistics=stats)

    def rounded(block, factor):
        if zero is None:
            step = np.float32(np.abs(block).max() / np.float32(7)) * np.float32(factor)
            return step, np.clip(np.rint(block / step), -7, 7) * step
        low, high = min(block.min(), 0), max(block.max(), 0)
        step = np.float32((high - low) / np.float32(15)) * np.float32(factor)
        at = np.clip(np.rint(-low / step), 0, 15)
        return step, (np.clip(np.rint(block / step) + at, 0, 15) - at) * step

    for row, stored in zip(w, found.scales, strict=True):
        blocks = row.reshape(4, 48)
        scales, values = zip(*(rounded(b, 1) for b in blocks), strict=True)
        scales, values = list(scales), list(values)
        for b in [*range(4)] * search.PASSES:
            tried = []
            for factor in (1, *GRID):
                scale, value = rounded(blocks[b], factor)
                off = np.concatenate([*values[:b], value, *values[b + 1 :]]).astype(np.float64) - row
                tried.append((off @ h @ off, scale, value))
            _, scales[b], values[b] = min(tried, key=lambda of: of[0])
        np.testing.assert_allclose(stored, scales, rtol=1e-6)


def test_experts_take_their_own_products_and_rows_come_in_tiles(monkeypatch):
    method, w = Blockwise(**SCHEMES["uint4"]), np.stack([matrix(seed=s) for s in (1, 2)])
    hs = np.stack([x.T @ x / len(x) for x in (inputs(192, seed=s) for s in (3, 4))])
    both = LinearStatistics(np.full(2, 400), np.stack([np.diag(h) for h in hs]), np.ones((2, 192)), lambda e: hs[e])
    whole = CLIP.calibrated(method).encode(w, statistics=both)
    alone = CLIP.calibrated(method).encode(w[1], statistics=statistics(inputs(192, seed=4)))
    assert whole.codes[1].tobytes() == alone.codes.tobytes()
    assert whole.zeros[1].tobytes() == alone.zeros.tobytes()
    monkeypatch.setattr(search, "TILE", 7 * 192)
    assert same(CLIP.calibrated(method).encode(w, statistics=both), whole)


def test_without_products_columns_are_weighed():
    method, w, stats = Blockwise(**SCHEMES["int4"]), matrix(), statistics(inputs(192))
    found = CLIP.calibrated(method).encode(w, statistics=replace(stats, hessian=None))
    assert same(found, Imatrix(GRID).calibrated(method).encode(w, statistics=stats))


def test_symmetric_integers_use_all_codes_where_nobody_says_how_scales_are_made():
    usual = Blockwise(element="int4", block_elems=32, scale="bf16")
    assert CLIP.calibrated(usual).recipe.scale_rule == "half_range"
    assert CLIP.calibrated(replace(usual, scale_rule="amax")).recipe.scale_rule == "amax"
    assert CLIP.calibrated(replace(usual, like="compressed_tensors")).scale_rule is None


def test_what_has_no_blocks_in_a_row_is_searched_as_by_imatrix():
    tiles = Blockwise(element="int8", block_elems=8, block_rows=4, scale="f32", scale_rule="amax")
    assert type(CLIP.calibrated(tiles)) is Weighted
    assert type(CLIP.calibrated(Blockwise(**SCHEMES["int4"]))) is ByOutputs
    assert type(CLIP.calibrated(Structs("q4_k"))) is WeightedStructs
    with pytest.raises(ConfigError, match=r"^calibrate=awq searches for scales, as search=mse does: .* a whole matrix"):
        CLIP.calibrated(replace(tiles, block_elems=0, block_rows=0))


def test_the_kernel_that_is_named_does_it():
    """And plans are told so."""
    method, w, stats = Blockwise(**SCHEMES["nvfp4"]), matrix(), statistics(inputs(192))
    named = Clip(GRID, kernel=Kernel("quantize_by_outputs", ("reference",))).calibrated(method)
    assert [call.kernel for call in named.calls("w", TensorSpec(w.shape, "BF16"))] == [named.kernel]
    assert same(named.encode(w[:2], statistics=stats), CLIP.calibrated(method).encode(w[:2], statistics=stats))


@pytest.mark.parametrize(("rows", "n", "size"), [(1500, 512, 32), (300, 768, 0), (4200, 256, 16)])
def test_memory_is_what_is_said(rows, n, size):
    """Of either backend, of one tile and of two."""
    method = Blockwise("uint4", size, "f16", zero_point="int", scale_rule="minmax")
    w, h = matrix(rows, n).astype(ml_dtypes.bfloat16), np.eye(n, dtype=np.float32)
    one = LinearStatistics(np.asarray(9), np.ones(n), np.ones(n), lambda: h.copy())
    for backends in (("numpy",), ("native", "numpy")):
        searching = Clip(GRID, kernel=Kernel("quantize_by_outputs", backends)).calibrated(method)
        assert 0.4 < taken(searching, w, one) / searching.scratch(w.shape) < 1


def test_what_is_not_finite_is_refused():
    w = matrix()
    w[3, 5] = np.nan
    with pytest.raises(ValueRangeError, match="flat index 581"):
        CLIP.calibrated(Blockwise(**SCHEMES["int4"])).encode(w, statistics=statistics(inputs(192)))
