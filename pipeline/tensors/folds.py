"""What changes several tensors so that a model stays what it was: that it did, and how it is done again."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.tensors.store import TensorStore


@dataclass(frozen=True)
class Fold:
    """A change of some tensors, linear in each, after which only together they are what they were.

    Attributes:
        names: of these tensors.
        called: what did it, for people.
        before: the tensors as they were.
        again: does the same to another store of such tensors; must pickle.
    """

    names: frozenset[str]
    called: str
    before: TensorStore = field(repr=False)
    again: Callable[[TensorStore], TensorStore] = field(repr=False, compare=False)
