"""Texts to tokens as a stream: the same ids as if each document were encoded whole, without ever holding one whole.

A long document is cut where that changes no token, which is seen by trying: around a place to cut, the tokens of what
stands before it have to be those that both sides together begin with. What comes after a cut is encoded with some of
the text before it, whose tokens are then taken away, so that what a tokenizer does at the beginning of a text is not
done at a cut.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from pipeline.errors import SourceError, did_you_mean
from plugins.data.documents import Part
from plugins.tokenizers.tokenizer import Tokenizer

PART_CHARS = 1 << 15
BATCH_CHARS = 1 << 18  # encoded at once, on all cores
WINDOW_CHARS = 64  # of text on each side of a cut; longer than tokens and what a pattern looks at
TRIES = 32  # places of each kind, nearest first
# Where a cut may change nothing, best first: before the first letter of a line, before a word, anywhere.
PLACES = tuple(map(re.compile, (r"(?<=\n)(?=[^\W\d_])", r"(?<=\w)(?= \w)", r"(?<=\S)(?=\S)")))
# What stands between documents, best first; a chat model's `eos` ends a turn, and no text.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")


class Encoded(NamedTuple):
    """Ids of some of a document; the rest as in `Part`."""

    line: int
    ids: list[int]
    last: bool
    at: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What stands around each document.

    Attributes:
        before: ids.
        after: ids.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, begin: bool, end: str | None) -> "Frame":
        """
        Args:
            begin: what the tokenizer itself puts before a text, BOS as a rule.
            end: a token by its spelling; `auto`: what the vocabulary has for it; None: nothing.

        Raises:
            SourceError: the vocabulary has no such token.
        """
        bare, around = tokenizer.encode("a"), tokenizer.encode("a", special=True)
        before = tuple(around[: len(around) - len(bare)]) if around[-len(bare) :] == bare else ()
        before = before or (() if tokenizer.bos is None or tokenizer.bos not in around[:1] else (tokenizer.bos,))
        if end is None:
            return cls(before if begin else (), ())
        wanted = ENDS if end == "auto" else (end,)
        known = [i for i in map(tokenizer.id_of, wanted) if i is not None]
        if not known and end != "auto":
            raise SourceError(f"data.end={end!r}: the tokenizer has no such token{did_you_mean(end, ENDS)}")
        return cls(before if begin else (), tuple(known[:1] or tokenizer.eos[-1:]))


class _Piece(NamedTuple):
    context: str  # text before it
    part: Part


def encoded(parts: Iterable[Part], tokenizer: Tokenizer) -> Iterator[Encoded]:
    """The tokens of documents, without what frames them.

    Raises:
        SourceError: a text that cannot be cut anywhere without changing its tokens.
    """
    pieces = _pieces(parts, tokenizer)
    while batch := list(_batch(pieces)):
        contexts = [p.context for p in batch]
        heads = iter(tokenizer.encode_batch([c for c in contexts if c], plain=True))
        found = tokenizer.encode_batch([p.context + p.part.text for p in batch], plain=True)
        for piece, ids in zip(batch, found, strict=True):
            head = next(heads) if piece.context else []
            if ids[: len(head)] != head:
                raise SourceError(f"the text of line {piece.part.line:,}: its tokens change where it is cut")
            yield Encoded(piece.part.line, ids[len(head) :], piece.part.last, piece.part.at)


def _batch(pieces: Iterator[_Piece]) -> Iterator[_Piece]:
    chars = 0
    for piece in pieces:
        yield piece
        chars += len(piece.part.text)
        if chars >= BATCH_CHARS:
            return


def _pieces(parts: Iterable[Part], tokenizer: Tokenizer) -> Iterator[_Piece]:
    """Documents cut into pieces that can be encoded one by one."""
    held, context = "", ""
    for part in parts:
        held += part.text
        while len(held) > 2 * PART_CHARS:
            cut = _cut(held, tokenizer, part.line)
            yield _Piece(context, part._replace(text=held[:cut], last=False))
            context = held[max(0, cut - WINDOW_CHARS) : cut]
            held = held[cut:]
        if part.last:
            yield _Piece(context, part._replace(text=held))
            held, context = "", ""


def _cut(text: str, tokenizer: Tokenizer, line: int) -> int:
    """Where `text` may be cut, near `PART_CHARS`."""
    for place in PLACES:
        for match in islice(place.finditer(text, PART_CHARS, len(text) - WINDOW_CHARS), TRIES):
            at = match.start()
            left = text[at - WINDOW_CHARS : at]
            head, both = tokenizer.encode_batch([left, left + text[at : at + WINDOW_CHARS]], plain=True)
            if both[: len(head)] == head:
                return at
    raise SourceError(f"the text of line {line:,}: no place was found where it can be cut without changing its tokens")
