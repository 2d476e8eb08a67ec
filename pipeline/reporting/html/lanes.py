"""Several things measured in several cases, one number of each: a lane for each case, in it a mark for each thing and
what its rounds came to, all on one scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.reporting.html.drawing import LETTER, colour, fitted, legend, line, marker, says, svg, words
from pipeline.reporting.html.markup import el, joined
from pipeline.reporting.html.parts import NARROW, Chart, Table
from pipeline.reporting.html.scales import finite, label, scale, unit_of

MOST = 60  # lanes that are drawn
APART = 6  # things, up to which each has a line of its own in a lane
HIGH = 500  # from which on the scale is above as well
STEP, GAP = 15.0, 12.0  # high: a line, and what a lane has beside its lines
DIRECTIONS = {"lower": "Less is better", "higher": "More is better"}


@dataclass(frozen=True)
class Mark:
    """Attributes:
    case: whose lane it is in.
    who: what was measured.
    value: what it came to.
    rounds: what each round came to; empty: there was one.
    note: what else is to be known of it, as that it is wrong.
    """

    case: str
    who: str
    value: Figure
    rounds: Sequence[float] = ()
    note: str = ""


def lanes(title: str, heads: tuple[str, str], marks: Sequence[Mark], about: str = "") -> Chart:
    """The chart.

    Args:
        heads: what cases and things are.
        marks: one at least; all in one unit.
    """
    cases, who = (list(dict.fromkeys(given)) for given in ([m.case for m in marks], [m.who for m in marks]))
    drawn = cases[:MOST]
    lines = len(who) if len(who) <= APART else 1
    first = marks[0].value
    shown, each = unit_of(first.unit, (m.value.value for m in marks))
    rounds = any(len(m.rounds) > 1 for m in marks)
    noted = any(m.note for m in marks)

    def draw(width: int) -> Markup:
        room, above = (190.0, 0.0) if width > NARROW else (0.0, 18.0)
        high = above + STEP * lines + GAP
        top = 18.0 if high * len(drawn) > HIGH else 0.0
        bottom = top + high * len(drawn) + 4
        all_values = [v / each for m in marks for v in (m.value.value, *m.rounds)]
        x = scale(all_values, room + 12, width - 16, pad=0.06)
        ticks, parts = x.ticks(6 if width > NARROW else 4), []
        for value in ticks:
            parts += [line(x(value), top + 4, x(value), bottom, "g"),
                      words(x(value), bottom + 16, label(value, ticks), "t", "middle")]  # fmt: skip
            parts += [words(x(value), 12, label(value, ticks), "t", "middle")] if top else []
        for n, case in enumerate(drawn):
            y = top + high * n + (16 if above else high / 2 + 4)
            parts.append(words(0, y, fitted(case, room - 8 if room else width), "l strong"))
        for mark in marks:
            if mark.case in drawn and finite(mark.value) is not None:
                i = who.index(mark.who)
                y = top + high * drawn.index(mark.case) + above + GAP / 2 + STEP * ((i if lines > 1 else 0) + 0.5)
                at = [x(v / each) for v in (mark.value.value, *mark.rounds) if math.isfinite(v)]
                parts.append(_mark(mark, i, at, y, title))
        axis = f"{title} [{shown}]" if shown and shown != "×" else title
        axis += ", by magnitudes" if x.log else ""
        parts.append(words(width, bottom + 34, fitted(axis, width), "l", "end"))
        return svg(width, int(bottom + 40), f"{title}: {len(marks)} marks in {len(drawn)} lanes", joined(parts))

    table = Table(
        title, (*heads, title, *(("least", "largest") if rounds else ()), *(("",) if noted else ())),
        [
            (m.case, m.who, m.value,
             *((Figure(v, m.value.unit, m.value.form) for v in (min(m.rounds), max(m.rounds))) if rounds else ()),
             *((m.note or None,) if noted else ()))
            for m in marks
        ],
        keys=[f"{m.case} {m.who}" for m in marks],
    )  # fmt: skip
    said = [f"{DIRECTIONS[first.better]}." if first.better in DIRECTIONS else "", about]
    said += ["Dots are rounds, between the least and the largest of them."] if rounds else []
    said += [f"Drawn are the first {MOST} of {len(cases)}."] if len(cases) > MOST else []
    key = legend(who, [marker(i, 11, 7, 4.5) for i, _ in enumerate(who)]) if len(who) > 1 else Markup("")
    return Chart(f"{title[:1].upper()}{title[1:]}", draw, table, " ".join(filter(None, said)), key)


def _mark(mark: Mark, i: int, at: Sequence[float], y: float, title: str) -> Markup:
    """A mark at the first of `at`, and its rounds at the others."""
    said = f"{mark.case}, {mark.who}: {title} {mark.value}" + (f", {mark.note}" if mark.note else "")
    body = [says(said), el("circle", cx=at[0], cy=y, r=9.0, class_="ring")]
    if len(at) > 2:
        body.append(line(min(at[1:]), y, max(at[1:]), y, f"s {colour(i)}"))
        body += [el("circle", cx=a, cy=y, r=2.0, class_=f"{colour(i)}f") for a in at[1:]]
    body.append(marker(i, at[0], y, 4.5))
    if mark.note:
        body.append(words(max(at) + LETTER, y + 4, "✗", "worse"))
    key = f"{mark.case} {mark.who}"
    return el("g", *body, class_="point", tabindex=0, role="img", aria_label=said, data_key=key)
