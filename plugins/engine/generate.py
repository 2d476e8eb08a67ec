"""Text from prompts: prefill in a few static lengths, then a few steps a program, streamed as they come."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
import xxhash

from pipeline import meter, tracing
from pipeline.errors import ConfigError, StageError
from pipeline.running.progress import Progress
from plugins.engine import sampling as samplers
from plugins.engine.kept import Kept
from plugins.engine.options import Sampling
from plugins.engine.pace import Pace
from plugins.engine.runtime import Runtime
from plugins.engine.sizes import bucket
from plugins.engine.stopping import StopText
from plugins.tokenizers.tokenizer import Stream, Tokenizer

Finish = Literal["end", "stop", "length", "interrupted"]

AHEAD: Final = 2
"""Programs that were asked for and whose tokens nobody saw yet: asking takes about a millisecond of Python's, on a core
that kernels would have. As many are in vain when a stop string ends a text; after a token that does, they do none."""


@dataclass(frozen=True)
class Completion:
    """What one prompt got.

    Attributes:
        tokens: generated ids, the one that ended it included.
        text: decoded, without special tokens and without the stop string.
        finish: an end token came, a stop string came, `max_tokens` were reached, or nobody wanted more.
    """

    tokens: tuple[int, ...]
    text: str
    finish: Finish


@dataclass(frozen=True)
class Timings:
    """Where the time went, in seconds, and what was done in it.

    Attributes:
        load: weights onto the device (once a model).
        compile: of this call; 0 when everything was compiled already.
        prepare: laying out the cache, the first time with JAX's own small programs.
        prefill: until the first token, without compiling.
        decode: all further tokens.
        prompt_tokens, new_tokens: of all prompts together; what a `Kept` held already is not counted.
        steps: of decoding.
        prompts: how many.
    """

    load: float
    compile: float
    prefill: float
    decode: float
    prompt_tokens: int
    new_tokens: int
    steps: int
    prompts: int = 1
    prepare: float = 0.0

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second."""
        return self.prompt_tokens / self.prefill if self.prefill else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return (self.new_tokens - self.prompts) / self.decode if self.decode else 0.0


class _Row:
    """One prompt's output so far."""

    def __init__(self, stream: Stream | None, sampling: Sampling, ends: Collection[int]):
        self.tokens: list[int] = []
        self.finish: Finish | None = None
        self._text: list[str] = []
        self._stream = stream
        self._stops = StopText(sampling.stop)
        self._most, self._ends = sampling.max_tokens, ends

    def push(self, token: int) -> str:
        """Text that can be shown now."""
        self.tokens.append(token)
        ended = token in self._ends
        text = self._stream.push(token) if self._stream and not ended else ""
        shown = self._stops.push(text)
        if self._stops.stopped:
            self.finish = "stop"
        elif ended or len(self.tokens) >= self._most:
            self.finish = "end" if ended else "length"
            shown += self._stops.push(self._stream.end() if self._stream else "") + self._stops.end()
            self.finish = "stop" if self._stops.stopped else self.finish
        self._text.append(shown)
        return shown

    def interrupt(self) -> str:
        """Nobody wants more of it; the text that was held back."""
        self.finish = "interrupted"
        self._text.append(shown := self._stops.push(self._stream.end() if self._stream else "") + self._stops.end())
        return shown

    @property
    def completion(self) -> Completion:
        return Completion(tuple(self.tokens), "".join(self._text), self.finish or "length")


def generate(
    runtime: Runtime,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    ends: Collection[int] = (),
    tokenizer: Tokenizer | None = None,
    streams: Sequence[Stream] | None = None,
    on_text: Callable[[int, str], None] = lambda row, text: None,
    kept: Kept | None = None,
    wanted: Callable[[], bool] = lambda: True,
) -> tuple[list[Completion], Timings]:
    """Continue every prompt. The same prompt several times gives several texts, unless sampling is greedy.

    Args:
        prompts: token ids; of any lengths, in one batch.
        ends: ids that end a text.
        tokenizer: without one, completions have no text, and stop strings cannot be seen.
        streams: one for each prompt, to read its tokens otherwise than the tokenizer does.
        on_text: called with (prompt number, text) as text comes.
        kept: where a single prompt begins, and what it leaves.
        wanted: whether to go on; asked at every token.

    Raises:
        ConfigError: an empty prompt, an id outside the vocabulary, stop strings without a tokenizer.
        StageError: the model gives NaN.
    """
    _check(runtime, prompts, sampling, tokenizer)
    before = runtime.compile_s
    start = time.perf_counter()
    ends = {*ends, *sampling.stop_tokens}
    readers: Sequence[Stream | None] = streams or [tokenizer.stream() if tokenizer else None for _ in prompts]
    rows = [_Row(reader, sampling, ends) for reader in readers]
    batch = runtime.rows(len(prompts))
    lengths = [len(p) for p in prompts]
    length = max(lengths) + sampling.max_tokens
    cache, begun = (runtime.new_cache(batch, length), 0) if kept is None else kept.taken(runtime, prompts[0], length)
    meter.on_device(runtime.device_nbytes + runtime.cache_nbytes(batch, length))
    keys = _keys(sampling.seed, prompts, batch)
    numbers, kind = samplers.numbers(sampling), sampling.kind
    seen = _seen(runtime, prompts, batch) if sampling.penalizes else jax.device_put(np.zeros((batch, 0), bool))
    jax.block_until_ready((cache, keys, numbers, seen))  # type: ignore[no-untyped-call]
    compiled = runtime.compile_s
    prepared = time.perf_counter() - start - (compiled - before)
    start = time.perf_counter()
    cache, last, held = _prefilled(runtime, cache, prompts, batch, begun, fresh=kept is None, wanted=wanted)
    if held < max(lengths):  # nobody wants it any more
        jax.block_until_ready(cache)  # type: ignore[no-untyped-call]
        if kept is not None:
            kept.put(cache, prompts[0][:held])
        _interrupt(rows, on_text)
        spent = Timings(
            load=runtime.load_s, compile=runtime.compile_s - before, decode=0.0, steps=0, new_tokens=0,
            prefill=time.perf_counter() - start - (runtime.compile_s - compiled), prompts=len(prompts),
            prompt_tokens=sum(min(n, held) for n in lengths) - begun, prepare=prepared,
        )  # fmt: skip
        return [r.completion for r in rows], spent
    token, seen = runtime.first(last, seen, keys, numbers, kind)
    steps = 0
    shown: Any = runtime.fetched(token)[:, None]
    going = [-1 if t in ends else n for n, t in zip(lengths, shown[:, 0].tolist(), strict=False)]
    position = jax.device_put(np.array([*going, *[-1] * (batch - len(prompts))], np.int32))
    known_ends = samplers.ends(ends)
    first = time.perf_counter() - start - (runtime.compile_s - compiled)
    compiled_first = runtime.compile_s
    if tracing.active:
        tracing.done("prefill", "execute", start, prompts=len(prompts), tokens=sum(lengths) - begun)
    start = looked = time.perf_counter()
    pace = Pace(runtime.most_steps, runtime.paces.get(batch, 1))
    pending: deque[tuple[int, Any]] = deque()
    while True:
        # While tokens are looked at here, the next steps run on the device, or wait there for their turn.
        while len(pending) < (1 if runtime.eager else AHEAD) and steps + 1 < sampling.max_tokens:
            count = min(pace.steps, sampling.max_tokens - 1 - steps)
            cache, made, token, position, seen = runtime.steps(
                count, cache, token, position, seen, keys, numbers, kind, known_ends
            )
            pending.append((count, made))
            steps += count
        for tokens in shown.T:
            _push(rows, tokens, on_text)
            if not wanted():
                _interrupt(rows, on_text)
        if all(r.finish for r in rows):
            break
        count, made = pending.popleft()
        shown = runtime.fetched(made)[:, :count]
        if tracing.active:
            tracing.done("decode", "execute", looked, steps=count, rows=len(prompts))
            looked = tracing.clock()
        runtime.paces[batch] = pace.steps  # without what the last one took, which may have ended before its steps
        pace.took(count)
    decode = time.perf_counter() - start - (runtime.compile_s - compiled_first)
    if kept is not None:
        kept.put(cache, [*prompts[0], *rows[0].tokens[:-1][:steps]])  # what comes last is not in it if it ended all
    timings = Timings(
        load=runtime.load_s, compile=runtime.compile_s - before, prefill=first, decode=decode,
        prompt_tokens=sum(lengths) - begun, new_tokens=sum(len(r.tokens) for r in rows), steps=steps,
        prompts=len(prompts), prepare=prepared,
    )  # fmt: skip
    return [r.completion for r in rows], timings


def _push(rows: Sequence[_Row], tokens: Any, on_text: Callable[[int, str], None]) -> None:
    """
    Raises:
        StageError: the model gave NaN.
    """
    for i, row in enumerate(rows):
        if row.finish is not None:
            continue
        if tokens[i] == samplers.NOTHING:
            of = f"prompt {i}: " if len(rows) > 1 else ""
            raise StageError(
                f"{of}the model gives NaN for the next token, after {len(row.tokens)} that it gave: a weight that is "
                "not finite, or a setting of config.json that no such model has"
            )
        if text := row.push(int(tokens[i])):
            on_text(i, text)


def _interrupt(rows: Sequence[_Row], on_text: Callable[[int, str], None]) -> None:
    for i, row in enumerate(rows):
        if row.finish is None and (text := row.interrupt()):
            on_text(i, text)


def _check(runtime: Runtime, prompts: Sequence[Sequence[int]], sampling: Sampling, tokenizer: Tokenizer | None) -> None:
    if not prompts:
        raise ConfigError("generate: no prompt")
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise ConfigError(
                f"prompt {i} is empty: there is no token to continue; a model with a BOS token can take that"
            )
        if outside := [t for t in prompt if not 0 <= t < runtime.vocab]:
            raise ConfigError(f"prompt {i} has token {outside[0]}; the vocabulary is 0 to {runtime.vocab - 1}")
    if sampling.stop and tokenizer is None:
        raise ConfigError("stop strings need a tokenizer")


def _keys(seed: int, prompts: Sequence[Sequence[int]], batch: int) -> Any:
    """A random key for each row, [batch]: of the seed, the prompt, and how often the same prompt stands before it.

    So the texts of one prompt differ, and what else is in the batch, or where, changes none of them.
    """
    words = np.zeros((batch, 2), np.uint32)
    before: Counter[bytes] = Counter()
    for i, prompt in enumerate(prompts):
        ids = np.asarray(prompt, "<i4").tobytes()
        digest = xxhash.xxh3_64_digest(ids, seed=before[ids])
        words[i] = np.frombuffer(digest, ">u4")
        before[ids] += 1
    # What `jax.random.key` makes of 64 bits; of as many it would see the lower half here.
    return _folded(np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32), words)


@jax.jit  # traced once for each size of a batch; op by op it took 5 ms of each text, and 0.1 s of the first one
def _folded(seed: Any, words: Any) -> Any:
    fold = jax.vmap(jax.random.fold_in)
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    return fold(fold(jnp.broadcast_to(key, len(words)), words[:, 0]), words[:, 1])


def _prefilled(
    runtime: Runtime, cache: Any, prompts: Sequence[Sequence[int]], batch: int, start: int = 0, *, fresh: bool = True,
    wanted: Callable[[], bool] = lambda: True,
) -> tuple[Any, Any, int]:  # fmt: skip
    """The cache with all prompts, the hidden state of each one's last token, [B, D], and how many tokens of the
    longest it holds: all, unless nobody wanted more.

    Args:
        start: tokens of the prompts that it holds already.
        fresh: whether a cache that holds none has a program of its own.
        wanted: whether to go on; asked after each part of a prompt that takes several.
    """
    longest = max(map(len, prompts))
    last = jax.device_put(np.zeros((batch, runtime.hidden), runtime.dtype))
    going = Progress("reading", longest, "tokens", done=start)
    while start < longest:
        width = bucket(longest - start)
        tokens = np.zeros((batch, width), np.int32)
        positions = np.full((batch, width), -1, np.int32)
        pick = np.full(batch, -1, np.int32)
        for i, prompt in enumerate(prompts):
            part = prompt[start : start + width]
            tokens[i, : len(part)] = part
            positions[i, : len(part)] = np.arange(start, start + len(part))
            if start < len(prompt) <= start + width:
                pick[i] = len(prompt) - 1 - start
        cache, last = runtime.prefill(cache, tokens, positions, pick, last, fresh=fresh and start == 0)
        start = min(start + width, longest)
        if start < longest:
            jax.block_until_ready(last)  # type: ignore[no-untyped-call]
            going.add(width)
            if not wanted():
                break
    return cache, last, start


def _seen(runtime: Runtime, prompts: Sequence[Sequence[int]], batch: int) -> Any:
    seen = np.zeros((batch, runtime.vocab), bool)
    for i, prompt in enumerate(prompts):
        seen[i, list(prompt)] = True
    return jax.device_put(seen)
