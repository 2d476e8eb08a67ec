"""Properties of the MXFP4 codec that hold for all weights, with blocks drawn as bit patterns."""

import ml_dtypes
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from tests.cases.mx import RULES, TIES, mx_method
from tests.oracles import mx

BF16 = ml_dtypes.bfloat16
FINITE = st.integers(0, 0xFFFF).filter(lambda b: b & 0x7FFF < 0x7F80)
# Neighbouring exponents make blocks in which more than one value survives.
NEAR = st.builds(
    lambda e, m, s: (100 + e) << 7 | m | s << 15, st.integers(0, 6), st.integers(0, 127), st.integers(0, 1)
)
BLOCKS = hnp.arrays(np.uint16, st.tuples(st.integers(1, 3), st.sampled_from([32, 64])), elements=FINITE | NEAR).map(
    lambda a: a.view(BF16)
)
METHODS = st.builds(
    mx_method,
    scale_rule=st.sampled_from(RULES),
    ties=st.sampled_from(TIES),
    zero=st.sampled_from(["signed", "positive"]),
    overflow=st.just("inf"),  # what is refused at the end of the range has a test of its own
)


def same(a, b):
    return np.array_equal(a.codes, b.codes) and np.array_equal(a.scales, b.scales)


@given(BLOCKS, METHODS)
def test_the_oracle_agrees(x, method):
    codes, scales = mx.encode(x, method.scale_rule, method.ties, method.zero)
    q = method.encode(x)
    assert np.array_equal(q.scales, scales)
    assert np.array_equal(q.codes, mx.pack(codes))
    assert np.array_equal(method.decode(q, "F32"), mx.decode(codes, scales).astype(np.float32))


@given(BLOCKS, METHODS)
def test_float32_of_the_same_values_codes_alike(x, method):
    assert same(method.encode(x), method.encode(x.astype(np.float32)))


@given(BLOCKS, METHODS)
def test_no_error_is_larger_than_half_the_widest_gap_unless_saturated(x, method):
    q = method.encode(x)
    scale = np.ldexp(1.0, np.repeat(q.scales, 32, axis=-1).astype(int) - 127)
    values = x.astype(np.float64)
    error = np.abs(method.decode(q, "F32").astype(np.float64) - values)
    bound = np.where(np.abs(values) > 6 * scale, np.abs(values) - 6 * scale, scale)
    assert (error <= bound).all()
    if method.scale_rule in ("ceil", "rceil"):
        assert (np.abs(values) <= 6 * scale).all()


@given(BLOCKS, st.sampled_from(TIES))
def test_decoding_and_coding_again_changes_nothing(x, ties):
    """Under `floor` a block's largest code is at least 4, so that its scale is found again."""
    method = mx_method(ties=ties)
    q = method.encode(x)
    assert same(method.encode(method.decode(q)), q)


@given(BLOCKS, METHODS)
def test_negating_flips_signs_only(x, method):
    q, n = method.encode(x), method.encode(-x)
    assert np.array_equal(q.scales, n.scales)
    assert np.array_equal(q.codes & 0x77, n.codes & 0x77)
    if method.zero == "signed":
        assert np.array_equal(q.codes ^ 0x88, n.codes)


@given(BLOCKS, METHODS)
def test_blocks_do_not_see_each_other(x, method):
    q = method.encode(x)
    for r in range(x.shape[0]):
        for b in range(x.shape[1] // 32):
            alone = method.encode(x[r, 32 * b : 32 * b + 32])
            assert np.array_equal(alone.codes, q.codes[r, 16 * b : 16 * b + 16])
            assert alone.scales[0] == q.scales[r, b]


@given(
    hnp.arrays(np.uint8, (3, 32), elements=st.integers(0, 255)),
    hnp.arrays(np.uint8, (3, 2), elements=st.integers(0, 255)),
)
def test_decoding_any_bytes(codes, scales):
    q = QTensor(codes, scales, MXFP4)
    unpacked = np.stack([codes & 15, codes >> 4], axis=-1).reshape(3, 64)
    with np.errstate(over="ignore"):
        want = mx.decode(unpacked, scales).astype(np.float32)
    for dtype in ("BF16", "F32"):
        got = mx_method().decode(q, dtype).astype(np.float32)
        assert np.array_equal(got, want, equal_nan=True)
        assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any()


@settings(max_examples=50)
@given(BLOCKS, METHODS)
def test_measuring_changes_no_byte(x, method):
    q, stats = method.encode(x, measure=True)
    assert same(q, method.encode(x))
    assert (stats.count, stats.sq_error >= 0) == (x.size, True)
    if np.array_equal(method.decode(q, "F32"), x.astype(np.float32)):
        assert (stats.sq_error, stats.max_abs) == (0, 0)
