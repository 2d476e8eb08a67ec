"""Documents into rows of equal length, so that little of a row is padding and none of a document is lost.

A document of n tokens is n - 1 predictions: each of its tokens but the last is seen, each but the first is a target.
One with more than a row has places is cut into pieces that fill a row, which share no prediction, and a rest.
Rests and short documents are packed whole by best fit, longest first: each goes where it leaves the least room (the
bound of 11/9 of the best number of rows is Johnson's, 1973). What is of one length is placed at once, so that the work
grows with the number of different lengths and not of documents (as in Krell and others, arXiv 2107.02027).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Counts = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(document, start, count), int64 [pieces] each, as `Packing` has them → int64 [pieces]."""
Content = tuple[tuple[int, int], ...]
"""What some equal rows hold: (length of a piece, how many of them), longest first."""


@dataclass(frozen=True)
class Packing:
    """Which piece lies where. Pieces are in the order of rows, and of places within a row.

    Attributes:
        document: int64 [pieces]: which document each is of.
        start: int64 [pieces]: the first of its tokens that it has.
        count: int64 [pieces]: predictions.
        rows: int64 [rows + 1]: the first piece of each row; then the number of pieces.
        length: places of a row.
    """

    document: np.ndarray
    start: np.ndarray
    count: np.ndarray
    rows: np.ndarray
    length: int

    def __len__(self) -> int:
        return len(self.rows) - 1

    @property
    def used(self) -> int:
        """Places that hold a token."""
        return int(self.count.sum())

    @property
    def waste(self) -> float:
        """The share of places that are padding."""
        return 1 - self.used / max(1, len(self) * self.length)


def pack(lengths: np.ndarray, length: int, counts: Counts | None = None) -> Packing:
    """Pack documents of `lengths` tokens into rows of `length` predictions. One of a single token predicts nothing and
    is left out. Rows are in the order of the first document that each holds.

    Args:
        lengths: [documents], at least 0.
        length: at least 1.
        counts: of pieces, how many of their predictions are learned; those of which none is are left out, as a row of
            such is an example that nothing is learned from. None: all are.
    """
    predictions = np.maximum(np.asarray(lengths, np.int64) - 1, 0)
    whole, rest = np.divmod(predictions, length)
    pieces = whole + (rest > 0)
    document = np.repeat(np.arange(len(predictions)), pieces)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    start = nth * length
    count = np.minimum(predictions[document] - start, length)
    if counts is not None:
        kept = counts(document, start, count) > 0
        document, start, count = document[kept], start[kept], count[kept]
    rows = [np.flatnonzero(count == length)[:, None], *_rows(count, length)]
    widths = np.concatenate([np.full(len(r), r.shape[1]) for r in rows])
    flat = np.concatenate([r.ravel() for r in rows])
    begins = np.cumsum(widths) - widths
    firsts = np.concatenate([r.min(axis=1, initial=len(document)) for r in rows])
    ranked = np.argsort(firsts, kind="stable")
    widths = widths[ranked]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])
    # Where each piece of the rows in their new order is in the old one.
    old = np.repeat(begins[ranked] - ends[:-1], widths) + np.arange(len(flat))
    at = flat[old]
    return Packing(document[at], start[at], count[at], ends.astype(np.int64), length)


def _rows(count: np.ndarray, length: int) -> Iterator[np.ndarray]:
    """Rows of pieces shorter than a row, by number: arrays [rows, pieces of each]."""
    by_length = np.argsort(count, kind="stable")
    many = np.bincount(count, minlength=length + 1)
    begin = np.cumsum(many) - many  # of each length in `by_length`, and then of those not placed yet
    for rows, content in _contents(many, length):
        columns = []
        for size, times in content:
            taken = by_length[begin[size] : begin[size] + rows * times]
            columns.append(taken.reshape(rows, times))
            begin[size] += rows * times
        yield np.concatenate(columns, axis=1)


def _contents(many: np.ndarray, length: int) -> list[tuple[int, Content]]:
    """What rows hold, by best fit: how many rows, and what each of them holds.

    Args:
        many: [length + 1]: pieces of each length; those that fill a row are not looked at.
    """
    room: dict[int, list[tuple[int, Content]]] = {}  # places left → rows that have so many

    def put(rows: int, left: int, content: Content) -> None:
        if rows:
            room.setdefault(left, []).append((rows, content))

    for size in range(length - 1, 0, -1):
        todo = int(many[size])
        for left in sorted(r for r in room if r >= size):
            # Those that a piece went into have the least room then, so it takes as many as fit before another does.
            fit = left // size
            for rows, content in room.pop(left):
                full = min(rows, todo // fit)
                put(full, left - fit * size, (*content, (size, fit)))
                todo -= full * fit
                part = min(todo, fit - 1) if full < rows else 0
                put(min(part, 1), left - part * size, (*content, (size, part)))
                put(rows - full - min(part, 1), left, content)
                todo -= part
        fit = length // size
        put(todo // fit, length - fit * size, ((size, fit),))
        if part := todo % fit:
            put(1, length - part * size, ((size, part),))
    return [group for left in sorted(room) for group in room[left]]
