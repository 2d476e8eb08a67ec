"""What stages and trainers know of data: examples by number, and which of them an update takes.

There is no iterator, hence no state of one to be saved: the examples of an update are a function of (seed, update),
and what an example holds is one of its number. Whoever goes on from an update goes on with the same data, on any number
of processes, each of which asks for its own examples only.

What a batch of language holds, each [B, T]:
    tokens     int32    what the model sees
    targets    int32    what it is to predict at each place; anything where the weight is 0
    weights    float32  how much that counts; 0: not at all
    positions  int32    of each token in its document: they begin at 0 with each; -1 marks padding
    segments   int32    which document of the row a token is of, from 1; 0 marks padding. None sees another's tokens
What one of tables or images holds:
    inputs     float32  [B, …]
    targets    [B]      int32, the class; or float32, the value
    weights    float32  [B]
A loss, and a gradient, is a sum over all that an update takes, divided once by the sum of its weights: how the update
is divided into micro-batches and among devices changes nothing but the order of adding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from pipeline.digest import InputFile
from pipeline.errors import Problem
from pipeline.stage import Checkpoint, Context, Footprint, Gang, Results
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import TensorStore

ROUNDS = 6  # of the Feistel network; four make a pseudo-random permutation (Luby and Rackoff, 1988)

TRAINED = "trained"  # the origin of a checkpoint whose weights a run has trained


class Examples(Protocol):
    """What a model is trained on, by number."""

    def __len__(self) -> int:
        """How many there are: packed sequences, rows or images."""
        ...

    @property
    def specs(self) -> Mapping[str, tuple[tuple[int, ...], str]]:
        """Name of an array → shape of one example of it, and NumPy's name of its dtype."""
        ...

    def batch(self, at: np.ndarray) -> dict[str, np.ndarray]:
        """The examples of these numbers: arrays whose first dimension counts them. From any thread.

        Args:
            at: [B] integers in 0 … len - 1.
        """
        ...


@dataclass(frozen=True)
class Splits:
    """Examples to train on, and others that training never sees.

    Attributes:
        train: at least one.
        held_out: for evaluation while training; None: there are none.
        facts: what was found while they were made, as JSON holds it: how much of rows is padding, means and deviations
            that whoever uses the model has to apply.
    """

    train: Examples
    held_out: Examples | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataPlan:
    """What is known of data before anything of it is read, tokenized or packed.

    Attributes:
        examples: how many there will be to train on, about; None: nothing can be said.
        specs: see `Examples.specs`.
        held_out: how many there will be beside them, about.
        tokens: in all of them, about; 0: they are not made of tokens.
        disk_nbytes: what `open` writes, at most.
        host_nbytes: memory that opening them and making a batch takes, at most.
    """

    examples: int | None
    specs: Mapping[str, tuple[tuple[int, ...], str]]
    tokens: int = 0
    disk_nbytes: int = 0
    host_nbytes: int = 0
    held_out: int = 0

    @property
    def tokens_of_example(self) -> int:
        """How many tokens go through a model for one example; 1 where there are none."""
        shape, _ = self.specs.get("tokens", ((1,), ""))
        return prod(shape)


class Dataset(Protocol):
    """Where examples come from: a plugin node, a frozen dataclass. It imports no framework."""

    def inputs(self) -> tuple[InputFile, ...]:
        """The files that it reads, without those that are missing."""
        ...

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        """All that is wrong with it, as far as that can be told within seconds: files that are missing or empty, labels
        out of range, no number where there has to be one; each with its file and line.

        Args:
            checkpoint: what is trained on it; None: a module of somebody's own.
        """
        ...

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        """Raises PlanError: what `check` finds, where that leaves nothing to say."""
        ...

    def open(self, results: Results, tokenizer: Any | None) -> Splits:
        """The examples. What is made of a file is kept under a key of its own (what the file holds, the tokenizer, the
        options that it was read with), so that whoever needs the same of it finds it: another length of rows, another
        list of files, a run that was interrupted.

        Args:
            results: keeps it; of several processes that ask at once one makes it.
            tokenizer: a `plugins.tokenizers.tokenizer.Tokenizer`; None where there is none, which only texts need.

        Raises:
            PlanError: what only reading all of it finds, with file and line, all at once.
            StorageError: what is made of it cannot be kept.
        """
        ...


@dataclass(frozen=True)
class Teacher:
    """A checkpoint that another is to learn of: what the stage `teacher` gives. No stage takes it for what it is to
    work on."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Trained:
    """What a trainer gives.

    Attributes:
        store: the weights, plain; read once, before the next thing is trained.
        report: what was found, as JSON holds it; with what `pipeline.stage.ResultHooks` may have.
    """

    store: TensorStore
    report: Mapping[str, Any]


class Trainer(Protocol):
    """What trains: a plugin node. It imports no framework before `train` is called."""

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        ...

    def tokenizer(self, checkpoint: Checkpoint) -> Any | None:
        """The checkpoint's, for data of text; None: it has none.

        Raises:
            SourceError: it has one, and that is broken.
        """
        ...

    def inputs(self, checkpoint: Checkpoint) -> tuple[InputFile, ...]:
        """The files that `tokenizer` reads beside those of the checkpoint."""
        ...

    def plan(
        self, checkpoint: Checkpoint, data: DataPlan, teacher: Checkpoint | None
    ) -> tuple[Mapping[str, TensorSpec], Footprint]:
        """The tensors that `train` will give, and what that takes, data aside.

        Args:
            data: without `specs`, where something is wrong with the data.
            teacher: another checkpoint to learn of; None: there is none.

        Raises:
            PlanError: that cannot be; all problems at once.
        """
        ...

    def train(
        self, ctx: Context, checkpoint: Checkpoint, data: Splits, tokenizer: Any | None, seed: int,
        teacher: Checkpoint | None,
    ) -> Trained:  # fmt: skip
        """Train. What is in `ctx.unfinished` it goes on from.

        Raises:
            StageError: a loss or gradient that is not finite; what was good before is kept in `ctx.unfinished`.
            StorageError: what it would go on from cannot be kept.
        """
        ...


def order(seed: int, epoch: int, n: int, places: np.ndarray | None = None) -> np.ndarray:
    """Which example is at each place of an epoch: a permutation of 0 … n - 1, any part of which is worked out alone.

    A Feistel network on the smallest square power of two that holds n; numbers from n on are enciphered again until
    they are smaller ("cycle walking", Black and Rogaway, 2002), which keeps it a permutation.

    Args:
        seed, epoch: equal ones give equal permutations.
        n: examples.
        places: [B] in 0 … n - 1; None: all.

    Returns:
        int64 [B].
    """
    if n < 1:
        raise ValueError(f"{n} examples: at least one is needed")
    found = np.arange(n, dtype=np.uint64) if places is None else places.astype(np.uint64)
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    keys = np.random.SeedSequence([seed, epoch]).generate_state(ROUNDS, np.uint64)
    found = _enciphered(found, half, keys)
    while (beyond := found >= n).any():
        found[beyond] = _enciphered(found[beyond], half, keys)
    return found.astype(np.int64)


def _enciphered(values: np.ndarray, half: np.uint64, keys: np.ndarray) -> np.ndarray:
    """A permutation of the numbers of 2 · `half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _mixed(values: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64 (Steele, Lea and Flood, 2014): every bit depends on all bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


def indices(seed: int, step: int, batch: int, n: int) -> np.ndarray:
    """The examples of one update, int64 [batch]: a function of these four and nothing else. Epochs follow each other
    without a gap, so an update may have the end of one and the beginning of the next.

    Args:
        step: of the update, from 0.
        batch: examples of an update, all its micro-batches together.
        n: examples that there are.
    """
    places = np.arange(step * batch, (step + 1) * batch, dtype=np.int64)
    found = np.empty(batch, np.int64)
    for epoch in range(int(places[0]) // n, int(places[-1]) // n + 1):
        here = places // n == epoch
        found[here] = order(seed, epoch, n, places[here] % n)
    return found
