"""A model on its device or on a mesh of them, with its compiled programs.

Every program is compiled ahead for static shapes and kept: a few lengths of prompt, powers of two for batch and cache.
What was compiled, and how long it took, is counted, so that nothing recompiles unseen.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline import tracing
from pipeline.running import member, text_stream
from pipeline.tensors.qtensor import QTensor
from plugins.engine import profiled
from plugins.engine.load import device_nbytes, on_devices
from plugins.engine.sampling import choose
from plugins.engine.sizes import MOST_STEPS, SMALLEST_CACHE, power_of_two, rows
from plugins.engine.spread import Spread
from plugins.kernels.dequantize.traced import decode
from plugins.kernels.varying import along, axes_of
from plugins.mesh.store import DeviceStore
from plugins.models.common.cache import Cache, CacheDtype, LayerShape
from plugins.models.common.decoder import Decoder, Tap

# XLA's CPU backend orders a program so that much can run at once, and then nothing that is alive "at once"
# shares memory: all weights that a step decodes stood in memory together. SmolLM2-135M, one step, activations fp32:
# 425 MB of temporaries and 280 ms of CPU so; 4 MB and 34 ms in the plain order.
COMPILER_OPTIONS: dict[str, dict[str, str | bool]] = {
    "cpu": {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
}


class Runtime:
    """A loaded model.

    Attributes:
        config: config.json.
        device: a JAX device; of a mesh the first.
        spread: how programs run on a mesh of more than one; None: there is none.
        device_nbytes: bytes of the weights on the device; on a mesh, on the one that holds most.
        eager: whether programs run op by op, uncompiled.
        load_s, compile_s: seconds spent loading, and compiling so far.
        compiled: keys of the programs compiled so far, in order.
        paces: steps that a program of decoding last made, by its rows.
    """

    def __init__(
        self,
        model: Decoder,
        config: Mapping[str, Any],
        cache_dtype: CacheDtype,
        device: Any,
        load_s: float,
        eager: bool = False,
        spread: Spread | None = None,
    ):
        self.eager, self.spread = eager, spread
        self.config, self.cache_dtype, self.device, self.load_s = config, cache_dtype, device, load_s
        self.vocab, self.cache_shapes = model.vocab, model.cache_shapes
        self.dtype = model.dtype
        self.device_nbytes = device_nbytes(model)
        graphdef, state = nnx.split(model)
        self._leaves, tree = jax.tree.flatten(state)
        self._model: Callable[[Any], Decoder] = lambda leaves: nnx.merge(graphdef, jax.tree.unflatten(tree, leaves))
        self._programs: dict[Hashable, Any] = {}
        self.compile_s = 0.0
        self.paces: dict[int, int] = {}
        self.hidden = model.norm.weight.spec.shape[0]

    @property
    def where(self) -> Any:
        """What weights are put on: a device, or a JAX mesh."""
        return self.device if self.spread is None else self.spread.devices

    @property
    def compiled(self) -> tuple[Hashable, ...]:
        return tuple(self._programs)

    def call(
        self, name: str, fn: Callable[..., Any], *args: Any, static: Hashable = (), donate: tuple[int, ...] = (),
        whole: tuple[int, ...] = (),
    ) -> Any:  # fmt: skip
        """`fn(model, *args)`, compiled once for each name, `static` and shapes of `args`; not at all when eager.

        Args:
            donate: indices of `args` whose memory the result may take.
            whole: indices of `args` that are not divided by rows, on a mesh. A cache is the first argument, and then
                the first result; all other results are divided by rows.
        """
        if self.eager:
            with jax.disable_jit():
                return fn(self.model(), *args)
        if self.spread is not None and self.spread.mesh.processes > 1:
            args = tuple(self.spread.placed(args, whole))
        shapes = tuple((a.shape, a.dtype) for a in jax.tree.leaves(args))  # looked up each step
        key = (name, static, shapes)
        if tracing.active:
            profiled.begin()
        if key not in self._programs:
            if self.spread is None:
                jitted = jax.jit(
                    lambda leaves, *rest: fn(self._model(leaves), *rest), donate_argnums=tuple(1 + i for i in donate)
                )
            else:
                local = partial(self._gathered, fn)
                jitted = self.spread.jit(local, self._leaves, args, whole=whole, donate=donate)
            self._compile(key, jitted, self._leaves, *args)
        return self._programs[key](self._leaves, *args)

    def _compile(self, key: Hashable, jitted: Any, *args: Any) -> None:
        start = time.perf_counter()
        text_stream.live(f"compiling {key[0]}" if isinstance(key, tuple) else "compiling")
        options = COMPILER_OPTIONS.get(self.device.platform)
        self._programs[key] = jitted.lower(*args).compile(compiler_options=options)
        member.agreed()  # one that still compiles keeps the others waiting, and collectives wait for half a minute only
        took = time.perf_counter() - start
        if tracing.active:
            tracing.done(f"compiling {key[0]}" if isinstance(key, tuple) else "compiling", "jax", start, took)
        self.compile_s += took
        text_stream.live(f"compiled {key[0]} in {took:.1f} s" if isinstance(key, tuple) else "compiled")

    def fetched(self, array: Any) -> Any:
        """A result as NumPy has it, whole; some of it may lie in other processes."""
        if self.spread is not None and isinstance(array, jax.Array) and not array.is_fully_addressable:
            key = ("fetched", array.shape, str(array.dtype), array.sharding)
            if key not in self._programs:
                self._compile(key, self.spread.gathered(), array)
            array = self._programs[key](array)
        return np.asarray(array)

    def _gathered(self, fn: Callable[..., Any], leaves: Any, *args: Any) -> Any:
        """`fn(model, *args)` of the parts of a model that lie on one device of a mesh."""
        model = self._model(leaves)
        model.gather()
        return fn(model, *args)

    @contextmanager
    def changed(self, change: Callable[[Decoder], None]) -> Iterator[None]:
        """With other weights of the same shapes and dtypes, so that nothing recompiles."""
        model = self.model()
        change(model)
        before, self._leaves = self._leaves, jax.tree.leaves(nnx.split(model)[1])
        try:
            yield
        finally:
            self._leaves = before

    def model(self) -> Decoder:
        """The model with its weights, to be looked into."""
        return self._model(self._leaves)

    def tensors(self, order: Iterable[str] = ()) -> DeviceStore:
        """What the devices hold, as a store; see `plugins.engine.load.on_devices`."""
        return on_devices(self.model(), order)

    def head(self) -> tuple[Any, float | None]:
        """The output matrix [V, D], unpacked, and the cap of logits: what turns hidden states into logits."""
        model = self.model()
        head = (model.embed_tokens if model.lm_head is None else model.lm_head).get_value()
        if self.spread is not None and self.spread.mesh.processes > 1:
            head = jax.tree.map(lambda part: jnp.asarray(self.fetched(part)), head)
        return decode(head, jnp.float32) if isinstance(head, QTensor) else head, model.softcap

    # The programs.

    def forward(self, tokens: Any, positions: Any) -> Any:
        """Logits [B, T, V] float32, without a cache."""
        return self._of_rows("forward", _forward, tokens, positions)

    def taps(self, tokens: Any, positions: Any) -> dict[str, Any]:
        """Hidden states by layer, [B, T, D], and `logits` [B, T, V]."""
        return self._of_rows("taps", _taps, tokens, positions)  # type: ignore[no-any-return]

    def _of_rows(self, name: str, fn: Callable[..., Any], tokens: Any, positions: Any) -> Any:
        found = self.call(name, fn, self.padded(tokens, 0), self.padded(positions, -1))
        if self.spread is not None and self.spread.mesh.processes > 1:
            found = jax.tree.map(self.fetched, found)
        return jax.tree.map(lambda a: a[: len(tokens)], found) if len(tokens) % self.ways else found

    @property
    def ways(self) -> int:
        """Parts that the rows of a batch are divided into, over the devices of a mesh."""
        return 1 if self.spread is None else self.spread.ways

    @property
    def most_steps(self) -> int:
        """Steps that one program may make: one, where they are no program, and where processes have to agree on it."""
        return 1 if self.eager or (self.spread is not None and self.spread.mesh.processes > 1) else MOST_STEPS

    def rows(self, n: int) -> int:
        """Rows that programs for a batch of `n` sequences have."""
        return rows(n, self.ways)

    def padded(self, array: Any, value: int) -> Any:
        """An array whose first dimension is rows, with as many of `value` at the end as it takes to divide them."""
        if lacking := -len(array) % self.ways:
            return jnp.pad(array, [(0, lacking), *[(0, 0)] * (array.ndim - 1)], constant_values=value)
        return jnp.asarray(array)

    def new_cache(self, batch: int, length: int, *, rings: bool = True) -> Cache:
        """An empty cache for `batch` sequences of up to `length` tokens, in a size that programs are compiled for.

        Args:
            rings: layers with a window forget what is out of its sight; otherwise `Cache.up_to` can go back.
        """
        shapes, *size = self._cache_of(batch, length)
        kept = shapes if rings else [replace(shape, window=None) for shape in shapes]
        create: Callable[[], Cache] = partial(Cache.create, kept, *size)  # type: ignore[arg-type]  # in order
        if self.spread is None:
            return create()
        key = ("cache", rings, *size)
        if key not in self._programs:
            self._compile(key, self.spread.made(create))
        return self._programs[key]()  # type: ignore[no-any-return]

    def grown(self, cache: Cache, length: int) -> Cache:
        """What a cache without rings holds, in a larger one."""
        size = power_of_two(length, SMALLEST_CACHE)
        grow = lambda model, cache: (cache.grown(size), ())  # noqa: E731
        return self.call("grow", grow, cache, static=size)[0]  # type: ignore[no-any-return]

    def cache_nbytes(self, batch: int, length: int) -> int:
        """Bytes of such a cache on one device."""
        shapes, batch, length, dtype = self._cache_of(batch, length)
        if self.spread is not None:
            batch, shapes = batch // self.ways, [self.spread.part(shape) for shape in shapes]
        return Cache.nbytes(shapes, batch, length, dtype)

    def _cache_of(self, batch: int, length: int) -> tuple[Sequence[LayerShape], int, int, CacheDtype]:
        return self.cache_shapes, batch, power_of_two(length, SMALLEST_CACHE), self.cache_dtype

    def prefill(
        self, cache: Cache, tokens: Any, positions: Any, pick: Any, last: Any, *, fresh: bool
    ) -> tuple[Any, Any]:
        """Remember `tokens` [B, T]; the cache, and `last` [B, D] with the hidden states at `pick` [B] (-1: none)."""
        fn = partial(_prefill, fresh=fresh)
        args = (cache, *jax.device_put((tokens, positions, pick)), last)
        return self.call("prefill", fn, *args, static=fresh, donate=(0, 4))  # type: ignore[no-any-return]

    def first(self, last: Any, seen: Any, keys: Any, numbers: Any, kind: Any) -> tuple[Any, Any]:
        """Tokens after the prompt: tokens [B], and what was seen."""
        fn = partial(_first, kind=kind)
        return self.call("first", fn, last, seen, keys, numbers, static=kind)  # type: ignore[no-any-return]

    def steps(
        self, count: int, cache: Cache, token: Any, position: Any, seen: Any, keys: Any, numbers: Any, kind: Any,
        ends: Any,
    ) -> Any:  # fmt: skip
        """`count` more tokens, 1 … MOST_STEPS, in one program: cache, the tokens [B, MOST_STEPS], the last of them [B],
        positions [B], and what was seen.

        Args:
            position: of `token`, [B]; -1: this row has ended, and its tokens mean nothing.
            ends: after which tokens a row ends, int32 [E]; these do not come into the cache. Where all rows have, no
                further step is made; on a mesh, whose devices would have to agree on it, it is.
        """
        fn = partial(_steps, kind=kind, alone=self.spread is None)
        args = (cache, token, position, seen, keys, numbers, np.int32(count), ends)
        cache, (tokens, token, position, seen) = self.call("step", fn, *args, static=kind, donate=(0, 3), whole=(7,))
        return cache, tokens, token, position, seen


def _forward(model: Decoder, tokens: Any, positions: Any) -> Any:
    return model.logits(model(tokens, positions)[0])


def _taps(model: Decoder, tokens: Any, positions: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tap: Tap = found.__setitem__
    hidden, _ = model(tokens, positions, tap=tap)
    return {**found, "norm": hidden, "logits": model.logits(hidden)}


def _prefill(model: Decoder, cache: Cache, tokens: Any, positions: Any, pick: Any, last: Any, *, fresh: bool) -> Any:
    hidden, cache = model(tokens, positions, cache, fresh=fresh)  # type: ignore[assignment]
    here = hidden[jnp.arange(len(pick)), jnp.maximum(pick, 0)]
    return cache, jnp.where((pick >= 0)[:, None], here, last)


def _first(model: Decoder, last: Any, seen: Any, keys: Any, numbers: Any, *, kind: Any) -> Any:
    return _chosen(model.logits(last), seen, keys, jnp.int32(0), numbers, kind)


def _steps(
    model: Decoder,
    cache: Cache,
    token: Any,
    position: Any,
    seen: Any,
    keys: Any,
    numbers: Any,
    count: Any,
    ends: Any,
    *,
    kind: Any,
    alone: bool,
) -> Any:
    graph, state = nnx.split(model)
    weights = jax.tree.leaves(state)

    def goes_on(so_far: Any) -> Any:
        i, _, _, _, position, _ = so_far
        return (i < count) & jnp.any(position >= 0) if alone else i < count

    def one(so_far: Any) -> Any:
        i, cache, tokens, token, position, seen = so_far
        # What is done to weights stays in the loop: before it XLA would make all of them wide, and keep them so.
        own = [jax.lax.optimization_barrier((w, i))[0] for w in weights]  # type: ignore[no-untyped-call]
        model = nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), own))
        hidden, cache = model(token[:, None], position[:, None], cache, fresh=False)
        token, seen = _chosen(model.logits(hidden[:, 0]), seen, keys, position + 1, numbers, kind)
        ended = (position < 0) | jnp.any(token[:, None] == ends[None], axis=-1)
        return i + 1, cache, tokens.at[:, i].set(token), token, jnp.where(ended, -1, position + 1), seen

    tokens = along(axes_of(token), jnp.zeros((len(token), MOST_STEPS), token.dtype))
    _, cache, *rest = jax.lax.while_loop(goes_on, one, (jnp.int32(0), cache, tokens, token, position, seen))
    return cache, tuple(rest)


def _chosen(logits: Any, seen: Any, keys: Any, at: Any, numbers: Any, kind: Any) -> Any:
    turn = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(at, keys.shape))
    token = choose(logits, seen, turn, numbers, kind)
    if kind[2]:
        seen = seen.at[jnp.arange(len(token)), token].set(True)
    return token, seen
