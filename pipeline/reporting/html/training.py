"""Curves of trainings: every number that rows of `metrics.jsonl` have, over updates, of one run or of many."""

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from pipeline.errors import SourceError
from pipeline.figures import Figure
from pipeline.records import points
from pipeline.records.columns import Column, columns
from pipeline.redact import hide
from pipeline.reporting.html.drawing import colour, dash, frame, legend, line, path, says, svg
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table, Text
from pipeline.reporting.html.scales import scale
from pipeline.reporting.html.thinned import Thinned
from pipeline.reporting.html.told import Told

FIRST = ("loss", "accuracy")  # then others, as they come
WITHOUT = ("weight",)  # of a row, no curve of its own
TITLES = {"rate": "learning rate", "gradient_norm": "gradient norm", "examples_per_s": "examples a second",
          "tokens_per_s": "tokens a second", "seconds": "seconds of an update"}  # fmt: skip
HELD, EACH = "held out", "each update"
UPDATE, SECONDS = "update", "seconds"
MOST_DAMAGED = 5  # lines that are named
LINEAR = ("rate", "accuracy")  # never by magnitudes
MOST_SAMPLES = 24
MOST_LINES = 40

Series = dict[tuple[str, str], dict[str, Thinned]]
"""What was measured, and over what → name of the line → its points."""


def series(run: Told, most: int) -> tuple[Series, list[Text], list[str]]:
    """All curves of a run, the texts that it gave on its way, and what of its files is damaged."""
    found: Series = {}
    texts: list[Text] = []
    damaged: list[str] = []
    for file in points.files(run.run.folder):
        at = points.Position()
        try:
            for block in points.blocks(file, at):
                for row in block.of("sample")[: MOST_SAMPLES - len(texts)]:
                    parts = [(what, hide(str(row.get(what, "")))) for what in ("prompt", "text")]
                    texts.append(Text(f"After update {row.get('step', 0):,}", parts))
                for column in columns(block):
                    _add(found, column, points.process_of(file), run.run.started or 0.0, most)
        except SourceError as why:
            damaged.append(str(why))
        damaged += at.problems[:MOST_DAMAGED]
        damaged += [f"{file.name}: {at.damaged - MOST_DAMAGED:,} more lines are damaged"] * (at.damaged > MOST_DAMAGED)
    return found, texts, damaged


def _add(found: Series, column: Column, process: str, began: float, most: int) -> None:
    """The values of a metric, each over its update, or where it has none over seconds since the run began."""
    kind, key, member = column.series
    name = {"train": EACH, "held_out": HELD, points.POINT: ""}.get(kind, kind)
    who = [name, "" if member is None else f"member {member}", f"process {process}" if process else ""]
    label = ", ".join(filter(None, who))
    steps, times = (np.array(given, np.float64) for given in (column.steps, column.times))  # None: not a number
    for over, x, here in (
        (UPDATE, steps, ~np.isnan(steps)),
        (SECONDS, times - began, np.isnan(steps) & ~np.isnan(times)),
    ):
        if key in WITHOUT or not here.any():
            continue
        lines = found.setdefault((key, over), {})
        if label in lines or len(lines) < MOST_LINES:
            lines.setdefault(label, Thinned(most)).add(x[here], column.values[here])


def curves(found: Series) -> list[Chart]:
    """A chart for each that was measured more than once."""
    ordered = sorted(found, key=lambda key: FIRST.index(key[0]) if key[0] in FIRST else len(FIRST))
    charts = []
    for key, over in ordered:
        lines = {name: t for name, t in found[key, over].items() if len(t.points) > 1}
        if lines and not _constant(lines):
            title = TITLES.get(key, key.replace("_", " "))
            log = False if key in LINEAR else None
            charts.append(chart(f"{title[:1].upper()}{title[1:]}", over, lines, log=log))
    return charts


def _constant(lines: Mapping[str, Thinned]) -> bool:
    return len({y for t in lines.values() for _, _, low, high in t.points for y in (low, high)}) < 2


def compared(runs: Sequence[Told], most: int) -> Chart | None:
    """The losses of several runs: of what is held out, or where none has that, of what was trained on."""
    for kind, title in ((HELD, "Held-out loss"), (EACH, "Training loss")):
        lines: dict[str, Thinned] = {}
        for run in runs:
            found = series(run, most)[0].get(("loss", UPDATE), {}) if len(lines) < MOST_LINES else {}
            lines |= {_named(run.label, n): t for n, t in found.items() if n.startswith(kind) and len(t.points) > 1}
        if lines:
            rest = f" The first {MOST_LINES} lines." if len(lines) > MOST_LINES else ""
            return chart(title, UPDATE, dict(list(lines.items())[:MOST_LINES]), rest)
    return None


def _named(label: str, name: str) -> str:
    rest = name.partition(", ")[2]
    return f"{label}, {rest}" if rest else label


def chart(title: str, x_label: str, lines: Mapping[str, Thinned], more: str = "", *, log: bool | None = None) -> Chart:
    """Lines, each with its band where points stand for several."""
    drawn = {name: t.points for name, t in lines.items()}
    quiet = [name for name in drawn if name.startswith(EACH) and len(drawn) > 1]
    table = Table(
        title,
        ("line", x_label, "mean", "least", "largest"),
        [
            (name, Figure(x, form=",.0f"), *(Figure(v, form=".4g") for v in (mean, low, high)))
            for name, some in drawn.items()
            for x, mean, low, high in some
        ],
    )
    about = dict.fromkeys(f"{name}: {t.about}" if len(lines) > 1 else t.about for name, t in lines.items() if t.about)

    def draw(width: int) -> Markup:
        height = 250 if width <= NARROW else 300
        bottom = height - 40
        x = scale([p[0] for some in drawn.values() for p in some], 52, width - 10, log=False, pad=0.01)
        y = scale([v for some in drawn.values() for p in some for v in p[2:]], bottom, 26, log=log)
        parts = [frame(x, y, x_label, title.lower() + (", by magnitudes" if y.log else ""), bottom)]
        for i, (name, some) in enumerate(drawn.items()):
            band = [(x(p[0]), y(p[3])) for p in some] + [(x(p[0]), y(p[2])) for p in reversed(some)]
            body = [path(band, f"band {colour(i)}f", closed=True)] if any(p[2] != p[3] for p in some) else []
            thin = " quiet" if name in quiet else ""
            body.append(
                path([(x(p[0]), y(p[1])) for p in some], f"s {colour(i)}{thin}", fill="none", stroke_dasharray=dash(i))
            )
            if len(some) <= 30:
                body += [el("circle", cx=x(p[0]), cy=y(p[1]), r=3.0, class_=f"{colour(i)}f") for p in some]
            body.append(path([(x(p[0]), y(p[1])) for p in some], "hit", fill="none"))
            last = some[-1]
            parts.append(
                el(
                    "g",
                    says(f"{name}: {last[1]:.4g} at {x_label} {last[0]:,.0f}, {len(some)} points"),
                    *body,
                    class_="line",
                )
            )
        return svg(width, height, f"{title} over {x_label}: {len(drawn)} lines", joined(parts))

    marks = [line(1, 7, 21, 7, f"s {colour(i)}{' quiet' if n in quiet else ''}") for i, n in enumerate(drawn)]
    key = legend(list(drawn), marks) if len(drawn) > 1 else Markup("")
    return Chart(title, draw, table, " ".join([*about, more.strip()]).strip(), key)
