"""Points of two metrics, with a line through those that no other beats: what is paid for what is had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.records.run import key_of
from pipeline.reporting.compare.front import dominators
from pipeline.reporting.html.drawing import LETTER, fitted, frame, legend, marker, path, says, svg, words
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.scales import finite, scale, unit_of

Box = tuple[float, float, float, float]
PAID = ("bits_a_weight", "size")  # the first that differs is what others are over
GAINED = ("perplexity", "kl", "top_1", "held_out_loss", "held_out_accuracy", "sqnr", "decode")
FEWEST = 2


@dataclass(frozen=True)
class Point:
    """Attributes:
    name: of the run.
    kind: points of one kind have one mark.
    x, y: the two metrics.
    """

    name: str
    kind: str
    x: Figure
    y: Figure


def charts(names: Sequence[str], kinds: Sequence[str], metrics: Sequence[Mapping[str, Figure]]) -> list[Chart]:
    """A chart for each pair of metrics of which both differ, and of which it is known what is better."""
    keyed = [{key_of(n): (n, f) for n, f in one.items()} for one in metrics]
    found = []
    for paid in PAID:
        if len({one[paid][1].value for one in keyed if paid in one}) < FEWEST:
            continue
        for gained in GAINED:
            points = [
                Point(name, kind, one[paid][1], one[gained][1])
                for name, kind, one in zip(names, kinds, keyed, strict=True)
                if paid in one and gained in one and finite(one[paid][1]) and finite(one[gained][1])
            ]
            if len({p.y.value for p in points}) >= FEWEST:
                heads = next((one[paid][0], one[gained][0]) for one in keyed if paid in one and gained in one)
                found.append(chart(heads, points))
        break
    return found


def front(points: Sequence[Point]) -> list[int]:
    """Numbers of those than which no other is at least as good in both, and better in one; by x."""
    signs = [1 if p.x.better != "higher" else -1 for p in points], [1 if p.y.better != "higher" else -1 for p in points]
    at = [(sx * p.x.value, sy * p.y.value) for p, sx, sy in zip(points, *signs, strict=True)]
    beaten = dominators(at)
    return sorted((i for i, by in enumerate(beaten) if not by), key=lambda i: points[i].x.value)


def chart(heads: tuple[str, str], points: Sequence[Point], on: Sequence[int] | None = None) -> Chart:
    """Two metrics of each.

    Args:
        heads: names of the metrics.
        on: numbers of those on a front over more metrics than these two, to be ringed; None: the front is of these two,
            and a line goes through it.
    """
    best = front(points) if on is None else list(on)
    kinds = list(dict.fromkeys(p.kind for p in points))
    axes = [unit_of(f[0].unit, (v.value for v in f)) for f in ([p.x for p in points], [p.y for p in points])]
    units = [
        f"{head}{f' [{unit}]' if unit not in ('', '×') else ''}" for head, (unit, _) in zip(heads, axes, strict=True)
    ]
    values = [(p.x.value / axes[0][1], p.y.value / axes[1][1]) for p in points]
    table = Table(
        f"{heads[1]} over {heads[0]}",
        ("run", "as", *heads, "front"),
        [(p.name, p.kind, p.x, p.y, "no other beats it" if i in best else None) for i, p in enumerate(points)],
        keys=[p.name for p in points],
    )

    def draw(width: int) -> Markup:
        height = 290 if width <= NARROW else 340
        bottom = height - 40
        x = scale([a for a, _ in values], 60, width - 14, pad=0.09)
        y = scale([b for _, b in values], bottom, 30, pad=0.12)
        titles = [t + (", by magnitudes" if s.log else "") for t, s in zip(units, (x, y), strict=True)]
        parts = [frame(x, y, titles[0], titles[1], bottom)]
        places = [(x(a), y(b)) for a, b in values]
        if on is None:
            parts.append(path([places[i] for i in best], "front", fill="none"))
        taken = [(a - 8, b - 8, a + 8, b + 8) for a, b in places]
        for i in best:
            if (put := free_place(points[i].name, places[i], taken, width, bottom)) is not None:
                left, top, text = put
                parts.append(words(left, top, text, "t halo"))
        for i, (p, place) in enumerate(zip(points, places, strict=True)):
            said = f"{p.name}: {heads[0]} {p.x}, {heads[1]} {p.y}"
            mark = marker(kinds.index(p.kind), *place)
            ringed = "ring ringed" if on is not None and i in best else "ring"
            ring = el("circle", cx=place[0], cy=place[1], r=11.0, class_=ringed)
            parts.append(
                el(
                    "g",
                    says(said),
                    ring,
                    mark,
                    class_="point",
                    tabindex=0,
                    role="img",
                    aria_label=said,
                    data_key=p.name,
                )
            )
        return svg(width, height, f"{heads[1]} over {heads[0]} of {len(points)} runs", joined(parts))

    better = {"lower": "less", "higher": "more", "": "unknown which"}
    directions = ", ".join(
        f"{h}: {better[f.better]} is better" for h, f in zip(heads, (points[0].x, points[0].y), strict=True)
    )
    how = "The line goes through those that no other beats in both." if on is None else "Ringed: on the front over all."
    about = f"{directions}. {how}"
    key = legend(kinds, [marker(i, 11, 7, 4.5) for i, _ in enumerate(kinds)]) if len(kinds) > 1 else Markup("")
    return Chart(f"{heads[1][:1].upper()}{heads[1][1:]} over {heads[0]}", draw, table, about, key)


def free_place(
    name: str, place: tuple[float, float], taken: list[Box], width: float, bottom: float
) -> tuple[float, float, str] | None:
    """Where a label covers nothing, and its text; it counts as taken then."""
    text = fitted(name, 190)
    long = LETTER * len(text)
    for dx, dy in ((10, -8), (10, 16), (-10 - long, -8), (-10 - long, 16), (-long / 2, -14), (-long / 2, 24)):
        box = (place[0] + dx, place[1] + dy - 11, place[0] + dx + long, place[1] + dy + 3)
        inside = box[0] >= 56 and box[2] <= width and box[1] >= 18 and box[3] <= bottom
        if inside and all(box[2] < t[0] or t[2] < box[0] or box[3] < t[1] or t[3] < box[1] for t in taken):
            taken.append(box)
            return box[0], place[1] + dy, text
    return None
