"""The charts of a page one by one, for notebooks: what `pipeline.report.plots` gives."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pipeline.figures import Figure
from pipeline.records.run import Run
from pipeline.reporting.html.page import CLOSELY, LEAST, rendered
from pipeline.reporting.html.parts import WIDE, Chart, Folded, Part, Section, Side
from pipeline.reporting.html.sections import of_run
from pipeline.reporting.html.together import of_runs
from pipeline.reporting.html.told import labels, told

AROUND = 150  # pixels in a notebook above and below a drawing: its title, how it is read, the table of its numbers
MORE = 60  # and of what is chosen, and of what marks mean, each
ACROSS = 860  # at most: a drawing has a pixel a unit then, and something beside it


@dataclass(frozen=True)
class Plot:
    """A chart of a report.

    Attributes:
        title: what is to be seen.
        chart: how it is drawn.
    """

    title: str
    chart: Chart

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its numbers, of which pandas makes a frame; None where there is none."""
        heads = self.chart.table.columns
        return [
            {h: v.value if isinstance(v, Figure) else v for h, v in zip(heads, row, strict=True)}
            for row in self.chart.table.rows
        ]

    @property
    def html(self) -> str:
        """A page with this plot alone."""
        return rendered(self.title, [Section("plot", self.title, [self.chart])], [], 1, bare=True)

    def _repr_html_(self) -> str:
        """In a frame of its own, so that its style is not the notebook's."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" title="{escape(self.title)}" width="100%" height="{self._high}" '
            f'style="border:0; max-width:{ACROSS}px" sandbox="allow-scripts"></iframe>'
        )

    @property
    def _high(self) -> int:
        """Pixels that it takes, where there is room for the wide drawing."""
        found = re.search(r'viewBox="0 0 \d+ ([\d.]+)"', self.chart.draw(WIDE))
        drawn = float(found[1]) if found else 0.0
        return int(drawn) + AROUND + MORE * (bool(self.chart.controls) + bool(self.chart.legend))

    def __repr__(self) -> str:
        return f"plot: {self.title}: {len(self.chart.table.rows)} rows of numbers"


def plots(runs: Sequence[Run]) -> dict[str, Plot]:
    """Every chart that a page about `runs` has, by its title."""
    known = [told(run, label) for run, label in zip(runs, labels(list(runs)), strict=True)]
    most = CLOSELY[0][0]
    sections = of_run(known[0], most) if len(known) == 1 else of_runs(known, [None] * len(known), max(most, LEAST))
    return {chart.title: Plot(chart.title, chart) for s in sections for chart in _charts(s.parts)}


def _charts(parts: Sequence[Part]) -> Iterator[Chart]:
    for part in parts:
        if isinstance(part, Chart):
            yield part
        elif isinstance(part, Side | Folded):
            yield from _charts(part.parts)
