"""k-quants as we write them: bytes that the gguf package reads as meant, with no more error than ggml's quantizer."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from pipeline.errors import ValueRangeError
from plugins.formats.gguf.decode import decode
from plugins.kernels.codecs.ggml_bytes import ENCODERS, blocks_of
from plugins.kernels.codecs.superblocks import LAYOUTS, SUPER, TILE, encode

MANY = TILE // SUPER

KINDS = sorted(kind for kind in ENCODERS if LAYOUTS[kind].size == SUPER)


def weights(shape, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32)


def encode_rows(kind, x, importance=None):
    return blocks_of(kind, encode(kind, x, importance)).reshape(*x.shape[:-1], -1)


def test_every_layout_has_bytes():
    assert set(ENCODERS) == set(LAYOUTS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_package_reads_what_was_meant(kind):
    """Codes, scales and minima of every size, one by one, from the definition: factor · scale · code - second · min."""
    x = weights((5, 2 * SUPER)) * np.linspace(0.01, 3, 2 * SUPER, dtype=np.float32)
    b, layout = encode(kind, x), LAYOUTS[kind]
    groups = b.codes.reshape(len(b.codes), -1, layout.group).astype(np.float64)
    meant = groups * (b.factor.astype(np.float64)[:, None] * b.scales)[..., None]
    if layout.minima:
        meant -= (b.second.astype(np.float64)[:, None] * b.minima)[..., None]
    assert np.ptp(b.codes) > (layout.most - layout.least) * 0.9  # and none is out of the range of its bits
    assert b.codes.min() >= layout.least
    assert b.codes.max() <= layout.most
    theirs = gguf.dequantize(encode_rows(kind, x), GGMLQuantizationType[kind])
    assert np.abs(theirs - meant.reshape(x.shape)).max() < 1e-6 * np.abs(x).max()
    assert np.array_equal(decode(kind, encode_rows(kind, x)).view(np.uint32), theirs.view(np.uint32))


# What ggml_quantize_chunk of llama.cpp (ggml 0.25.3), told of no importance, leaves of weights((64, 2048)): its squares
# over theirs.
GGML = {
    "Q2_K": 0.088201, "Q3_K": 0.0227762, "Q4_K": 0.00511967, "Q5_K": 0.00131408, "Q6_K": 0.000315797,
    "Q5_0": 0.00183361, "Q5_1": 0.00144219, "IQ4_NL": 0.00580837,
}  # fmt: skip


@pytest.mark.parametrize("kind", ENCODERS)
def test_errors_are_no_larger_than_ggmls(kind):
    x = weights((64, 2048))
    off = decode(kind, encode_rows(kind, x)) - x
    assert np.sum(off * off) <= GGML[kind] * np.sum(x * x)


@pytest.mark.parametrize("kind", KINDS)
def test_importance_moves_errors_to_where_they_matter_less(kind):
    x = weights((64, SUPER))
    importance = np.where(np.arange(SUPER) % 4 == 0, 100, 1).astype(np.float32)
    plain, told = (decode(kind, encode_rows(kind, x, i)) - x for i in (None, importance))
    assert np.sum(importance * told * told) < 0.95 * np.sum(importance * plain * plain)


@pytest.mark.parametrize("kind", KINDS)
def test_super_blocks_are_on_their_own(kind):
    """Whatever lies beside them, and whatever tile they are in."""
    x = weights((MANY + 3, SUPER))
    whole = encode_rows(kind, x)
    assert np.array_equal(whole[MANY - 1 :], encode_rows(kind, x[MANY - 1 :]))
    assert np.array_equal(whole.reshape(-1), encode_rows(kind, x.reshape(1, -1))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_edges(kind):
    assert encode(kind, np.zeros((0, SUPER), np.float32)).codes.shape == (0, SUPER)
    assert not decode(kind, encode_rows(kind, np.zeros((2, SUPER), np.float32))).any()
    x = weights((2, SUPER))
    x[1, 7] = np.nan
    with pytest.raises(ValueRangeError, match=f"flat index {SUPER + 7}: nan"):
        encode_rows(kind, x)
    with pytest.raises(ValueRangeError, match=f"flat index {SUPER}.*past fp16"):
        encode_rows(kind, np.stack([x[0], np.full(SUPER, 1e9, np.float32) * np.sign(x[0])]))
    with pytest.raises(ValueError, match="do not divide rows of 300"):
        encode_rows(kind, np.zeros((1, 300), np.float32))
