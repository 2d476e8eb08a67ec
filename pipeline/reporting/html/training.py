"""Curves of trainings: every number that rows of `metrics.jsonl` have, over updates, of one run or of many."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.redact import hide
from pipeline.reporting.html.drawing import colour, dash, frame, legend, line, path, says, svg
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table, Text
from pipeline.reporting.html.scales import scale
from pipeline.reporting.html.thinned import Thinned
from pipeline.reporting.html.told import Told

FILES = "metrics*.jsonl"  # one of each process
FIRST = ("loss", "accuracy")  # then others, as they come
WITHOUT = ("step", "kind", "time", "process", "member", "weight", "started")  # of a row, no curve of their own
TITLES = {"rate": "learning rate", "gradient_norm": "gradient norm", "examples_per_s": "examples a second",
          "tokens_per_s": "tokens a second", "seconds": "seconds of an update"}  # fmt: skip
HELD = "held out"
LINEAR = ("rate", "accuracy")  # never by magnitudes
MOST_SAMPLES = 24
MOST_LINES = 40

Series = dict[str, dict[str, Thinned]]
"""What was measured → name of the line → its points."""


def rows(run: Told) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows that a stage wrote while it was at work, with the process that did, where several did. A line that is torn
    or not ours is none."""
    files = sorted(run.run.folder.glob(FILES))
    for file in files:
        yield from ((_process(file) if len(files) > 1 else "", row) for row in _lines(file))


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open("rb") as lines:
            for one in lines:
                try:
                    row = json.loads(one)
                except ValueError:
                    continue
                if isinstance(row, dict) and row.get("kind") not in ("stage", "error", "tensor", "figure", "run"):
                    yield row
    except OSError:
        return


def _process(file: Path) -> str:
    return file.name.removeprefix("metrics").removesuffix(".jsonl").strip(".-_") or "0"


def series(run: Told, most: int) -> tuple[Series, list[Text]]:
    """All curves of a run, and the texts that it gave on its way."""
    found: Series = {}
    texts: list[Text] = []
    for process, row in rows(run):
        kind, step = str(row.get("kind", "")), row.get("step")
        if not isinstance(step, int | float) or isinstance(step, bool):
            continue
        if kind == "sample" and len(texts) < MOST_SAMPLES:
            parts = [("prompt", hide(str(row.get("prompt", "")))), ("text", hide(str(row.get("text", ""))))]
            texts.append(Text(f"After update {step:,}", parts))
            continue
        name = {"train": "each update", "held_out": HELD}.get(kind, kind)
        who = [name, *(f"{w} {row[w]}" for w in ("member",) if w in row), *([f"process {process}"] if process else [])]
        for key, value in row.items():
            if key in WITHOUT or not (_number(value) or _unreal(value)):
                continue
            lines = found.setdefault(key, {})
            if (label := ", ".join(who)) in lines or len(lines) < MOST_LINES:
                lines.setdefault(label, Thinned(most)).add(float(step), float(value))
    return found, texts


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreal(value: Any) -> bool:
    """Whether it is a number that JSON has none for."""
    return isinstance(value, str) and value in ("nan", "inf", "-inf")


def curves(found: Series) -> list[Chart]:
    """A chart for each that was measured more than once."""
    ordered = sorted(found, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST))
    charts = []
    for key in ordered:
        lines = {name: t for name, t in found[key].items() if len(t.points) > 1}
        if lines and not _constant(lines):
            charts.append(
                chart(
                    TITLES.get(key, key.replace("_", " ")).capitalize(),
                    "update",
                    lines,
                    log=False if key in LINEAR else None,
                )
            )
    return charts


def _constant(lines: Mapping[str, Thinned]) -> bool:
    return len({y for t in lines.values() for _, _, low, high in t.points for y in (low, high)}) < 2


def compared(runs: Sequence[Told], most: int) -> Chart | None:
    """The losses of several runs: of what is held out, or where none has that, of what was trained on."""
    for kind, title in ((HELD, "Held-out loss"), ("each update", "Training loss")):
        lines: dict[str, Thinned] = {}
        for run in runs:
            points = series(run, most)[0].get("loss", {}) if len(lines) < MOST_LINES else {}
            lines |= {_named(run.label, n): t for n, t in points.items() if n.startswith(kind) and len(t.points) > 1}
        if lines:
            rest = f" The first {MOST_LINES} lines." if len(lines) > MOST_LINES else ""
            return chart(title, "update", dict(list(lines.items())[:MOST_LINES]), rest)
    return None


def _named(label: str, name: str) -> str:
    rest = name.partition(", ")[2]
    return f"{label}, {rest}" if rest else label


def chart(title: str, x_label: str, lines: Mapping[str, Thinned], more: str = "", *, log: bool | None = None) -> Chart:
    """Lines, each with its band where points stand for several."""
    points = {name: t.points for name, t in lines.items()}
    quiet = [name for name in points if name.startswith("each update") and len(points) > 1]
    table = Table(
        title,
        ("line", x_label, "mean", "least", "largest"),
        [
            (name, Figure(x, form=",.0f"), *(Figure(v, form=".4g") for v in (mean, low, high)))
            for name, some in points.items()
            for x, mean, low, high in some
        ],
    )
    about = dict.fromkeys(f"{name}: {t.about}" if len(lines) > 1 else t.about for name, t in lines.items() if t.about)

    def draw(width: int) -> Markup:
        height = 250 if width <= NARROW else 300
        bottom = height - 40
        x = scale([p[0] for some in points.values() for p in some], 52, width - 10, log=False, pad=0.01)
        y = scale([v for some in points.values() for p in some for v in p[2:]], bottom, 26, log=log)
        parts = [frame(x, y, x_label, title.lower() + (", by magnitudes" if y.log else ""), bottom)]
        for i, (name, some) in enumerate(points.items()):
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
        return svg(width, height, f"{title} over {x_label}: {len(points)} lines", joined(parts))

    marks = [line(1, 7, 21, 7, f"s {colour(i)}{' quiet' if n in quiet else ''}") for i, n in enumerate(points)]
    key = legend(list(points), marks) if len(points) > 1 else Markup("")
    return Chart(title, draw, table, " ".join([*about, more.strip()]).strip(), key)
