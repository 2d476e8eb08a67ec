"""A model at work, over its context, its batch, its layers, or the prompt that it reads."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.contender import Contender, Loaded
from pipeline.errors import ConfigError, StageError
from plugins.scales import sizes, synthetic

LABELS = {"context": "tokens", "prompt": "tokens", "batch": "sequences", "layers": "layers"}
SHARD_NBYTES = 1 << 30
PROCESS_NBYTES = 400 << 20  # of one that has loaded JAX and compiled a model


@dataclass(frozen=True)
class Model:
    """See `pipeline.growth.Growing`. It finds `token`, seconds between one token of all sequences and the next, or over
    the prompt `prompt`, seconds until it is read.

    Attributes:
        over: what a size is.
        sizes: of that.
        expected: exponents, at most.
        engine: that runs it; it reads `hf`.
        layers, hidden, inner, heads, vocab: of the model, a Llama with weights at random.
        context: tokens that stand before those that are timed.
        batch: sequences at once.
        new: tokens that are timed.
        repeats: of each in one process, after one that warms up; the median counts.
    """

    over: Literal["context", "batch", "layers", "prompt"]
    sizes: tuple[int, ...]
    expected: Mapping[str, float]
    engine: Contender
    layers: int
    hidden: int
    inner: int
    heads: int
    vocab: int
    context: int
    batch: int
    new: int
    repeats: int

    def __post_init__(self) -> None:
        sizes.ascending(self.sizes, self.sizes)
        for name in ("layers", "hidden", "inner", "heads", "vocab", "context", "batch", "new", "repeats"):
            if (given := getattr(self, name)) < 1:
                raise ConfigError(f"{name}={given}: 1 or more is allowed")
        if self.hidden % (2 * self.heads):
            raise ConfigError(f"heads={self.heads}: hidden={self.hidden} is no even number of values for each")
        form = self.engine.form("none", self._model(1).config())
        if form.why_not or form.own or form.export not in ("hf", "auto"):
            reads = f"it reads {form.own or form.export}, and what is written here is hf"
            raise ConfigError(f"engine: {form.why_not or reads}")

    @property
    def label(self) -> str:
        return LABELS[self.over]

    @property
    def points(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def units(self) -> Mapping[str, str]:
        return {"prompt" if self.over == "prompt" else "token": "s"}

    def show(self, size: int) -> str:
        return f"{size:,}"

    def disk_nbytes(self, size: int) -> int:
        return self._model(size).nbytes + (1 << 20)

    def host_nbytes(self, size: int) -> int:
        batch = size if self.over == "batch" else self.batch
        slots = (size if self.over in ("context", "prompt") else self.context) + self.new
        cache = 4 * 2 * batch * slots * self.hidden * self._model(size).layers
        logits = 4 * batch * (slots if self.over == "prompt" else 1) * self.vocab
        return PROCESS_NBYTES + 3 * self._model(size).nbytes + 3 * cache + 2 * logits

    def prepare(self, size: int, folder: Path) -> None:
        synthetic.write(self._model(size), folder / "source", SHARD_NBYTES, values=True)

    def measure(self, size: int, folder: Path, threads: int) -> Mapping[str, float]:
        batch = size if self.over == "batch" else self.batch
        context = size if self.over == "context" else self.context
        loaded = self.engine.load(folder / "source", threads)
        drawn = np.random.default_rng(0)
        if self.over == "prompt":
            times = [_read(loaded, drawn.integers(self.vocab, size=(1, size)).tolist()) for _ in self._times]
            return {"prompt": statistics.median(times[1:])}
        prompts = drawn.integers(self.vocab, size=(batch, context)).tolist()
        return {"token": statistics.median([_written(loaded, prompts, self.new) for _ in self._times][1:])}

    @property
    def _times(self) -> range:
        return range(self.repeats + 1)

    def _model(self, size: int) -> synthetic.Llama:
        layers = size if self.over == "layers" else self.layers
        return synthetic.Llama(layers, self.hidden, self.inner, self.heads, self.vocab)


def _read(loaded: Loaded, prompts: Any) -> float:
    """Seconds until a prompt is read."""
    start = time.perf_counter()
    loaded.prefill(prompts)
    return time.perf_counter() - start


def _written(loaded: Loaded, prompts: Any, new: int) -> float:
    """Seconds a token, of `new` after the first."""
    times: list[float] = []
    loaded.decode(prompts, new + 1, lambda: times.append(time.perf_counter()))
    if len(times) != new + 1:
        raise StageError(f"{new + 1} tokens were asked for, and it says that it made {len(times)}")
    return (times[-1] - times[0]) / new
