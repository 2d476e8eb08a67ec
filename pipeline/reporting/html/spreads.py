"""Histograms that a run recorded (`flow=histogram`): values before and after, their error, codes and scales."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.reporting.html.drawing import frame, legend, line, path, rect, says, svg
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Part, Table
from pipeline.reporting.html.scales import label, scale
from pipeline.reporting.manifest import Report

WORST = ", what each bin has by magnitudes"


def charts(report: Report) -> list[Part]:
    """Those of every tensor whose bins are in the manifest."""
    found: list[Part] = []
    for result in report.results.values():
        tensors = result.get("tensors") if isinstance(result, Mapping) else None
        for name, row in tensors.items() if isinstance(tensors, Mapping) else ():
            if not isinstance(row, Mapping) or not isinstance(bins := row.get("bins"), Mapping):
                continue
            edges = _edges(bins["edges"], len(bins["before"]))
            given = {"before": bins["before"], "after": bins["after"]}
            found.append(_steps(f"Values of {name}", "value", edges, given, f"As {row['encoding']}{WORST}."))
            near = _edges(bins["near"], len(bins["error"]))
            found.append(_steps(f"Error of {name}", "after − before", near, {"error": bins["error"]}, ""))
            if bins.get("codes"):
                found.append(_bars(f"Codes of {name}", "code", bins["codes"], "How often each code stands there."))
            if bins.get("scales"):
                found.append(
                    _bars(f"Scales of {name}", "log2 of the scale", bins["scales"], "Rounded down to powers of two.")
                )
    return found


def _edges(ends: Sequence[float], bins: int) -> list[float]:
    low, high = ends
    return [low + (high - low) * i / bins for i in range(bins + 1)]


def _steps(title: str, x_label: str, edges: Sequence[float], given: Mapping[str, Sequence[int]], about: str) -> Chart:
    rows = [
        (f"{label(a)} … {label(b)}", *(Figure(int(counts[i]), form=",d") for counts in given.values()))
        for i, (a, b) in enumerate(pairwise(edges))
        if any(counts[i] for counts in given.values())
    ]
    table = Table(title, (x_label, *given), rows, "Bins with nothing in them are left out.")

    def draw(width: int) -> Markup:
        height = 200 if width <= NARROW else 220
        bottom = height - 40
        x = scale(edges, 58, width - 10, log=False, pad=0.0)
        y = scale([0.8, *(v for counts in given.values() for v in counts if v)], bottom, 24, log=True, pad=0.02)
        parts = [frame(x, y, x_label, "values", bottom)]
        for name, counts in given.items():
            points = []
            for n, count in enumerate(counts):
                at = y(count) if count else bottom
                points += [(x(edges[n]), at), (x(edges[n + 1]), at)]
            shape = [(x(edges[0]), bottom), *points, (x(edges[-1]), bottom)]
            kind = "band grey" if name == "before" else f"band c{1 if name == 'error' else 0}f"
            parts.append(path(shape, kind, closed=True))
            if name != "before":
                parts.append(path(points, f"s c{1 if name == 'error' else 0}", fill="none"))
        for n, row in enumerate(zip(*given.values(), strict=True)):
            if any(row):
                said = ", ".join(f"{c:,} {name}" for c, name in zip(row, given, strict=True))
                tip = says(f"{label(edges[n])} … {label(edges[n + 1])}: {said}")
                parts.append(el("g", tip, rect(x(edges[n]), 24, x(edges[n + 1]) - x(edges[n]), bottom - 24, "hit")))
        return svg(width, height, f"{title}: {sum(map(sum, given.values())):,} in {len(rows)} bins", joined(parts))

    marks = [rect(1, 2, 20, 10, "band grey"), line(1, 7, 21, 7, "s c0")]
    return Chart(title, draw, table, about, legend(list(given), marks) if len(given) > 1 else Markup(""))


def _bars(title: str, x_label: str, counts: Mapping[str, int], about: str) -> Chart:
    """A bar for each whole number."""
    found = {int(k): int(v) for k, v in counts.items()}
    low, high = min(found), max(found)
    table = Table(title, (x_label, "times"), [(str(k), Figure(v, form=",d")) for k, v in sorted(found.items())])

    def draw(width: int) -> Markup:
        height = 170 if width <= NARROW else 190
        bottom = height - 40
        x = scale([low - 0.5, high + 0.5], 58, width - 10, log=False, pad=0.0)
        y = scale([0, max(found.values())], bottom, 24, log=False, pad=0.0)
        each = x(low + 1) - x(low)
        bars = [
            el("g", says(f"{x_label} {k}: {v:,} times"), rect(x(k - 0.42), y(v), each * 0.84, bottom - y(v), "b c0f"))
            for k, v in sorted(found.items())
        ]  # fmt: skip
        return svg(
            width, height, f"{title}: {len(found)} different", frame(x, y, x_label, "times", bottom), joined(bars)
        )

    return Chart(title, draw, table, about)
