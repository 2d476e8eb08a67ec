"""SmoothQuant's factors: the paper's but for what all channels have in common; of several α the best."""

from typing import Any

import numpy as np
import pytest

from pipeline.calibration import LinearStatistics, Multiplied
from pipeline.errors import ConfigError
from pipeline.topology import Channels
from plugins.quant.smoothquant import SmoothQuant
from tests.cases.quantized import quant_method

INT8 = quant_method("int8")
N = 48
CHANNELS = Channels("norm", ("a", "b"), None, False, N, N, 1)


def consumers(outlier: float, *, sampled: bool = True, seed: int = 0) -> list[Multiplied]:
    """Two matrices that multiply the same, of which three channels stand out."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((64, N)).astype(np.float32)
    x[:, :3] *= outlier
    stats = LinearStatistics(
        np.asarray(64), np.square(x).mean(0), np.abs(x).max(0), None, (lambda: x) if sampled else None
    )
    found = [rng.standard_normal((rows, N)).astype(np.float32) for rows in (24, 40)]
    return [Multiplied(w[::2], INT8, stats, np.abs(w).max(0)) for w in found]


def lost(of: list[Multiplied], by: Any) -> float:
    """Of W8A8 products, each row of inputs by itself."""
    total = 0.0
    for one in of:
        x = one.statistics.sample()  # type: ignore[misc]
        w = INT8.decode(INT8.encode(one.matrix * by), "F32")
        rounded = np.concatenate([INT8.decode(INT8.encode(row[None]), "F32") for row in x / by])
        y = x @ one.matrix.T
        total += float(np.sum((rounded @ w.T - y) ** 2) / np.sum(y**2))
    return total


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.85, 1.0])
def test_factors_are_those_of_the_paper(alpha: float) -> None:
    """The largest weights of all rows of both matrices, though every other row is looked at."""
    of = consumers(30)
    wanted = of[0].statistics.absmax ** alpha / np.maximum(of[0].largest, of[1].largest) ** (1 - alpha)
    found = SmoothQuant(alpha).factors(of, CHANNELS)
    ratio = found.factors / wanted
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)
    assert found.said["alpha"] == alpha


def test_channels_of_heads_that_are_there_twice_have_the_largest_of_both() -> None:
    """In grouped-query attention two heads of inputs are one of the source."""
    x = np.arange(1, 9, dtype=np.float32)
    of = [Multiplied(np.ones((4, 8), np.float32), INT8, LinearStatistics(np.asarray(9), x, x), np.ones(8, np.float32))]
    found = SmoothQuant(1.0).factors(of, Channels("v", ("o",), None, False, 4, 8, 2))
    np.testing.assert_allclose(found.factors / found.factors[0], np.array([3, 4, 7, 8]) / 3, rtol=1e-6)


def test_large_channels_lose_less() -> None:
    of = consumers(50)
    found = SmoothQuant(0.5, INT8).factors(of, CHANNELS)
    none = np.ones(N, np.float32)
    assert found.loss < 0.2
    assert found.loss == pytest.approx(lost(of, found.factors) / lost(of, none), rel=1e-4)


def test_the_alpha_is_taken_with_which_outputs_lose_least() -> None:
    of = consumers(200)
    each = {a: SmoothQuant(a, INT8).factors(of, CHANNELS).loss for a in (0.1, 0.5, 0.9)}
    found = SmoothQuant((0.1, 0.5, 0.9), INT8).factors(of, CHANNELS)
    assert found.said["alpha"] == min(each, key=lambda a: each[a])
    assert found.loss == min(each.values())
    assert SmoothQuant("auto", INT8).factors(of, CHANNELS).loss <= found.loss


def test_none_is_taken_where_none_helps() -> None:
    """Matrices whose columns are alike, and inputs that int8 holds."""
    levels = np.random.default_rng(0).integers(-127, 128, (16, N)).astype(np.float32)
    levels[:, 0] = 127
    x = levels[:8]
    stats = LinearStatistics(np.asarray(8), np.square(x).mean(0), np.abs(x).max(0), None, lambda: x)
    found = SmoothQuant("auto", INT8).factors([Multiplied(levels, INT8, stats, np.abs(levels).max(0))], CHANNELS)
    assert found.said["alpha"] == "none"
    np.testing.assert_array_equal(found.factors, 1)


def test_channels_without_inputs_or_weights_get_finite_factors() -> None:
    of = consumers(5)
    of[0].statistics.absmax[4] = 0
    for one in of:
        one.largest[7] = 0
    s = SmoothQuant().factors(of, CHANNELS).factors
    assert np.isfinite(s).all()
    assert (s > 0).all()


def test_what_cannot_be_is_said() -> None:
    for alpha in (1.5, (0.5, -1.0), ()):
        with pytest.raises(ConfigError, match="a number from 0 to 1, some of them, or auto"):
            SmoothQuant(alpha, INT8)
    with pytest.raises(ConfigError, match="activations=int8 says to what"):
        SmoothQuant("auto")
    with pytest.raises(ConfigError, match=r"calibrate\.samples=256"):
        SmoothQuant("auto", INT8).factors(consumers(5, sampled=False), CHANNELS)
    with pytest.raises(ConfigError, match="rows=0"):
        SmoothQuant(rows=0)
