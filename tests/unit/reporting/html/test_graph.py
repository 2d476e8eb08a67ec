"""What was planned beside what was measured: no bar runs into its label, however far a plan was exceeded."""

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from pipeline.reporting.html import graph
from pipeline.reporting.html.drawing import LETTER


@pytest.mark.parametrize("width", [320, 720])
def test_bars_end_before_their_labels(width: int) -> None:
    rows = [
        {"what": "memory", "unit": "bytes", "planned": 1 << 20, "measured": 1023 << 20},
        {"what": "disk", "unit": "bytes", "planned": 10, "measured": 11},
    ]
    report: Any = SimpleNamespace(predicted=rows)
    chart = graph.planned(report)
    assert chart is not None
    root = ElementTree.fromstring(str(chart.draw(width)))  # noqa: S314  # it is ours
    bars = [float(bar.attrib["x"]) + float(bar.attrib["width"]) for bar in root.iter("rect")]
    labels = [text for text in root.iter("text") if "%" in (text.text or "")]
    starts = [float(text.attrib["x"]) - LETTER * len(text.text or "") for text in labels]
    assert len(bars) == len(labels) == 2
    assert all(bar < start for bar, start in zip(bars, starts, strict=True))
    assert max(bars) > 76 + 20  # and there is room for them
