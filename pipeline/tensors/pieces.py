"""Pieces: boxes of tensors, which chunks are made of."""

from dataclasses import dataclass

from pipeline.tensors.store import Index


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of one tensor."""

    tensor: str
    index: Index

    def __str__(self) -> str:
        box = ",".join(f"{s.start}:{s.stop}" for s in self.index)
        return f"{self.tensor}[{box}]" if box else self.tensor
