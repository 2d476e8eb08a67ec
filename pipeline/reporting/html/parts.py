"""What a page is made of: tables, charts with the table of their numbers, texts, and sections of these."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from pipeline.figures import Figure
from pipeline.reporting.html.markup import el, exact, joined, name, said, shown

WIDE, NARROW = 800, 330  # units of a drawing; which of the two is seen, the width of the page decides
NOTHING = Markup("")
MANY, VERY_MANY = 7, 11  # columns
SHORT = 12  # rows of a table that is printed on one sheet
LONG = 24  # rows of a table that is not opened to be printed


@dataclass(frozen=True)
class Mean:
    """A cell that says more than its number. Attributes: figure: what it is sorted by; text: what is read."""

    figure: Figure
    text: str


Draw = Callable[[int], Markup]
"""What is in a drawing of that many units, with its height: `el("svg", …)`."""


@dataclass(frozen=True)
class Table:
    """Attributes:
    caption: what it is; it names the table to those who do not see it.
    columns: heads; no head is shown, where none has one.
    rows: texts and figures; None: there is no value. The first cell is the head of its row.
    note: below it.
    keys: of each row what filters know it by.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    keys: Sequence[str] = ()

    @property
    def html(self) -> Markup:
        right = [
            any(isinstance(row[i], Figure | Mean) for row in self.rows if i < len(row))
            for i in range(len(self.columns))
        ]
        sides = ["n" if side else None for side in right]
        head = NOTHING
        if any(self.columns):
            heads = joined(el("th", c, scope="col", class_=s) for c, s in zip(self.columns, sides, strict=True))
            head = el("thead", el("tr", heads))
        body = joined(self._row(i, row, sides) for i, row in enumerate(self.rows))
        whole = el(
            "table",
            el("caption", self.caption),
            head,
            el("tbody", body),
            data_sort=bool(head),
            class_=_width(self.columns),
        )
        kind = "scroll short" if len(self.rows) <= SHORT else "scroll"
        region = el("div", whole, class_=kind, role="region", aria_label=self.caption, tabindex=0)
        return joined([region, el("p", self.note, class_="note") if self.note else NOTHING])

    def _row(self, i: int, row: Sequence[Any], sides: Sequence[str | None]) -> Markup:
        cells = [_cell(value, side, first=n == 0) for n, (value, side) in enumerate(zip(row, sides, strict=False))]
        return el("tr", *cells, data_key=self.keys[i] if self.keys else None)


def _cell(value: Any, side: str | None, *, first: bool) -> Markup:
    if isinstance(value, Mean):
        return el("td", value.text, class_=side, data_v=exact(value.figure.value))
    raw = exact(value.value) if isinstance(value, Figure) else None
    inside = value if isinstance(value, Markup) else name(value) if isinstance(value, str) and value else shown(value)
    if first and not isinstance(value, Figure):
        return el("th", inside, scope="row", class_=side)
    return el("td", inside, class_=side, data_v=raw)


@dataclass(frozen=True)
class Chart:
    """Attributes:
    title: what is to be seen.
    draw: the drawing, for a width.
    table: its numbers.
    about: how it is read.
    legend: what its marks mean.
    controls: which JavaScript fills with what filters it.
    """

    title: str
    draw: Draw
    table: Table
    about: str = ""
    legend: Markup = NOTHING
    controls: Markup = NOTHING

    @property
    def html(self) -> Markup:
        drawn = joined(
            el("div", self.draw(width), class_=f"drawn {name}") for name, width in (("wide", WIDE), ("narrow", NARROW))
        )
        about = el("p", self.about, class_="about") if self.about else NOTHING
        summary = el("summary", f"Numbers of “{self.title}”")
        numbers = el("details", summary, self.table.html, class_=_numbers(self.table))
        caption = el("figcaption", el("h3", self.title), about)
        return el("figure", caption, self.controls, self.legend, drawn, numbers, class_="chart")


def _width(columns: Sequence[str]) -> str | None:
    """What printing has to know: how many columns share the width of a sheet."""
    return None if len(columns) <= MANY else "many" if len(columns) <= VERY_MANY else "many very"


def _numbers(table: Table) -> str:
    return "numbers long" if len(table.rows) > LONG else "numbers"


@dataclass(frozen=True)
class Text:
    """Somebody's words, as they are: a prompt and what came of it.

    Attributes:
        title: whose, or of when.
        parts: what each is, and it.
    """

    title: str
    parts: Sequence[tuple[str, str]]

    @property
    def html(self) -> Markup:
        spoken = [joined([el("dt", what), el("dd", text, dir="auto")]) for what, text in self.parts]
        return el("article", el("h3", self.title), el("dl", *spoken), class_="text")


@dataclass(frozen=True)
class Card:
    """One number that counts: what it is, and what to know of it."""

    name: str
    value: Any
    about: str = ""

    @property
    def html(self) -> Markup:
        raw = exact(self.value.value) if isinstance(self.value, Figure) else None
        inside: tuple[Any, ...] = (shown(self.value),)
        if isinstance(self.value, Figure):
            number, unit = said(self.value)
            inside = (number, el("span", f" {unit}", class_="unit")) if unit else (number,)
        about = el("dd", name(self.about), class_="about") if self.about else NOTHING
        return el("div", el("dt", self.name), el("dd", *inside, class_="value", data_v=raw), about, class_="card")


@dataclass(frozen=True)
class Cards:
    cards: Sequence[Card]

    @property
    def html(self) -> Markup:
        return el("dl", *(card.html for card in self.cards), class_="cards")


@dataclass(frozen=True)
class Side:
    """Charts beside each other, where there is room."""

    parts: Sequence["Part"]

    @property
    def html(self) -> Markup:
        return el("div", *(part.html for part in self.parts), class_="side")


@dataclass(frozen=True)
class Command:
    """Attributes: words: as typed."""

    words: Sequence[str]

    @property
    def html(self) -> Markup:
        return el("pre", el("code", shlex.join(self.words)), class_="command", aria_label="As typed")


@dataclass(frozen=True)
class Note:
    """Something to know. Attributes: kind: empty, or `problem`."""

    text: str
    kind: str = ""

    @property
    def html(self) -> Markup:
        return el("p", self.text, class_=f"note {self.kind}".strip(), role="note")


@dataclass(frozen=True)
class Gist:
    """What it comes to, in words."""

    text: str

    @property
    def html(self) -> Markup:
        return el("p", self.text, class_="gist")


@dataclass(frozen=True)
class Attention:
    """What needs some, in one place. Attributes: lines: one or more; note: below them."""

    lines: Sequence[str]
    note: str = ""

    @property
    def html(self) -> Markup:
        items = el("ul", *(el("li", line) for line in self.lines))
        note = el("p", self.note, class_="about") if self.note else NOTHING
        return el("div", el("h3", "Needs attention"), items, note, class_="attention", role="note")


@dataclass(frozen=True)
class Folded:
    """What is looked at on demand."""

    title: str
    parts: Sequence["Part"]
    about: str = ""
    open: bool = False
    kind: str = ""
    id: str = ""

    @property
    def html(self) -> Markup:
        long = " long" if any(isinstance(p, Table) and len(p.rows) > LONG for p in self.parts) else ""
        about = el("span", self.about, class_="about") if self.about else NOTHING
        return el(
            "details", el("summary", el("span", self.title, class_="name"), " ", about), *(p.html for p in self.parts),
            open=self.open, class_=f"folded {self.kind}{long}".strip(), id=self.id or None,
        )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """What is markup already."""

    html: Markup


Part = Table | Chart | Text | Cards | Note | Gist | Attention | Folded | Side | Command | Drawn


@dataclass(frozen=True)
class Section:
    """Attributes:
    id: where links go.
    title: its heading.
    parts: in order; a section without any is not shown.
    """

    id: str
    title: str
    parts: Sequence[Part] = field(default_factory=tuple)

    @property
    def html(self) -> Markup:
        heading = el("h2", self.title, id=f"{self.id}-title")
        return el("section", heading, *(p.html for p in self.parts), id=self.id, aria_labelledby=f"{self.id}-title")
