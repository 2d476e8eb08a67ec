"""GPTQ of ggml's structs, against its definition under the scales that their own search found."""

from functools import cache
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from pipeline.calibration import LinearStatistics
from pipeline.ops import Kernel
from pipeline.tensors.scheme import STRUCTS
from plugins.facts.ggml_blocks import DECODERS
from plugins.facts.ggml_blocks import decode as decoded
from plugins.kernels.codecs.ggml_bytes import with_codes
from plugins.kernels.codecs.superblocks import LAYOUTS
from plugins.quant.corrected_structs import CorrectedStructs
from plugins.quant.gptq import Gptq
from plugins.quant.imatrix import Imatrix
from plugins.quant.structs import Structs
from tests.cases.native import needs_compiler
from tests.oracles.gptq import gptq

KINDS = sorted(STRUCTS)
N = 512  # columns: more than one super-block, and more than are brought up to date together


def inputs(n=N, tokens=700, seed=0):
    """Inputs [tokens, n] that go together, some columns much larger than others."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((tokens, n)) @ (np.eye(n) + 0.3 * rng.standard_normal((n, n)) / np.sqrt(n))
    return (mixed * np.exp(rng.standard_normal(n))).astype(np.float32)


def matrix(rows=24, n=N, seed=1):
    return (np.random.default_rng(seed).standard_normal((rows, n)) * 0.02).astype(np.float32)


def statistics(x):
    h = x.T @ x / len(x)
    return LinearStatistics(np.asarray(len(x)), np.diag(h).copy(), np.abs(x).max(0), lambda: h)


def scales(kind, q):
    """What a code is multiplied by, and what is subtracted then, of every value [rows, n]."""
    size, nbytes = STRUCTS[kind]
    _, unit, less = DECODERS[kind.upper()](q.codes.reshape(-1, nbytes))
    less = np.zeros_like(unit) if less is None else less
    return [np.repeat(s, size // s.shape[1], axis=1).reshape(len(q.codes), -1).astype(np.float64) for s in (unit, less)]


def levels(kind):
    layout = LAYOUTS[kind.upper()]
    return np.arange(layout.least, layout.most + 1) if layout.book is None else layout.book.astype(np.int64)


@cache
def known():
    """XᵀX of `inputs`, the order of its columns, and by how much errors of each count."""
    x = inputs()
    h = (x.T @ x / len(x)).astype(np.float32)
    order = np.argsort(-np.diag(h), kind="stable")
    damped = h[np.ix_(order, order)].astype(np.float64)
    damped += 0.05 * np.mean(np.diag(damped)) * np.eye(N)
    counts = np.empty(N)
    counts[order] = [1 / np.linalg.inv(damped[i:, i:])[0, 0] for i in range(N)]
    return h, order, counts


@pytest.mark.parametrize("kind", ["q2_k", "q3_k", "iq4_nl"])  # a minimum, negative scales, a table
def test_it_is_its_definition(kind):
    """Under scales of the weights as they were, by what their errors add to the loss."""
    w, (h, order, counts) = matrix(), known()
    q = Gptq(damping=0.05).calibrated(Structs(kind)).encode(w, statistics=SimpleNamespace(hessian=lambda: h))
    searched = Structs(kind).encode(w, importance=counts.astype(np.float32))
    unit, less = scales(kind, q)
    for found, wanted in zip((unit, less), scales(kind, searched), strict=True):
        np.testing.assert_array_equal(found, wanted)

    def rounded(j, values):
        at = order[j]
        near = np.abs(values[:, None] + less[:, at, None] - unit[:, at, None] * levels(kind)).argmin(1)
        return unit[:, at] * levels(kind)[near] - less[:, at]

    wanted = np.empty_like(w, np.float64)
    wanted[:, order] = gptq(w[:, order], h[np.ix_(order, order)], 0.05, rounded)
    np.testing.assert_allclose(Structs(kind).decode(q, "F32"), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_with_inputs_that_do_not_go_together_it_rounds_to_the_nearest(kind, act_order):
    """Under the scales of a search in which all columns count the same."""
    w = matrix()
    one = LinearStatistics(np.asarray(9), np.ones(N), np.ones(N), lambda: np.eye(N, dtype=np.float32))
    q = Gptq(damping=0, act_order=act_order).calibrated(Structs(kind)).encode(w, statistics=one)
    searched = Structs(kind).encode(w, importance=np.ones(N, np.float32))
    unit, less = scales(kind, searched)
    off = np.abs(Structs(kind).decode(q, "F32") - w.astype(np.float64))
    best = np.min([np.abs(unit * level - less - w) for level in levels(kind)], axis=0)
    np.testing.assert_allclose(off, best, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("act_order", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_it_loses_less_of_the_outputs_than_weighed_errors(kind, act_order):
    w, x = matrix(), inputs()
    methods = [c.calibrated(Structs(kind)) for c in (Imatrix((0.9,)), Gptq(act_order=act_order))]
    codes = [m.encode(w, statistics=statistics(x)) for m in methods]
    weighed, corrected = (float(np.square((w - Structs(kind).decode(q, "F32")) @ x.T).sum()) for q in codes)
    assert corrected < 0.8 * weighed


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_reads_it_and_experts_take_their_own(kind):
    w, xs = np.stack([matrix(8, 256, seed=s) for s in (1, 2)]), [inputs(256, seed=s) for s in (3, 4)]
    hs = np.stack([x.T @ x / len(x) for x in xs])
    both = LinearStatistics(np.full(2, 700), np.stack([np.diag(h) for h in hs]), np.ones((2, 256)), lambda e: hs[e])
    method = Gptq().calibrated(Structs(kind))
    assert isinstance(method, CorrectedStructs)
    assert (method.scheme, method.needs_statistics) == (Structs(kind).scheme, "hessian")
    whole = method.encode(w, statistics=both)
    part = method.encode(w[1:, 2:6], statistics=both.of((slice(1, 2),), slice(0, 256)))
    np.testing.assert_array_equal(part.codes[0], whole.codes[1, 2:6])
    values = gguf.dequantize(whole.codes, GGMLQuantizationType[kind.upper()])
    np.testing.assert_array_equal(values, method.decode(whole, "F32"))


@needs_compiler
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_the_same_with_scales_that_are_found_in_cpp(kind):
    w, x = matrix(8), inputs()
    found = [
        Gptq().calibrated(Structs(kind, quantize=Kernel("quantize", (backend,)))).encode(w, statistics=statistics(x))
        for backend in ("numpy", "native")
    ]
    np.testing.assert_array_equal(found[0].codes, found[1].codes)


@pytest.mark.parametrize("kind", KINDS)
def test_codes_are_replaced_and_nothing_else(kind):
    size, nbytes = STRUCTS[kind]
    name, layout = kind.upper(), LAYOUTS[kind.upper()]
    rng = np.random.default_rng(0)
    blocks = Structs(kind).encode(matrix(3)).codes.reshape(-1, nbytes)
    codes = rng.integers(layout.least, layout.most + 1, (len(blocks), size)).astype(np.int8)
    found = with_codes(name, blocks, codes)
    _, unit, less = DECODERS[name](blocks)
    values = (codes if layout.book is None else layout.book[codes]).reshape(*unit.shape, -1) * unit[..., None]
    wanted = (values if less is None else values - less[..., None]).reshape(-1, size)
    np.testing.assert_array_equal(decoded(name, found, size, nbytes).reshape(-1, size), wanted)
