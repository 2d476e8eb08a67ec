"""Examples by number, as trainers ask for them: packed documents, and rows of numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plugins.data.corpus import Corpus
from plugins.data.packing import Packing, pack


@dataclass(frozen=True)
class Packed:
    """Documents in rows: `pipeline.training.Examples` of language."""

    corpus: Corpus
    length: int

    @cached_property
    def packing(self) -> Packing:
        return pack(self.corpus.lengths, self.length, self.corpus.answered)

    @property
    def learned(self) -> int | None:
        """Predictions that are answers; None: all tokens count alike."""
        p, counts = self.packing, self.corpus.answered
        if counts is None:
            return None
        order = np.lexsort((p.start, p.document))  # as they lie in files
        return int(counts(p.document[order], p.start[order], p.count[order]).sum())

    def __len__(self) -> int:
        return len(self.packing)

    @property
    def specs(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return language(self.length)

    def batch(self, at: np.ndarray) -> dict[str, np.ndarray]:
        p, shape = self.packing, (len(at), self.length)
        out = {name: np.zeros(shape, dtype) for name, (_, dtype) in self.specs.items()}
        out["positions"][:] = -1
        for row, number in enumerate(at):
            place = 0
            for segment, piece in enumerate(range(p.rows[number], p.rows[number + 1]), 1):
                document, count = p.document[piece], p.count[piece]
                file = self.corpus.files[self.corpus.file[document]]
                begin = self.corpus.starts[document] + p.start[piece]
                here = row, slice(place, place + count)
                tokens = file.tokens[begin : begin + count + 1]
                out["tokens"][here], out["targets"][here] = tokens[:-1], tokens[1:]
                out["weights"][here] = 1 if file.answers is None else file.answers[begin + 1 : begin + count + 1]
                out["positions"][here] = np.arange(count)
                out["segments"][here] = segment
                place += count
        return out


def language(length: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Specs of an example of language."""
    names = ("tokens", "targets", "positions", "segments")
    return {**dict.fromkeys(names, ((length,), "int32")), "weights": ((length,), "float32")}


@dataclass(frozen=True)
class Rows:
    """Numbers to numbers: `pipeline.training.Examples` of tables and images.

    Attributes:
        inputs: [rows, …], of any dtype; it may lie in a file.
        targets: [rows]: int32 classes, or float32.
        prepare: inputs as they are stored → float32 [B, …], as a model takes them.
        shape: of one of those.
        chosen: the rows that are examples; None: all.
        mirrored: each is an example twice, the second time turned around from left to right, as an image [height,
            width, channels].
    """

    inputs: np.ndarray
    targets: np.ndarray
    prepare: Callable[[np.ndarray], np.ndarray]
    shape: tuple[int, ...]
    chosen: np.ndarray | None = None
    mirrored: bool = False

    def __len__(self) -> int:
        return (len(self.targets) if self.chosen is None else len(self.chosen)) * (1 + self.mirrored)

    @property
    def specs(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        return numbers(self.shape, self.targets.dtype.name)

    def batch(self, at: np.ndarray) -> dict[str, np.ndarray]:
        places, turned = np.divmod(at, 2) if self.mirrored else (at, np.zeros(len(at), np.int64))
        rows = places if self.chosen is None else self.chosen[places]
        inputs = self.prepare(self.inputs[rows])
        if self.mirrored:
            inputs[turned == 1] = inputs[turned == 1][:, :, ::-1]
        return {"inputs": inputs, "targets": self.targets[rows], "weights": np.ones(len(rows), np.float32)}


def numbers(shape: tuple[int, ...], target: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Specs of an example of numbers."""
    return {"inputs": (shape, "float32"), "targets": ((), target), "weights": ((), "float32")}
