"""Tokens of many documents in files that are mapped into memory, one set of files for each file of text.

tokens.bin     the documents one after another, uint16 or uint32
answers.bin    of chats: 1 where a token is the assistant's, uint8
ends.bin       int64 [documents]: where each ends
digests.bin    uint64 [documents]: xxh3 of its tokens, by which a document is held out
"""

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from pipeline.digest import InputFile, identity
from pipeline.errors import SourceError, StorageError
from pipeline.files import spoken
from pipeline.running import text_stream
from pipeline.stage import Results
from pipeline.units import show_seconds
from plugins.data.faults import Faults
from plugins.data.packing import Counts
from plugins.data.sources import content

VERSION = 1  # of these files, and of how they are made
TOKENS, ANSWERS, ENDS, DIGESTS = "tokens.bin", "answers.bin", "ends.bin", "digests.bin"
SAID_S = 0.5  # between two lines that say how far it is


class Some(NamedTuple):
    """Tokens of a document, all of it or the next of it.

    Attributes:
        ids: with what frames the document.
        answers: of chats, for each whether it is the assistant's; empty: all count.
        last: it ends the document.
        at: bytes of the file that have been read.
    """

    ids: Sequence[int]
    answers: Sequence[int]
    last: bool
    at: int


@dataclass(frozen=True)
class Tokenized:
    """The tokens of one file.

    Attributes:
        ends: int64 [documents].
        digests: uint64 [documents].
        answers: uint8 [tokens], or None: all tokens count.
    """

    tokens: np.ndarray
    ends: np.ndarray
    digests: np.ndarray
    answers: np.ndarray | None

    @property
    def starts(self) -> np.ndarray:
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])


def tokenized(
    results: Results,
    file: InputFile,
    options: Mapping[str, Any],
    vocab_size: int,
    documents: Callable[[Faults], Iterable[Some]],
) -> Tokenized:
    """The tokens of a file: those that are there, or made now.

    Args:
        options: all that they depend on beside the file.
        documents: reads them; what is wrong goes to the faults that it is given.

    Raises:
        PlanError: something is wrong with the file; all of it.
        StorageError: there is no room.
    """
    dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
    parts = {"data": "tokens", "version": VERSION, "file": content(file), "options": dict(options)}

    def make(folder: Path) -> dict[str, Any]:
        faults = Faults()
        try:
            with _Writer(folder, dtype, f"tokenizing {file.path.name}", file.nbytes) as writer:
                for some in documents(faults):
                    writer.add(some)
        except SourceError as why:
            faults.add(file.path, str(why).removeprefix(f"{spoken(file.path)}: "))
        except OSError as why:
            raise StorageError(
                f"{folder}: what is made of {spoken(file.path)} cannot be kept: {why.strerror}"
            ) from None
        faults.check()
        return writer.facts

    facts, folder = results.once(identity(parts), make, files=(TOKENS, ENDS, DIGESTS), parts=parts)
    return Tokenized(
        _mapped(folder / TOKENS, dtype), _mapped(folder / ENDS, np.int64), _mapped(folder / DIGESTS, np.uint64),
        _mapped(folder / ANSWERS, np.uint8) if facts["answers"] else None,
    )  # fmt: skip


def _mapped(path: Path, dtype: Any) -> np.ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)


class _Writer:
    def __init__(self, folder: Path, dtype: Any, what: str, nbytes: int):
        self._dtype, self._what, self._nbytes = dtype, what, nbytes
        self._folder, self._open = folder, ExitStack()
        self._tokens, self._answers = (self._open.enter_context((folder / n).open("wb")) for n in (TOKENS, ANSWERS))
        self._ends, self._digests = array("q"), array("Q")
        self._count, self._answered = 0, False
        self._hash = xxhash.xxh3_64()
        self._start = self._said = time.monotonic()

    def add(self, some: Some) -> None:
        raw = np.asarray(some.ids, self._dtype).tobytes()
        self._tokens.write(raw)
        self._hash.update(raw)
        if len(some.answers):
            self._answered = True
            self._answers.write(np.asarray(some.answers, np.uint8).tobytes())
        self._count += len(some.ids)
        if some.last:
            self._ends.append(self._count)
            self._digests.append(self._hash.intdigest())
            self._hash.reset()
        self._say(some.at)

    def _say(self, at: int) -> None:
        if (now := time.monotonic()) - self._said < SAID_S:
            return
        self._said, took = now, now - self._start
        left = took * (self._nbytes - at) / max(1, at)
        rate = f"{self._count / took:,.0f} tokens/s"
        text_stream.live(f"{self._what}: {at / self._nbytes:.0%}, {rate}, {show_seconds(left)} left")

    @property
    def facts(self) -> dict[str, Any]:
        return {"tokens": self._count, "documents": len(self._ends), "answers": self._answered}

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()
        for name, values in ((ENDS, self._ends), (DIGESTS, self._digests)):
            (self._folder / name).write_bytes(values.tobytes())


@dataclass(frozen=True)
class Corpus:
    """Documents of several files.

    Attributes:
        files: of each file its tokens.
        file: int64 [documents]: the file of each document.
        starts: int64 [documents]: where it begins in the tokens of that file.
        lengths: int64 [documents]: tokens.
    """

    files: tuple[Tokenized, ...]
    file: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, files: Sequence[Tokenized], keep: Callable[[np.ndarray], np.ndarray]) -> "Corpus":
        """Args: keep: of the digests of documents, whether each is taken."""
        taken = [np.flatnonzero(keep(f.digests)) for f in files]
        starts = [f.starts[t] for f, t in zip(files, taken, strict=True)]
        lengths = [f.ends[t] - s for f, t, s in zip(files, taken, starts, strict=True)]
        numbers = [np.full(len(t), i, np.int64) for i, t in enumerate(taken)]
        none = [np.empty(0, np.int64)]
        return cls(tuple(files), *(np.concatenate(none + one) for one in (numbers, starts, lengths)))

    @property
    def answered(self) -> Counts | None:
        """Of pieces of documents, how many of their predictions are answers; None: all tokens count alike."""
        if any(f.answers is None for f in self.files):
            return None

        def counts(document: np.ndarray, start: np.ndarray, count: np.ndarray) -> np.ndarray:
            found = np.zeros(len(document), np.int64)
            begin = self.starts[document] + start + 1  # of what is predicted
            for number, file in enumerate(self.files):
                own = np.flatnonzero(self.file[document] == number)
                # Each piece begins after the one before it has ended: sums between its ends are every other one.
                bounds = np.stack([begin[own], begin[own] + count[own]], axis=1).reshape(-1)
                if len(own):
                    assert file.answers is not None
                    bounds = bounds[:-1] if bounds[-1] == len(file.answers) else bounds
                    found[own] = np.add.reduceat(file.answers, bounds, dtype=np.int64)[::2]
            return found

        return counts

    def with_all(self, files: Sequence[Tokenized]) -> "Corpus":
        """These documents, and all of other files."""
        more = Corpus.of(files, lambda digests: np.ones(len(digests), bool))
        return Corpus(
            (*self.files, *more.files),
            np.concatenate([self.file, more.file + len(self.files)]),
            np.concatenate([self.starts, more.starts]),
            np.concatenate([self.lengths, more.lengths]),
        )
