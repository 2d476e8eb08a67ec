"""Marks that drawings share: the frame with its axes, lines, text that fits, and marks that can be told apart.

Colours are classes, which page.css has for light and dark; `tests/unit/reporting/html` holds both to what people with
fewer colours see.
"""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from pipeline.reporting.html.markup import clean, el, joined, number
from pipeline.reporting.html.scales import Scale, label
from pipeline.reporting.plots import COLOURS
from pipeline.tables import shortened

LETTER = 6.4  # units that a letter of a label takes, of 12 high
TURNS = len(COLOURS)
DASHES = (None, "7 3", "2 3", "9 3 2 3")  # of lines beyond the colours there are

Points = Sequence[tuple[float, float]]


def svg(width: int, height: float, says: str, *inside: Markup) -> Markup:
    """A drawing; `says` is what those hear who do not see it."""
    return el("svg", *inside, viewBox=f"0 0 {width} {number(float(height))}", role="group", aria_label=says)


def words(x: float, y: float, text: str, class_: str = "l", anchor: str | None = None, **more: Any) -> Markup:
    return el("text", text, x=float(x), y=float(y), class_=class_, text_anchor=anchor, **more)


def fitted(text: str, room: float) -> str:
    """A name as far as there is room, without its middle."""
    return shortened(clean(text), max(3, int(room / LETTER)))


def says(text: str) -> Markup:
    """What a mark says when it is pointed at."""
    return el("title", text)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return el("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str, *inside: Markup, **more: Any) -> Markup:
    size = {"x": float(x), "y": float(y), "width": max(0.0, float(width)), "height": max(0.0, float(height))}
    return el("rect", *inside, **size, class_=class_, **more)


def path(points: Points, class_: str, *, closed: bool = False, **more: Any) -> Markup:
    """A line through points."""
    steps = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return el("path", d=steps + "Z" * closed, class_=class_, **more)


def colour(i: int) -> str:
    """The class of the i-th of several."""
    return f"c{i % TURNS}"


def dash(i: int) -> str | None:
    return DASHES[(i // TURNS) % len(DASHES)]


def marker(i: int, x: float, y: float, size: float = 5.0) -> Markup:
    """A mark whose shape says what its colour says: each kind has the next."""
    s = size
    shapes: tuple[Points, ...] = (
        [(-s, -s), (s, -s), (s, s), (-s, s)],
        [(0, -s * 1.2), (s * 1.1, s), (-s * 1.1, s)],
        [(0, -s * 1.3), (s * 1.3, 0), (0, s * 1.3), (-s * 1.3, 0)],
        [(0, s * 1.2), (s * 1.1, -s), (-s * 1.1, -s)],
        [(-s * 0.45, -s), (s * 0.45, -s), (s * 0.45, -s * 0.45), (s, -s * 0.45), (s, s * 0.45), (s * 0.45, s * 0.45),
         (s * 0.45, s), (-s * 0.45, s), (-s * 0.45, s * 0.45), (-s, s * 0.45), (-s, -s * 0.45), (-s * 0.45, -s * 0.45)],
    )  # fmt: skip
    if i % (len(shapes) + 1) == 0:
        return el("circle", cx=float(x), cy=float(y), r=size, class_=f"m {colour(i)}")
    return path([(x + a, y + b) for a, b in shapes[i % (len(shapes) + 1) - 1]], f"m {colour(i)}", closed=True)


def frame(x: Scale, y: Scale, x_label: str, y_label: str, bottom: float) -> Markup:
    """Axes with ticks, a line through each of those along y, and what they are of."""
    parts = []
    ticks = y.ticks(5)
    for value in ticks:
        at = y(value)
        parts += [line(x.start, at, x.end, at, "g"), words(x.start - 6, at + 4, label(value, ticks), "t", "end")]
    ticks = x.ticks(max(4, int((x.end - x.start) / 70)))
    last = -1e9
    for value in ticks:
        at, text = x(value), label(value, ticks)
        if at - last > LETTER * len(text) + 8:
            parts += [line(at, bottom, at, bottom + 4, "a"), words(at, bottom + 17, text, "t", "middle")]
            last = at
    parts += [line(x.start, bottom, x.end, bottom, "a")]
    parts += [words(x.end, bottom + 34, x_label, "l", "end"), words(4, 14, y_label, "l")]
    return joined(parts)


def legend(names: Sequence[str], marks: Sequence[Markup] = ()) -> Markup:
    """Which mark is whose, above a drawing, where it folds as text does."""
    swatches = marks or [line(1, 7, 21, 7, f"s {colour(i)}") for i, _ in enumerate(names)]
    items = [
        el("li", el("svg", mark, viewBox="0 0 22 14", class_="swatch", aria_hidden="true"), name)
        for name, mark in zip(names, swatches, strict=True)
    ]
    return el("ul", *items, class_="legend")
