"""Tables and lines of text for people, as narrow as the screen is: the one place where what is shown is made to fit.

What a table has to say fits 80 columns. Where there is less room than it would like, headers fold, text folds between
words, names lose their middle, and then columns go, those first that their table can best do without; which they were,
the title says. Numbers stay whole, with their units, and so do paths. All of it passes through `pipeline.terminal`.
"""

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from pipeline.terminal import line, safe

WIDEST = 140  # where nobody knows how wide what is shown may be, as in a file
NAME, TEXT = 28, 24  # columns that a name or a text has at least, before others go to make room
LEAST = 8  # … and when there are no others
HEADS = (1 / 3, 1 / 2, 2 / 3, 5 / 6)  # of names that are shortened, what their beginning may keep, as keeps them apart
SHORTEST_HEAD = 4  # of what is left of the beginning of a name of which only some words are shown
WORDS_END = re.compile(r"[-=,.~]")
LONGEST_NUMBER = 28  # what is longer in a column of numbers is text

GLUE = "\ue000"  # stands for a space at which nothing is folded (of Unicode's private use)
UNITS = r"([KMGT]i)?B(/s)?|m?s|min|h|%|dB|tokens(/s)?|nats|bits?|layers?|files?|chunks?|devices?"
NUMBER = re.compile(rf"(?<=\d) (?=({UNITS})(?![\w/]))")
NUMBERS = re.compile(r"[\d×.,+%–-]*|scalar")
IDENTIFIER = re.compile(r"[\w.*:/=+,@{}\[\]×~-]+", re.ASCII)


def width(stream: Any = None) -> int | None:
    """Columns of what a stream, stdout by default, is shown on: `COLUMNS`, or the terminal's; None: nobody knows."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return int(given)
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


def unbroken(path: Any) -> str:
    """A path within a text for `wrapped`, which leaves it whole whatever is in it."""
    return str(path).replace(" ", GLUE)


def wrapped(text: str, columns: int, indent: str = "") -> list[str]:
    """`text` in lines of at most so many columns, between words, numbers with their units. A word that is longer has a
    line of its own.

    Args:
        indent: before every line but the first.
    """
    found: list[str] = []
    for part in text.split("\n"):
        lines = [""]
        for n, word in enumerate(NUMBER.sub(GLUE, part).split(" ")):
            if n and cells(lines[-1]) + 1 + cells(word) > columns and lines[-1].strip():
                lines.append(indent + word)
            else:
                lines[-1] += f" {word}" if n else word
        found += lines
    return [one.replace(GLUE, " ") for one in found]


def cells(text: str) -> int:
    """Columns that it takes in a terminal."""
    from rich.cells import cell_len

    return cell_len(text)


def shortened(name: str, columns: int, before: float = HEADS[0]) -> str:
    """A name without its middle.

    Args:
        before: which part of what stays is its beginning; its end says most.
    """
    if cells(name) <= columns:
        return name
    head = max(0, int((columns - 1) * before))
    tail = max(0, columns - 1 - head)
    return f"{name[:head]}…{name[len(name) - tail :]}"


def chopped(text: str, columns: int) -> list[str]:
    """A line in pieces of at most so many columns, wherever that is."""
    from rich.cells import chop_cells

    return chop_cells(text, columns) if cells(text) > columns else [text]


class Grid:
    """A table whose cells are text and nothing else: no markup, no emoji codes, nothing that steers.

    Attributes:
        title, columns, rows: as text; a cell may be something else that rich draws, which stays as it is.
    """

    def __init__(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Collection[int],
        drop: Collection[str],
    ):  # fmt: skip
        self.title, self.columns = line(title), [line(column) for column in columns]
        self.rows = [[c if type(c).__module__.startswith("rich.") else safe(str(c)) for c in row] for row in rows]
        self.right = {*right}
        self._drop = [*drop]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.table import Table
        from rich.text import Text

        kept, widths = self._fitted(options.max_width, console)
        gone = [self.columns[i] or "counts" for i in range(len(self.columns)) if i not in kept]
        title = f"{self.title} (without {', '.join(gone)})" if gone else self.title
        yield from (Text(part, style="italic") for part in wrapped(title, options.max_width))
        drawn = Table(show_header=any(self.columns))
        for i in kept:
            header = "\n".join(wrapped(self.columns[i], widths[i]))
            drawn.add_column(Text(header), justify="right" if i in self.right else "left", width=widths[i])
        heads = {i: _head(self._names(i), widths[i]) for i in kept}
        apart = {i: _apart(self._names(i), widths[i]) or {} for i in kept if heads[i] is None and i not in self.right}
        for row in self.rows:
            given = [(i, row[i] if i < len(row) else "") for i in kept]
            fit = [(self._fit(c, widths[i], None if i in self.right else heads[i] or HEADS[0], apart.get(i, {})), c)
                   for i, c in given]  # fmt: skip
            drawn.add_row(*(Text(text, style=_style(text)) if isinstance(c, str) else c for text, c in fit))
        yield drawn

    @staticmethod
    def _fit(cell: Any, columns: int, head: float | None, apart: Mapping[str, str]) -> str:
        """A text in lines that fit; names, where there is a `head` for them, without their middle, or as `apart` has
        them."""

        def fit(part: str) -> list[str]:
            if head is not None and IDENTIFIER.fullmatch(part):
                return [apart.get(part) or shortened(part, columns, head)]
            return [piece for one in wrapped(part, columns) for piece in chopped(one, columns)]

        return "\n".join(piece for part in str(cell).split("\n") for piece in fit(part))

    def _fitted(self, most: int, console: Any) -> tuple[list[int], dict[int, int]]:
        """The columns that there is room for, and the width of each."""
        kept = [*range(len(self.columns))]
        full = {i: self._natural(i, console) for i in kept}
        least = {i: self._least(i, full[i]) for i in kept}
        going = [self.columns.index(name) for name in self._drop if name in self.columns]

        def room() -> int:
            return most - 3 * len(kept) - 1

        while going and sum(least[i] for i in kept) > room():
            kept.remove(going.pop(0))
        tight = {i: self._least(i, full[i], LEAST) for i in kept}
        while len(kept) > 1 and sum(tight[i] for i in kept) > room():
            kept.pop()
        if sum(least[i] for i in kept) > room():
            least = tight
        return kept, _shared({i: least[i] for i in kept}, full, room(), self._rigid)

    def _rigid(self, i: int) -> bool:
        """Whether a column has numbers, or pictures, which stay as they are."""
        texts = [row[i] for row in self.rows if i < len(row)]
        if any(not isinstance(t, str) for t in texts):
            return True
        longest = max(map(cells, texts), default=0)
        return longest <= LONGEST_NUMBER and (i in self.right or all(map(NUMBERS.fullmatch, texts)))

    def _natural(self, i: int, console: Any) -> int:
        """Columns that it takes unfolded."""
        widths = [cells(self.columns[i])]
        for cell in (row[i] for row in self.rows if i < len(row)):
            if isinstance(cell, str):
                widths += map(cells, cell.split("\n"))
            else:
                widths.append(console.measure(cell).maximum)
        return max(widths)

    def _names(self, i: int) -> set[str]:
        """Those that have a line of a cell to themselves."""
        texts = [row[i] for row in self.rows if i < len(row) and isinstance(row[i], str)]
        return {part for text in texts for part in text.split("\n") if IDENTIFIER.fullmatch(part)}

    def _least(self, i: int, full: int, floor: int | None = None) -> int:
        """Columns that it cannot well do without; with a `floor`, cannot at all."""
        heading = max((cells(word) for word in NUMBER.sub(GLUE, self.columns[i]).split(" ")), default=0)
        given = [row[i] for row in self.rows if i < len(row)]
        if self._rigid(i):
            texts = [cells(part) for cell in given if isinstance(cell, str) for part in cell.split("\n")]
            return full if any(not isinstance(c, str) for c in given) else max([heading, *texts])
        names = self._names(i)
        least = min(full, max(heading, floor or (NAME if names else TEXT)))
        while least < full and _head(names, least) is None and _apart(names, least) is None:
            least += 1
        return least

    @property
    def html(self) -> str:
        """The same for a notebook, whole."""

        def cell(tag: str, i: int, value: Any) -> str:
            text = escape(value).replace("\n", "<br>") if isinstance(value, str) else ""
            side = "right" if i in self.right else "left"
            return f'<{tag} style="text-align:{side}">{text}</{tag}>'

        head = "".join(cell("th", i, c) for i, c in enumerate(self.columns)) if any(self.columns) else ""
        rows = "".join(f"<tr>{''.join(cell('td', i, c) for i, c in enumerate(row))}</tr>" for row in self.rows)
        caption = f'<caption style="text-align:left"><b>{escape(self.title)}</b></caption>'
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _head(names: set[str], columns: int) -> float | None:
    """How names are to be shortened so that no two of them look the same; None: they always do."""
    return next((h for h in HEADS if len({shortened(n, columns, h) for n in names}) == len(names)), None)


def _apart(names: set[str], columns: int) -> dict[str, str] | None:
    """Name → how it is shown where those that begin and end alike are to be kept apart: what is left of their middle is
    the words in which they part. None: that is too little room."""
    found = {name: shortened(name, columns) for name in names}
    alike: dict[str, list[str]] = {}
    for name, text in found.items():
        alike.setdefault(text, []).append(name)
    for name, places in _parting([n for some in alike.values() if len(some) > 1 for n in some]).items():
        if (words := _by_words(name, columns, places)) is None:
            return None
        found[name] = words
    return found if len({*found.values()}) == len(found) else None


def _parting(names: Sequence[str]) -> dict[str, list[int]]:
    """Name → where it parts from others, one after another."""
    found: dict[str, list[int]] = {name: [] for name in names}
    groups = [[*names]]
    while groups:
        some = groups.pop()
        first, last = min(some, default=""), max(some, default="")  # all begin as these do together
        at = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
        further: dict[str, list[str]] = {}
        for name in some:
            found[name].append(at)
            further.setdefault(name[at : at + 1], []).append(name)
        groups += [group for group in further.values() if len(group) > 1]
    return found


def _by_words(name: str, columns: int, places: Sequence[int]) -> str | None:
    """A name as its beginning and the words at `places`, and as much behind the last as there is room for."""
    words: list[tuple[int, int]] = []
    most = int(columns * HEADS[0])
    for at in [at for at in places if at >= most] or places[-1:]:
        begin, end = max((m.end() for m in WORDS_END.finditer(name, 0, at)), default=0), len(name)
        end = next((m.start() for m in WORDS_END.finditer(name, max(at, begin))), end)
        if not words or end > words[-1][1]:
            words.append((begin, end))
    head = min(most, words[0][0])
    room = columns - sum(end - begin + 1 for begin, end in words) - 1
    if room < min(head, SHORTEST_HEAD):
        return None
    head = min(head, room)
    begin, end = words[-1]
    whole = begin, min(len(name), end + room - head)
    text = name[:head] + "".join(f"…{name[slice(*word)]}" for word in [*words[:-1], whole])
    return text + "…" * (whole[1] < len(name))


def _style(text: str) -> str:
    """What is wrong or worse is marked, and red where there are colours."""
    return "red" if text.startswith("✗") else ""


def _shared(least: dict[int, int], full: dict[int, int], room: int, rigid: Any) -> dict[int, int]:
    """What room is left goes to texts, as each wants it, and then to the headers of numbers."""
    widths = dict(least)
    for some in ([i for i in widths if not rigid(i)], [i for i in widths if rigid(i)]):
        while (spare := room - sum(widths.values())) > 0 and (wanting := [i for i in some if widths[i] < full[i]]):
            for i in wanting[:spare]:
                widths[i] += min(full[i] - widths[i], max(1, spare // len(wanting)))
    over = sum(widths.values()) - room
    for i in sorted(widths, key=lambda i: -widths[i]):  # a screen that is narrower than any table
        if over > 0 and not rigid(i):
            cut = min(over, widths[i] - 1)
            widths[i], over = widths[i] - cut, over - cut
    return widths


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Collection[int] = (),
    drop: Collection[str] = (),
) -> Grid:  # fmt: skip
    """A table to show.

    Args:
        title: above it.
        columns: their names; no header is drawn when none has one.
        right: which columns are numbers, flushed right.
        drop: names of columns in the order in which they go where there is no room; others go from the right.
    """
    return Grid(title, columns, rows, right, drop)
