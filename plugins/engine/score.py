"""How well a model predicts a text: negative log likelihood, and the distance from a baseline's distributions.

The baseline is kept as its last hidden states, [B, T, D], a file a text, and its head, a file a model: logits are made
again from them, block by block, so that the comparison is with whole distributions, and takes D rather than V numbers a
token on disk.
"""

import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from pipeline import arrays, tracing
from pipeline.digest import identity
from pipeline.engine import Against, Score, Windows
from pipeline.errors import ConfigError
from pipeline.files import of_storage
from pipeline.running.progress import Progress
from plugins.engine.runtime import Runtime
from plugins.engine.sizes import LOGITS_NBYTES
from plugins.models.common.decoder import Decoder


@dataclass(frozen=True)
class Batch:
    """Windows of one batch, all padded to the same length.

    Attributes:
        tokens, positions: [B, T] int32; -1 is the position of padding.
        targets: [B, T] int32: the token that each position is to predict; -1: not scored.
    """

    tokens: Any
    positions: Any
    targets: Any


def windows(ids: Sequence[int], cut: Windows, bos: int | None) -> Iterator[Batch]:
    """The text in windows of `cut.window` tokens (BOS included), every token scored at most once.

    Without overlap the first token of every window is context only, unless BOS stands before it; with a stride, windows
    overlap, and each scores its last `stride` tokens: as transformers' guide to perplexity has it.

    Raises:
        ConfigError: BOS is asked for and the tokenizer has none; a text of fewer than 2 tokens.
    """
    if cut.bos and bos is None:
        raise ConfigError("evaluate.windows.bos=true: this tokenizer has no BOS token")
    ids = list(ids[: cut.limit])
    if len(ids) < 2:
        raise ConfigError(f"a text of {len(ids)} tokens has nothing to predict")
    head = [bos] if cut.bos and bos is not None else []
    room = cut.window - len(head)
    stride = min(cut.stride or room, room)
    rows: list[tuple[list[int], list[int]]] = []
    done = 0  # tokens that were scored, or were the first of all
    for start in range(0, len(ids), stride):
        part = ids[start : start + room]
        row = [*head, *part]
        if done and start + len(part) <= done:
            break
        fresh = len(part) - (done - start if done > start else 0)  # the last `fresh` tokens are new here
        first = len(row) - fresh
        targets = [row[i + 1] if i + 1 >= max(first, 1) else -1 for i in range(len(row) - 1)] + [-1]
        rows.append((row, targets))
        done = start + len(part)
    for at in range(0, len(rows), cut.batch):
        some = rows[at : at + cut.batch]
        shape = (cut.batch if len(rows) > cut.batch else len(some), cut.window)
        batch = Batch(np.zeros(shape, np.int32), np.full(shape, -1, np.int32), np.full(shape, -1, np.int32))
        for i, (row, wanted) in enumerate(some):
            batch.tokens[i, : len(row)], batch.positions[i, : len(row)] = row, np.arange(len(row))
            batch.targets[i, : len(row)] = wanted
        yield batch


class Kept:
    """A baseline that is being written: hidden states batch by batch; memory is one batch's.

    The file is a NumPy archive, written under another name first: a file that is there is whole.
    """

    def __init__(self, path: Path):
        self.path, self.partial = path, path.with_suffix(".partial.npz")
        self.count, self.dtype = 0, ""

    def __enter__(self) -> "Kept":
        with of_storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.archive = zipfile.ZipFile(self.partial, "w", zipfile.ZIP_STORED)
        return self

    def add(self, hidden: Any) -> None:
        """The hidden states [B, T, D] of the next batch."""
        self._write(f"hidden{self.count}", _bits(hidden))
        self.count, self.dtype = self.count + 1, str(hidden.dtype)

    def finish(self) -> None:
        """Everything was added: the file comes to be."""
        self._write("dtype", np.array(self.dtype))
        with of_storage(self.path):
            self.archive.close()
            self.partial.replace(self.path)

    def _write(self, name: str, array: Any) -> None:
        with of_storage(self.path), self.archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)

    def __exit__(self, *_: Any) -> None:
        with suppress(OSError):  # of a full disk; said already
            self.archive.close()
        self.partial.unlink(missing_ok=True)


class Baseline:
    """A baseline that was kept: its head, and one batch of hidden states at a time."""

    def __init__(self, against: Against):
        with np.load(against.head) as kept:
            self.head = jnp.asarray(kept["head"].view(jnp.dtype(str(kept["dtype"]))))
            self.softcap = float(kept["softcap"]) or None
        self.archive = np.load(against.states)
        self.hidden_dtype = jnp.dtype(str(self.archive["dtype"]))

    def __enter__(self) -> "Baseline":
        return self

    def __exit__(self, *_: Any) -> None:
        self.archive.close()

    def hidden(self, batch: int) -> Any:
        """[B, T, D]."""
        return self.archive[f"hidden{batch}"].view(self.hidden_dtype)


def keep_head(runtime: Runtime, path: Path | None) -> str:
    """See `pipeline.engine.Session.keep_head`."""
    head, softcap = runtime.head()
    parts = {"head": _bits(head), "dtype": np.array(str(head.dtype)), "softcap": np.float32(softcap or 0)}
    if path is not None and (runtime.spread is None or jax.process_index() == 0):
        arrays.save(path, parts)
    body: Any = np.ascontiguousarray(parts["head"]).reshape(-1).view(np.uint8)
    return identity([str(head.dtype), list(head.shape), softcap, xxhash.xxh3_128_hexdigest(body)])


def _bits(array: Any) -> Any:
    """As unsigned integers: NumPy's files do not know bfloat16."""
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def score(
    runtime: Runtime, ids: Sequence[int], cut: Windows, bos: int | None, keep: Path | None, against: Against | None
) -> Score:
    """See `pipeline.engine.Session.score`."""
    compiled = runtime.compile_s
    start = time.perf_counter()
    total, kl, agree, scored = 0.0, 0.0, 0, 0
    with ExitStack() as files:
        base = files.enter_context(Baseline(against)) if against else None
        writes = runtime.spread is None or jax.process_index() == 0  # of the processes of one model the first
        kept = files.enter_context(Kept(keep)) if keep and writes else None
        batches = [*windows(ids, cut, bos)]
        going = Progress("scoring", sum(int((b.targets >= 0).sum()) for b in batches), "tokens")
        for i, batch in enumerate(batches):
            rows, before = len(batch.tokens), runtime.compile_s
            began = tracing.clock() if tracing.active else 0.0
            args = [runtime.padded(a, v) for a, v in ((batch.tokens, 0), (batch.positions, -1), (batch.targets, -1))]
            if base is None:
                hidden, nll = runtime.call("score", _score, *args)
            else:
                fn = partial(_compare, softcap=base.softcap)
                hidden, nll, divergence, same = runtime.call(
                    "compare", fn, *args, runtime.padded(base.hidden(i), 0), base.head, static=base.softcap, whole=(4,)
                )
                kl += float(runtime.fetched(divergence).astype(np.float64).sum())
                agree += int(runtime.fetched(same).sum())
            total += float(runtime.fetched(nll).astype(np.float64).sum())
            here = int((batch.targets >= 0).sum())
            scored += here
            if began:
                tracing.done("score", "execute", began, rows=rows, tokens=here)
            going.aside(runtime.compile_s - before)
            going.add(here)
            if keep:
                hidden = runtime.fetched(hidden)
            if kept is not None:
                kept.add(hidden[:rows] if len(hidden) > rows else hidden)
        if kept is not None:
            kept.finish()
    compile_s = runtime.compile_s - compiled
    return Score(
        tokens=len(ids[: cut.limit]), scored=scored, nll=total / scored, kl=kl / scored if base else None,
        top1=agree / scored if base else None, seconds=time.perf_counter() - start - compile_s, compile_s=compile_s,
    )  # fmt: skip


def _score(model: Decoder, tokens: Any, positions: Any, targets: Any) -> Any:
    hidden, _ = model(tokens, positions)

    def block(args: Any) -> Any:
        h, target = args
        return jnp.where(target >= 0, _nll(model.logits(h), target), 0.0)

    return hidden, _by_blocks(block, (hidden, targets), model.vocab)


def _compare(model: Decoder, tokens: Any, positions: Any, targets: Any, base: Any, head: Any, *, softcap: Any) -> Any:
    hidden, _ = model(tokens, positions)

    def block(args: Any) -> Any:
        h, b, target = args
        ours = jax.nn.log_softmax(model.logits(h), axis=-1)
        theirs = model.ops.matmul(b, head, out_dtype=jnp.float32)
        theirs = jax.nn.log_softmax(theirs if softcap is None else softcap * jnp.tanh(theirs / softcap), axis=-1)
        kl = jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)
        same = jnp.argmax(ours, axis=-1) == jnp.argmax(theirs, axis=-1)
        counts = target >= 0
        return jnp.where(counts, _nll(ours, target), 0.0), jnp.where(counts, kl, 0.0), counts & same

    nll, kl, same = _by_blocks(block, (hidden, base, targets), model.vocab)
    return hidden, nll, kl, same


def _nll(logits: Any, target: Any) -> Any:
    at = jnp.maximum(target, 0)[..., None]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, at, axis=-1)[..., 0]


def _by_blocks(fn: Any, args: Any, vocab: int) -> Any:
    """`fn` over blocks of positions, so that logits of all of them never stand in memory together. A block is a product
    with the head; what `lax.map` batches by itself would come to native kernels position by position."""
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), args)
    rows, most = flat[0].shape[0], max(1, LOGITS_NBYTES // (4 * vocab))
    if rows <= most:
        return fn(flat)
    count = -(-rows // most)
    size = -(-rows // count)
    if not isinstance(flat[0], jax.core.Tracer):  # not compiled (see `eager`), where mapping would trace
        parts = [fn(tuple(a[i : i + size] for a in flat)) for i in range(0, rows, size)]
        return jax.tree.map(lambda *found: jnp.concatenate(found), *parts)

    def blocks(a: Any) -> Any:
        return jnp.pad(a, ((0, count * size - rows), *((0, 0),) * (a.ndim - 1))).reshape(count, size, *a.shape[1:])

    found = jax.lax.map(fn, jax.tree.map(blocks, flat))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:rows], found)
