"""Curves: every number that rows of `metrics.jsonl` have, over updates, of one run or of many; and what a run took of
the machine meanwhile, over seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from pipeline.errors import SourceError
from pipeline.figures import Figure
from pipeline.records import points
from pipeline.records.columns import Column, columns
from pipeline.records.system import KIND as SYSTEM
from pipeline.records.system import TYPES
from pipeline.redact import hide
from pipeline.reporting.html.drawing import colour, dash, frame, legend, line, path, says, svg
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table, Text
from pipeline.reporting.html.scales import scale, unit_of
from pipeline.reporting.html.thinned import Thinned
from pipeline.reporting.html.told import Told

FIRST = ("loss", "accuracy")  # then others, as they come
WITHOUT = ("weight",)  # of a row, no curve of its own
TITLES = {"rate": "learning rate", "gradient_norm": "gradient norm", "examples_per_s": "examples a second",
          "tokens_per_s": "tokens a second", "seconds": "seconds of an update"}  # fmt: skip
TAKEN = {"rss": "memory", "cpu": "processor, 100 % a core", "disk_read": "read from disk", "disk_written":
         "written to disk", "disk_free": "free on the disk", "network_received": "received by the whole machine",
         "network_sent": "sent by the whole machine"}  # fmt: skip
ALL = "all processes"
HELD, EACH = "held out", "each update"
UPDATE, SECONDS = "update", "seconds"
MOST_DAMAGED = 5  # lines that are named
LINEAR = ("rate", "accuracy")  # never by magnitudes
MOST_SAMPLES = 24
MOST_LINES = 40

Series = dict[tuple[str, str], dict[str, Thinned]]
"""What was measured, and over what → name of the line → its points."""


@dataclass
class Read:
    """What the files of metrics of a run have.

    Attributes:
        curves: over updates, and over seconds of the run what has none.
        machine: what it took, over seconds.
        texts: that it gave on its way.
        damaged: what of the files is.
        began: since when seconds count, since the epoch: the last try, or the first value of one before it.
    """

    curves: Series = field(default_factory=dict)
    machine: Series = field(default_factory=dict)
    texts: list[Text] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    began: float = 0.0


def series(run: Told, most: int) -> Read:
    """
    Args:
        most: points of a line.
    """
    found = Read(began=run.run.started or 0.0)
    texts, damaged = found.texts, found.damaged
    for file in points.files(run.run.folder):
        at = points.Position()
        try:
            for block in points.blocks(file, at):
                for row in block.of("sample")[: MOST_SAMPLES - len(texts)]:
                    parts = [(what, hide(str(row.get(what, "")))) for what in ("prompt", "text")]
                    texts.append(Text(f"After update {row.get('step', 0):,}", parts))
                for column in columns(block):
                    _add(found, column, points.process_of(file), most)
        except SourceError as why:
            damaged.append(str(why))
        damaged += at.problems[:MOST_DAMAGED]
        damaged += [f"{file.name}: {at.damaged - MOST_DAMAGED:,} more lines are damaged"] * (at.damaged > MOST_DAMAGED)
    return found


def _add(into: Read, column: Column, process: str, most: int) -> None:
    """The values of a metric, each over its update, or where it has none over seconds since the run began."""
    kind, key, member = column.series
    name = {"train": EACH, "held_out": HELD, points.POINT: ""}.get(kind, kind)
    who = [name, "" if member is None else f"member {member}", f"process {process}" if process else ""]
    label, found = ", ".join(filter(None, who)), into.curves
    if kind == SYSTEM:
        label, found = ALL if member is None else f"member {member}", into.machine
        if not found and column.times[0] is not None:
            into.began = min(into.began, column.times[0])
    steps, times = (np.array(given, np.float64) for given in (column.steps, column.times))  # None: not a number
    for over, x, here in (
        (UPDATE, steps, ~np.isnan(steps)),
        (SECONDS, times - into.began, np.isnan(steps) & ~np.isnan(times)),
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


def taken(found: Series) -> list[Chart]:
    """A chart for each number of the machine that changed, in its unit, as `Read.machine` has them."""
    charts = []
    for key, over in found:
        lines = {name: t for name, t in found[key, over].items() if len(t.points) > 1}
        if lines and not _constant(lines):
            title, kind = TAKEN.get(key, key.replace("_", " ")), TYPES[SYSTEM].get(key)
            unit = kind.unit if kind else ""
            charts.append(chart(f"{title[:1].upper()}{title[1:]}", over, lines, log=False, unit=unit))
    return charts


def _constant(lines: Mapping[str, Thinned]) -> bool:
    return len({y for t in lines.values() for _, _, low, high in t.points for y in (low, high)}) < 2


def compared(runs: Sequence[Told], most: int) -> Chart | None:
    """The losses of several runs: of what is held out, or where none has that, of what was trained on."""
    for kind, title in ((HELD, "Held-out loss"), (EACH, "Training loss")):
        lines: dict[str, Thinned] = {}
        for run in runs:
            found = series(run, most).curves.get(("loss", UPDATE), {}) if len(lines) < MOST_LINES else {}
            lines |= {_named(run.label, n): t for n, t in found.items() if n.startswith(kind) and len(t.points) > 1}
        if lines:
            rest = f" The first {MOST_LINES} lines." if len(lines) > MOST_LINES else ""
            return chart(title, UPDATE, dict(list(lines.items())[:MOST_LINES]), rest)
    return None


def _named(label: str, name: str) -> str:
    rest = name.partition(", ")[2]
    return f"{label}, {rest}" if rest else label


def chart(
    title: str, x_label: str, lines: Mapping[str, Thinned], more: str = "", *, log: bool | None = None, unit: str = ""
) -> Chart:
    """Lines, each with its band where points stand for several.

    Args:
        unit: of what is measured; an axis of bytes is of the largest unit that fits.
    """
    drawn = {name: t.points for name, t in lines.items()}
    shown, each = unit_of(unit, (v for some in drawn.values() for p in some for v in p[2:]))
    axis = f"{title.lower()} [{shown}]" if shown and shown not in title else title.lower()
    quiet = [name for name in drawn if name.startswith(EACH) and len(drawn) > 1]
    seconds = ",.1f" if x_label == SECONDS else ",.0f"
    heads = ("mean", "least", "largest") if any(t.stride > 1 for t in lines.values()) else ("value",)
    rows = [
        (name, Figure(p[0], form=seconds), *(Figure(v, unit, ".4g") for v in p[1 : 1 + len(heads)]))
        for name, some in drawn.items()
        for p in some
    ]
    table = Table(title, ("line", x_label, *heads), rows)
    about = dict.fromkeys(f"{name}: {t.about}" if len(lines) > 1 else t.about for name, t in lines.items() if t.about)

    def draw(width: int) -> Markup:
        height = 250 if width <= NARROW else 300
        bottom = height - 40
        x = scale([p[0] for some in drawn.values() for p in some], 52, width - 10, log=False, pad=0.01)
        y = scale([v / each for some in drawn.values() for p in some for v in p[2:]], bottom, 26, log=log)
        parts = [frame(x, y, x_label, axis + (", by magnitudes" if y.log else ""), bottom)]
        for i, (name, some) in enumerate(drawn.items()):
            band = [(x(p[0]), y(p[3] / each)) for p in some] + [(x(p[0]), y(p[2] / each)) for p in reversed(some)]
            through = [(x(p[0]), y(p[1] / each)) for p in some]
            body = [path(band, f"band {colour(i)}f", closed=True)] if any(p[2] != p[3] for p in some) else []
            thin = " quiet" if name in quiet else ""
            body.append(path(through, f"s {colour(i)}{thin}", fill="none", stroke_dasharray=dash(i)))
            if len(some) <= 30:
                body += [el("circle", cx=a, cy=b, r=3.0, class_=f"{colour(i)}f") for a, b in through]
            body.append(path(through, "hit", fill="none"))
            last = some[-1]
            parts.append(
                el(
                    "g",
                    says(f"{name}: {Figure(last[1], unit, '.4g')} at {x_label} {last[0]:,.0f}, {len(some)} points"),
                    *body,
                    class_="line",
                )
            )
        return svg(width, height, f"{title} over {x_label}: {len(drawn)} lines", joined(parts))

    marks = [line(1, 7, 21, 7, f"s {colour(i)}{' quiet' if n in quiet else ''}") for i, n in enumerate(drawn)]
    key = legend(list(drawn), marks) if len(drawn) > 1 else Markup("")
    return Chart(title, draw, table, " ".join([*about, more.strip()]).strip(), key)
