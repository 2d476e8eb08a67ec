"""What one process of a benchmark does: an export, or one contender loaded, timed or scored, and nothing beside it."""

import json
import os
import pickle
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pipeline.arrays import mapped
from pipeline.bench.energy import Energy
from pipeline.config import extend
from pipeline.contender import Contender, ContenderHooks, Loaded
from pipeline.errors import StageError
from pipeline.hooks import optional
from pipeline.running import peak

BLOCK = 64  # positions whose distributions are compared at once


class Job(Protocol):
    def __call__(self) -> Mapping[str, Any]:
        """Do it; what it measured, as JSON holds it."""


@dataclass(frozen=True)
class Export:
    """A run of ours that writes a form of the weights into `place`; how large that is, in bytes."""

    overrides: tuple[str, ...]
    place: Path

    def __call__(self) -> Mapping[str, Any]:
        import pipeline

        pipeline.run(list(self.overrides), config_dir=extend.folder(), progress=False)
        return {"nbytes": _nbytes(self.place)}


@dataclass(frozen=True)
class Prepare:
    """What a contender makes of an export, into `to`; how large that is, in bytes."""

    contender: Contender
    place: Path
    own: str
    to: Path

    def __call__(self) -> Mapping[str, Any]:
        prepare = optional(self.contender, ContenderHooks, "prepare")
        if prepare is None:
            raise StageError(f"{type(self.contender).__name__} has a form of its own, {self.own}, and no prepare")
        shutil.rmtree(self.to, ignore_errors=True)  # of one that was interrupted
        self.to.mkdir(parents=True)
        prepare(self.place, self.own, self.to)
        return {"nbytes": _nbytes(self.to)}


def _nbytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Speed:
    """How quick a contender is.

    Attributes:
        prefill: lengths of prompts, in tokens.
        batches: sequences that are continued at once.
        new: tokens that each gets, after its first one.
        contexts: lengths of prompts after which one sequence is continued.
        repeats: of each, after one that warms up and compiles.
        vocab: ids are drawn from so many, at random and always the same.
    """

    contender: Contender
    place: Path
    threads: int
    prefill: tuple[int, ...]
    batches: tuple[int, ...]
    new: int
    contexts: tuple[int, ...]
    repeats: int
    vocab: int

    def __call__(self) -> Mapping[str, Any]:
        start = time.perf_counter()
        loaded = self.contender.load(self.place, self.threads)
        load_s = time.perf_counter() - start
        most = max((*self.prefill, *self.batches, *self.contexts))
        ids = np.random.default_rng(0).integers(self.vocab, size=most).tolist()
        reading = {str(n): [_prefill(loaded, ids[:n]) for _ in range(self.repeats + 1)][1:] for n in self.prefill}
        prompts = {b: [ids[i : i + 1] for i in range(b)] for b in self.batches}
        writing = {str(b): self._decoded(loaded, these) for b, these in prompts.items()}
        with Energy() as energy:
            _decode(loaded, prompts[self.batches[0]], self.new)
        after = {str(n): self._decoded(loaded, [ids[:n]]) for n in self.contexts}
        return {
            "load": load_s, "prefill": reading, "decode": writing, "contexts": after, "peak": peak.nbytes(),
            "weights": loaded.device_nbytes, "versions": dict(self.contender.versions()),
            "joules": None if energy.joules is None else energy.joules / (self.batches[0] * self.new),
            "no_joules": energy.why,
        }  # fmt: skip

    def _decoded(self, loaded: Loaded, prompts: list[list[int]]) -> list[list[float]]:
        return [_decode(loaded, prompts, self.new) for _ in range(self.repeats + 1)][1:]


def _prefill(loaded: Loaded, ids: list[int]) -> float:
    """Seconds."""
    start = time.perf_counter()
    loaded.prefill([ids])
    return time.perf_counter() - start


def _decode(loaded: Loaded, prompts: list[list[int]], new: int) -> list[float]:
    """Seconds between one token of all and the next, `new` of them."""
    times: list[float] = []
    loaded.decode(prompts, new + 1, lambda: times.append(time.perf_counter()))
    if len(times) != new + 1:
        raise StageError(f"{new + 1} tokens were asked for, and it says that it made {len(times)}")
    return np.diff(times).tolist()


@dataclass(frozen=True)
class Quality:
    """How right a contender is: what it predicts of a text, beside the reference's own distributions.

    Attributes:
        windows: ids of the text, cut.
        logits: of the reference, a NumPy file [windows, T, V] float32.
        write: this is the reference, which writes them.
        prompt, new: what is continued greedily, and for how many tokens.
    """

    contender: Contender
    place: Path
    threads: int
    windows: tuple[tuple[int, ...], ...]
    logits: Path
    write: bool
    prompt: tuple[int, ...]
    new: int

    def __call__(self) -> Mapping[str, Any]:
        loaded = self.contender.load(self.place, self.threads)
        text = [*map(int, loaded.decode([list(self.prompt)], self.new, lambda: None)[0])]
        kept: Any = None if self.write else np.load(self.logits, mmap_mode="r")
        nll, kl, same = [], [], []
        partial = self.logits.with_suffix(".partial.npy")
        for i, ids in enumerate(self.windows):
            found = np.asarray(loaded.score(ids), np.float32)
            if self.write and kept is None:
                shape = (len(self.windows), *found.shape)
                kept = mapped(partial, shape, np.float32)
            if found.shape != kept.shape[1:]:
                raise StageError(f"logits {found.shape} of {len(ids)} tokens; {kept.shape[1:]} are expected")
            if self.write:
                kept[i] = found
            for at in range(0, len(ids) - 1, BLOCK):
                here = slice(at, min(at + BLOCK, len(ids) - 1))
                ours, theirs = _log_softmax(found[here]), _log_softmax(kept[i, here])
                nll += (-ours[np.arange(len(ours)), ids[here.start + 1 : here.stop + 1]]).tolist()
                kl += np.sum(np.exp(theirs) * (theirs - ours), axis=-1).tolist()
                same += (ours.argmax(-1) == theirs.argmax(-1)).tolist()
        if self.write:
            kept.flush()
            partial.replace(self.logits)
        return {
            "nll": float(np.mean(nll)), "kl": float(np.mean(kl)), "top1": float(np.mean(same)), "scored": len(nll),
            "text": text,
        }  # fmt: skip


def _log_softmax(logits: Any) -> Any:
    """Of the last dimension, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def main(words: Sequence[str]) -> None:
    """Do the job that comes as a pickle on standard input, which stays open for as long as somebody waits; what it
    measured goes to the file that is named."""
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301  of the process that started this one
    threading.Thread(target=_while_awaited, daemon=True).start()
    try:
        said: Mapping[str, Any] = {"found": dict(job())}
    except Exception as why:  # whatever a contender of somebody else raises becomes a row
        import traceback

        traceback.print_exc()
        said = {"failed": f"{type(why).__name__}: {why}" if not isinstance(why, StageError) else str(why)}
    Path(words[0]).write_text(json.dumps(said))


def _while_awaited() -> None:
    """End this process when the one that started it has ended, however that was."""
    while os.read(sys.stdin.fileno(), 1 << 10):  # without a lock, which a process that ends would find taken
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
