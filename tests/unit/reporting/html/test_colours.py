"""Colours of a page are told apart in the dark too, and its text can be read: WCAG 2.1, 1.4.3 and 1.4.11."""

import re
from importlib import resources
from itertools import combinations

import numpy as np
import pytest

from pipeline.reporting.plots import COLOURS
from tests.unit.reporting.test_plots import APART, SEEN, lab

CSS = resources.files("pipeline.reporting.html").joinpath("page.css").read_text(encoding="utf-8")
PAIRS = {name: (light, dark) for name, light, dark in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", CSS)}
TEXT = [(a, b) for a in ("ink", "soft", "accent", "warn") for b in ("paper", "panel")] + [
    ("ink", "mark"),
    ("paper", "ink"),
]
ON = {
    name: pair
    for name, *pair in re.findall(
        r"svg \.on((?:\.h\d)?)(?:, svg \.on\.h6)? \{ fill: light-dark\((#\w{6}), (#\w{6})\)", CSS
    )
}


def luminance(colour: str) -> float:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return float(np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(theme: int) -> None:
    for text, ground in TEXT:
        assert contrast(PAIRS[text][theme], PAIRS[ground][theme]) >= 4.5, (text, ground)
    for step in ("h0", "h1", "h2", "h3", "h4", "h5", "h6", "exact"):
        rule = f".{step}" if step == "h4" else ".h5" if step in ("h5", "h6") else ""
        assert contrast(ON[rule][theme], PAIRS[step][theme]) >= 4.5, step


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_heat_goes_one_way(theme: int) -> None:
    steps = [luminance(PAIRS[f"h{n}"][theme]) for n in range(7)]
    assert steps == sorted(steps, reverse=theme == 0)


@pytest.mark.parametrize("seen", SEEN)
def test_lines_in_the_dark_are_apart(seen: str) -> None:
    dark = [PAIRS[f"c{n}"][1] for n in range(10)]
    for a, b in combinations(dark, 2):
        assert np.linalg.norm(lab(a, seen) - lab(b, seen)) > APART, (a, b)
    assert all(contrast(c, PAIRS["paper"][1]) >= 3 for c in dark)


def test_lines_in_the_light_are_those_of_pictures() -> None:
    assert tuple(PAIRS[f"c{n}"][0] for n in range(10)) == COLOURS
