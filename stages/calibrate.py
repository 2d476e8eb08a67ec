"""Calibrate: what a model's matrices are multiplied by, for methods that look at it when they quantize."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import meter, texts
from pipeline.calibration import LinearStatistics
from pipeline.engine import Engine, Windows, gang_of, observer, scoring
from pipeline.errors import ConfigError, StageError, some
from pipeline.files import clone
from pipeline.running import text_stream
from pipeline.stage import NEUTRAL, Checkpoint, Context, Gang, Prediction

CHARS, MARGIN = 8, 64  # of a text for each token that is wanted, first; tokens behind, which a cut may have changed
LEAST = 32  # tokens of an expert; with fewer its statistics are those of all experts of its layer, by their tokens


@dataclass(frozen=True)
class Folder:
    """Statistics on disk, as `pipeline.engine.EngineHooks.observe` writes them: a file a block, and Hessians beside it.

    Attributes:
        place: the folder; None: a plan's, in which nothing can be read.
        files: tensor → file that has its statistics.
        hessians, samples: whether these are there, too.
    """

    place: Path | None
    files: Mapping[str, str]
    hessians: bool = False
    samples: bool = False

    def __contains__(self, name: object) -> bool:
        return name in self.files

    def few(self) -> Iterator[str]:
        """The experts that saw fewer than `LEAST` tokens, for people."""
        for name, file in self.files.items():
            assert self.place is not None
            with np.load(self.place / file) as kept:
                tokens = kept[f"{name}/tokens"]
            yield from (f"{name}[{e}] ({tokens[e]})" for e in (np.flatnonzero(tokens < LEAST) if tokens.ndim else ()))

    def of(self, name: str) -> LinearStatistics | None:
        """See `pipeline.calibration.Statistics`."""
        if self.place is None or name not in self.files:
            return None
        with np.load(self.place / self.files[name]) as kept:
            tokens, mean_square, absmax = (kept[f"{name}/{what}"] for what in ("tokens", "mean_square", "absmax"))
        if tokens.ndim and (few := tokens < LEAST).any():
            weights = np.maximum(tokens, 0 if tokens.any() else 1)
            mean_square[few] = np.average(mean_square, axis=0, weights=weights)
            absmax[few] = absmax.max(axis=0)
        hessian = partial(self._hessian, name) if self.hessians else None
        sample = partial(self._sample, name) if self.samples else None
        return LinearStatistics(tokens, mean_square, absmax, hessian, sample)

    def _sample(self, name: str, *expert: int) -> Any:
        """Inputs of a matrix, fp32 [rows, in]; of an expert that saw too little, as many of those that saw enough."""
        assert self.place is not None
        with np.load(self.place / self.files[name]) as kept:
            tokens, found = kept[f"{name}/tokens"], kept[f"{name}/sample"]
        if not tokens.ndim or tokens[expert] >= LEAST:
            return found[expert]
        enough = found[tokens >= LEAST] if (tokens >= LEAST).any() else found
        rows = enough.reshape(-1, enough.shape[-1])
        return rows[np.linspace(0, len(rows) - 1, found.shape[-2]).astype(int)]

    def _hessian(self, name: str, *expert: int) -> Any:
        """XᵀX / tokens of a matrix, fp32; of an expert that saw too little, of all experts together."""
        assert self.place is not None
        with np.load(self.place / self.files[name]) as kept:
            tokens, file, part = kept[f"{name}/tokens"], str(kept[f"{name}/hessian"]), kept[f"{name}/part"]
        if tokens.ndim and tokens[expert] < LEAST:
            weights = tokens / tokens.sum() if tokens.any() else np.full(len(tokens), 1 / len(tokens))
            mean: Any = np.float64(0)
            for e, weight in enumerate(weights):  # one at a time
                mean = mean + weight * _matrix(self.place / file, e)
            return mean.astype(np.float32)
        return _matrix(self.place / file, *part, *expert)


@dataclass(frozen=True)
class Calibrate:
    """Run the model, as it is, on texts, and keep statistics of what every matrix is multiplied by.

    They belong to the stage's key: whatever run needs the same finds them, and the jobs of a sweep share them. One that
    was killed goes on with the block that was not finished.

    Attributes:
        engine: runs the model, a block's weights on the device at a time; of several devices each has them, batches go
            to one after another, and experts, of which XᵀX are made, are dealt out.
        texts: files, UTF-8.
        hessian: keep XᵀX as well, fp32, [in, in] of every matrix.
        samples: rows of inputs that are kept of every matrix, and of every expert, fp32.
        windows: how they are cut; the last tokens of a text, which fill none, are left out.
    """

    engine: Engine
    texts: tuple[str, ...] = field(metadata=NEUTRAL)  # their content counts, which is read
    windows: Windows
    hessian: bool = False
    samples: int = 0

    def __post_init__(self) -> None:
        if self.samples < 0:
            raise ConfigError(f"calibrate.samples={self.samples}: rows of inputs to keep, 0 or more")
        for text in self.texts:
            texts.check(text, "calibrate.texts")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`: of several processes one does it, so that sums have one order."""
        return observing_gang(self.engine)

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        """See `pipeline.stage.StageHooks`.

        Raises:
            ConfigError: there is no text.
        """
        if not self.texts:
            raise ConfigError("calibrate.texts: at least one text file is needed")
        files = [texts.input_file(text) for text in self.texts]
        usage = replace(scoring([f.nbytes for f in files], self.windows), observes=True)
        if self.windows.limit is not None:
            usage = replace(usage, text_nbytes=min(usage.text_nbytes, 4 * CHARS * self.windows.limit))
        takes = self.engine.plan(checkpoint, usage=usage)
        block, width, hessians, largest, square, sampled = _sizes(checkpoint)
        # On a device one block's weights in place of all; a matrix of an expert in fp32, twice, and two sums of XᵀX. On
        # the host one that is written; what goes into and out of the experts of a batch's tokens.
        device = round(takes.device_nbytes * block) + 2 * largest + (2 * square if self.hessian else 0)
        host = takes.host_nbytes - takes.device_nbytes + device + (square if self.hessian else 0)
        host += self.windows.batch * self.windows.window * _routed(checkpoint)
        host += (takes.devices - 1) * device  # every device has the block, and memory of its own or the host's
        states = 3 * 4 * width * usage.tokens  # of a block what goes in, what comes out, and what is routed
        takes = replace(
            takes,
            inputs=(*takes.inputs, *files),
            device_nbytes=device,
            host_nbytes=host,
            rate=f"{takes.rate} hessian" if self.hessian else takes.rate,
            disk_nbytes=states + (hessians if self.hessian else 0) + self.samples * sampled,
        )
        found = Folder(None, likely(checkpoint), self.hessian, self.samples > 0)
        return Prediction(replace(checkpoint, statistics=found), takes)

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            ConfigError: no text fills a window.
            StageError: of a matrix of a block nothing was found.
            SourceError: no tokenizer; a text that is not UTF-8.
        """
        assert ctx.folder is not None
        assert ctx.unfinished is not None
        rows = rows_of(self.engine, checkpoint, self.texts, self.windows)
        text_stream.write(f"calibrating on {len(rows) * self.windows.window:,} tokens\n")
        kept = {"hessian": self.hessian, "samples": self.samples}
        observer(self.engine)(checkpoint, rows, self.windows.batch, ctx.unfinished, **kept)
        for path in sorted(ctx.unfinished.glob("layers.*.np[yz]")):
            meter.wrote(path.stat().st_size)
            in_both(path, ctx.folder / path.name)
        found = self.reopen(ctx.folder, checkpoint)
        assert isinstance(found.statistics, Folder)
        if missing := [name for name in likely(checkpoint) if name not in found.statistics]:
            raise StageError(f"calibrate: the model multiplies nothing by {some(missing)}, which was not foreseen")
        say_few(found.statistics)
        return found

    def reopen(self, folder: Path, checkpoint: Checkpoint) -> Checkpoint:
        """See `pipeline.stage.StageHooks`."""
        files = {}
        for path in sorted(folder.glob("layers.*.npz")):
            with np.load(path) as kept:
                for key in kept.files:
                    name, _, what = key.rpartition("/")
                    if what == "tokens":
                        files[name] = path.name
        return replace(checkpoint, statistics=Folder(folder, files, self.hessian, self.samples > 0))


def observing_gang(engine: Engine) -> Gang | None:
    """The process in which a stage is to run that observes a model of `engine`, where its devices are those of several:
    one takes those that it sees, and is gone when the several begin. None: the run's own."""
    return None if gang_of(engine) is None else Gang(1, "auto", _as_it_is)


def _as_it_is(rank: int, address: str, *, alone: bool) -> None:
    """Join nobody."""


def _matrix(path: Path, *index: int) -> Any:
    """One matrix of an array of several; of a mapping all that was looked at would count as memory of the process."""
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        place = int(np.ravel_multi_index(index, shape[:-2])) if index else 0
        file.seek(place * prod(shape[-2:]) * dtype.itemsize, os.SEEK_CUR)
        return np.fromfile(file, dtype, prod(shape[-2:])).reshape(shape[-2:])


def say_few(found: Folder) -> None:
    """Name the experts that saw too little."""
    if few := list(found.few()):
        said = f"saw fewer than {LEAST} tokens and take the mean of their layer's"
        text_stream.write(f"{len(few)} matrices of experts {said}: {', '.join(few)}\n")


def in_both(path: Path, other: Path) -> None:
    """A file under another name as well, so that whoever is killed finds it again; copied, where file systems have no
    links."""
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:
        clone(path, other)


def rows_of(engine: Engine, checkpoint: Checkpoint, files: Sequence[str], windows: Windows) -> list[list[int]]:
    """Texts as token ids, in rows of one window each.

    Raises:
        ConfigError: no text fills a window.
        SourceError: no tokenizer; a text that is not UTF-8.
    """
    tokenizer = engine.tokenizer.load(checkpoint)  # type: ignore[attr-defined]
    rows, size = list[list[int]](), windows.window
    for text in files:
        ids = beginning(tokenizer, texts.read(text), windows.limit)
        rows += [ids[i : i + size] for i in range(0, len(ids) - size + 1, size)]
    if not rows:
        raise ConfigError(f"calibrate.texts: no text has the {size} tokens of a window")
    return rows


def beginning(tokenizer: Any, text: str, limit: int | None) -> list[int]:
    """The first `limit` tokens of a text, of which no more is encoded than these need; None: all."""
    if limit is None:
        return list(tokenizer.encode(text))
    most = CHARS * limit
    while True:
        ids = tokenizer.encode(text[:most])
        if len(ids) >= limit + MARGIN or most >= len(text):
            return list(ids[:limit])
        most *= 2


def _routed(checkpoint: Checkpoint) -> int:
    """Bytes of what goes into and out of the experts that a token has, fp32; 0: there are none."""
    specs = checkpoint.store.specs
    chosen = checkpoint.config.get("num_experts_per_tok")
    sides = [sum(specs[n].shape[-2:]) for n in likely(checkpoint) if len(specs[n].shape) > 2]
    return 4 * 2 * max(sides, default=0) * (chosen if isinstance(chosen, int) else 1)


def _sizes(checkpoint: Checkpoint) -> tuple[float, int, int, int, int, int]:
    """Of the largest block's weights the share of all; how wide hidden states are; bytes of all XᵀX, at most; of the
    largest matrix in fp32, and of the largest XᵀX; and of one row of inputs of every matrix."""
    specs = checkpoint.store.specs
    blocks: Counter[str] = Counter()
    for name, spec in specs.items():
        blocks[".".join(name.split(".")[:3]) if ".layers." in f".{name}" else name] += spec.nbytes
    share = max(blocks.values(), default=0) / max(1, sum(blocks.values()))
    shapes = [specs[n].shape for n in likely(checkpoint)]
    hessians = sum(4 * prod(s[:-2]) * s[-1] ** 2 for s in shapes)
    largest = max((4 * prod(s[-2:]) for s in shapes), default=0)
    square = max((4 * s[-1] ** 2 for s in shapes), default=0)
    sampled = sum(4 * prod(s[:-2]) * s[-1] for s in shapes)
    norms = [s.shape[0] for n, s in specs.items() if n.endswith("layernorm.weight") and len(s.shape) == 1]
    return share, max(norms, default=0), hessians, largest, square, sampled


def likely(checkpoint: Checkpoint) -> dict[str, str]:
    """The tensors that a plan takes to be multiplied by: matrices of blocks."""
    specs = checkpoint.store.specs.items()
    return {n: "" for n, s in specs if ".layers." in f".{n}" and len(s.shape) > 1 and not n.endswith("bias")}
