"""AWQ beside AWQ as its paper has it: where both look at the same, both find the same; and ours loses no more."""

import numpy as np
import pytest

from pipeline.calibration import Multiplied
from pipeline.topology import Channels
from plugins.bench.restated import awq
from plugins.quant.awq import Awq
from plugins.quant.blockwise import Blockwise
from plugins.quant.by_outputs import Clip
from tests.unit.quant.test_calibrated import inputs, statistics

UINT4 = Blockwise(element="uint4", block_elems=128, scale="f16", zero_point="int")
CHANNELS = Channels("norm", ("w",), None, False, 256, 256, 1)
CLIP = Clip((0.75, 0.8, 0.84, 0.88, 0.91, 0.94, 0.97, 1.03, 1.06))  # as conf/calibrate/awq.yaml has it


def matrices(seed=0):
    """Two with columns of different sizes, and in every group of a row the same largest value: so the mean of |w| over
    the largest of its group, which the paper has, is the mean of |w|, which ours has."""
    rng, found = np.random.default_rng(seed), []
    size = np.exp(rng.standard_normal(256))
    for _ in range(2):
        w = np.clip(0.1 * rng.standard_normal((48, 256)) * size, -0.9, 0.9)
        for start in (0, 128):
            w[np.arange(48), start + rng.integers(0, 128, 48)] = rng.choice([-1, 1], 48)
        found.append(w.astype(np.float32))
    return found


def lost(made, parts, hessian):
    return sum(float(np.sum((m - w) * ((m - w) @ hessian))) for m, w in zip(made, parts, strict=True))


@pytest.mark.parametrize("seed", [0, 2, 3, 4])
def test_factors_are_those_of_the_paper_and_clipping_loses_less(seed):
    parts, stats = matrices(seed), statistics(inputs(256, seed=seed))
    hessian = stats.hessian().astype(np.float64)
    found = Awq(rows=None).factors([Multiplied(w, UINT4, stats, np.abs(w).max(0)) for w in parts], CHANNELS)
    s = found.factors
    published = awq([w.astype(np.float64) for w in parts], hessian)
    ours = [UINT4.decode(UINT4.encode(w * s), "F32") / s for w in parts]
    assert found.said["by_weights"]
    # Factors are centred otherwise, and so scales in fp16 are rounded otherwise.
    alike = [np.isclose(a, b, rtol=1e-2, atol=1e-3).mean() for a, b in zip(ours, published, strict=True)]
    assert min(alike) > 0.998
    assert lost(ours, parts, hessian) == pytest.approx(lost(published, parts, hessian), rel=3e-3)
    clip, scaled = CLIP.calibrated(UINT4), statistics(inputs(256, seed=seed) / s)
    clipped = [UINT4.decode(clip.encode(w * s, statistics=scaled), "F32") / s for w in parts]
    assert lost(clipped, parts, hessian) < 0.95 * lost(published, parts, hessian)
