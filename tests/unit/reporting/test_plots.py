"""Colours and markers of pictures are told apart, by people who see fewer colours too."""

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest

from pipeline.reporting.plots import COLOURS, INK, MARKERS, Point, tradeoff

# What is seen without one of the three kinds of cones, in linear RGB: Machado, Oliveira and Fernandes 2009, table 1, at
# severity 1.
SEEN = {
    "as most see": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
WHITE = (0.95047, 1.0, 1.08883)
APART = 14.0  # in CIELAB, where 2.3 is just seen


def lab(colour: str, seen: str) -> np.ndarray:
    """CIE 1976 L*a*b* of an sRGB colour, D65."""
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    xyz = np.array(XYZ) @ np.clip(np.array(SEEN[seen]) @ linear, 0, 1) / np.array(WHITE)
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("seen", SEEN)
def test_colours_are_apart(seen: str) -> None:
    assert len(COLOURS) == 10
    for a, b in combinations((*COLOURS, INK), 2):
        assert np.linalg.norm(lab(a, seen) - lab(b, seen)) > APART, (a, b)


def test_kinds_differ_in_colour_and_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten no two have one colour, neighbours no marker either, and no two of seventy have both."""
    from matplotlib.axes import Axes

    drawn: list[tuple[str, str]] = []
    whole = Axes.errorbar

    def noted(axes: Axes, *args: object, **style: object) -> object:
        drawn.append((str(style["color"]), str(style["marker"])))
        return whole(axes, *args, **style)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "errorbar", noted)
    points = [Point(f"p{n}", 2 + n / 4, [20 - n / 5], f"kind {n}") for n in range(20)]
    tradeoff(tmp_path / "x.png", "", "bits", "perplexity", [*points, Point("none", 16, [9.0], "none")], "none")
    assert drawn[-1] == (INK, "D")
    assert len({*drawn}) == 21
    assert len({colour for colour, _ in drawn[:10]}) == 10
    assert all(a[1] != b[1] for a, b in pairwise(drawn))
    assert len({(COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)]) for n in range(70)}) == 70


def test_the_legend_covers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    points = [Point("int4", 4, [30.0], "int4"), Point("none", 16, [31.0], "none")]  # with its line at the top
    tradeoff(tmp_path / "x.png", "", "bits", "perplexity", points, ["none"])
    [figure] = drawn
    figure.draw_without_rendering()
    [legend] = figure.legends
    assert not legend.get_window_extent().overlaps(figure.axes[0].get_window_extent())
