"""The KV cache: what attention remembers, in static shapes.

    B batch, S slots of a layer, T new tokens, K key/value heads, D head dimension

Every slot knows the position of the token it holds (-1: none), so that left padding, right padding, rings and several
prompts in one batch are all the same thing: attention looks at positions, never at slot numbers. A token at position p
lies in slot p mod S. Full layers have a slot for every position; sliding layers have a ring as long as their window.

`int8` and `fp8` hold each token's head as codes with one fp32 scale (absmax / 127, absmax / 448), so that a large key
costs precision to nobody but itself: QTensors, when attention gets them.

Floats of 16 and 8 bits lie in the cache as integers of their width. XLA's CPU backend scatters such floats as float32:
it widens the whole cache for that, every step, and narrows it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.matmul.weights import decoded

CacheDtype = Literal["bf16", "f32", "fp8", "int8"]
_STORED = {"bf16": jnp.uint16, "f32": jnp.float32, "fp8": jnp.uint8, "int8": jnp.uint8}
_MEANT = {"bf16": jnp.bfloat16, "fp8": jnp.float8_e4m3fn, "int8": jnp.int8}
_SCHEMES = {"fp8": Scheme("e4m3", 0, "f32"), "int8": Scheme("int8", 0, "f32")}
_LARGEST = {"fp8": 448.0, "int8": 127.0}


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What a layer remembers: `window` None means everything."""

    kv_heads: int
    head_dim: int
    window: int | None = None

    def slots(self, length: int) -> int:
        """Slots for sequences of up to `length` tokens."""
        return length if self.window is None else min(length, self.window)


@partial(jax.tree_util.register_dataclass, data_fields=["k", "v", "k_scale", "v_scale"], meta_fields=[])
@dataclass(frozen=True, slots=True)
class KV:
    """Keys and values of one layer, [B, S, K, D], as `_STORED` says; scales [B, S, K, 1] float32, or None."""

    k: Any
    v: Any
    k_scale: Any = None
    v_scale: Any = None


@partial(jax.tree_util.register_dataclass, data_fields=["layers", "positions"], meta_fields=["dtype"])
@dataclass(frozen=True, slots=True)
class Cache:
    """All layers; `positions` maps a number of slots to the positions [B, S] that layers of that many slots hold."""

    layers: tuple[KV, ...]
    positions: dict[int, Any]
    dtype: CacheDtype

    @staticmethod
    def create(shapes: Sequence[LayerShape], batch: int, length: int, dtype: CacheDtype = "bf16") -> "Cache":
        """An empty cache for `batch` sequences of up to `length` tokens."""
        layers = []
        for s in shapes:
            kv = (batch, s.slots(length), s.kv_heads, s.head_dim)
            scales = [jnp.zeros((*kv[:-1], 1), jnp.float32) if dtype in _LARGEST else None for _ in "kv"]
            layers.append(KV(jnp.zeros(kv, _STORED[dtype]), jnp.zeros(kv, _STORED[dtype]), *scales))
        counts = sorted({s.slots(length) for s in shapes})
        return Cache(tuple(layers), {n: jnp.full((batch, n), -1, jnp.int32) for n in counts}, dtype)

    def up_to(self, position: int) -> "Cache":
        """With what was remembered from `position` on forgotten; of a ring, what it held in those places is lost."""
        return replace(self, positions={n: jnp.where(at < position, at, -1) for n, at in self.positions.items()})

    def grown(self, length: int) -> "Cache":
        """What it holds in a cache for `length` tokens; of layers that all have a slot for every position."""
        [held] = self.positions

        def longer(a: Any, value: int = 0) -> Any:
            widths = [(0, 0), (0, length - held), *[(0, 0)] * (a.ndim - 2)]
            return jnp.pad(a, widths, constant_values=value)

        layers = jax.tree.map(longer, self.layers)
        return Cache(layers, {length: longer(self.positions[held], -1)}, self.dtype)

    @staticmethod
    def nbytes(shapes: Sequence[LayerShape], batch: int, length: int, dtype: CacheDtype) -> int:
        """What `create` takes, in bytes."""
        made = jax.eval_shape(lambda: Cache.create(shapes, batch, length, dtype))
        return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(made))


class CacheView:
    """The cache during one call of a model: layers show it their new keys, and get all they may attend to.

    Without a cache that is the new keys alone. `fresh` promises that the cache is empty, so that nothing is read back
    from it. Lives inside a trace; `cache` is what to keep afterwards, once every layer was here.
    """

    def __init__(self, cache: Cache | None, positions: Any, *, fresh: bool, segments: Any = None):
        """`positions` [B, T]: of the new tokens; -1 for padding. `segments` [B, T]: documents of theirs; no cache
        knows of any."""
        if cache is not None and segments is not None:
            raise ValueError("several documents in a row, and a cache, which holds one")
        self.positions, self.fresh, self.segments = positions, fresh, segments
        self._old = cache
        self._layers: list[KV] = []
        self._slot: dict[int, Any] = {}
        self._held: dict[int, Any] = {}
        if cache is not None:
            last = positions.max(axis=1, keepdims=True)
            for n, held in cache.positions.items():
                keep = (positions >= 0) & (positions > last - n)  # of a ring's new tokens only the last n
                slot = jnp.where(keep, positions % n, n)  # slot n is outside: dropped
                self._slot[n] = slot
                self._held[n] = _put(held, slot, positions)

    @property
    def live(self) -> Any:
        """Which of the new tokens are no padding, [B, T] bool."""
        return self.positions >= 0

    @property
    def cache(self) -> Cache | None:
        return None if self._old is None else replace(self._old, layers=tuple(self._layers), positions=self._held)

    def extend(self, layer: int, k: Any, v: Any, window: int | None) -> tuple[Any, Any, Any]:
        """Remember the new k and v, [B, T, K, D]; what to attend to: keys and values, as the cache holds them unless
        something has to be put beside them, and their positions."""
        if self._old is None:
            return k, v, self.positions
        old = self._old.layers[layer]
        n = old.k.shape[1]
        slot, stored = self._slot[n], self._old.dtype
        new_k, k_scale = _written(old.k, old.k_scale, slot, k, stored)
        new_v, v_scale = _written(old.v, old.v_scale, slot, v, stored)
        new = KV(new_k, new_v, k_scale, v_scale)
        self._layers.append(new)
        if self.fresh:
            return k, v, self.positions
        if k.shape[1] == 1 or n != window:  # no ring, or one whose oldest token is now out of sight
            return _held(new.k, k_scale, stored), _held(new.v, v_scale, stored), self._held[n]
        before = self._old.positions[n]
        return (
            jnp.concatenate([decoded(_held(old.k, old.k_scale, stored), k.dtype), k], axis=1),
            jnp.concatenate([decoded(_held(old.v, old.v_scale, stored), v.dtype), v], axis=1),
            jnp.concatenate([before, self.positions], axis=1),
        )


def _put(held: Any, slot: Any, new: Any) -> Any:
    """`held` [B, S, …] with `new` [B, T, …], of its dtype, at `slot` [B, T]; slots outside are dropped."""
    rows = jnp.arange(held.shape[0])[:, None]
    return held.at[rows, slot].set(new, mode="drop")


def _written(held: Any, scale: Any, slot: Any, new: Any, stored: CacheDtype) -> tuple[Any, Any]:
    if scale is None:
        return _put(held, slot, _bits(new, stored)), None
    largest = _LARGEST[stored]
    wide = new.astype(jnp.float32)
    step = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) / largest
    codes = wide / jnp.where(step == 0, 1.0, step)
    codes = jnp.clip(jnp.round(codes) if stored == "int8" else codes, -largest, largest)
    return _put(held, slot, _bits(codes, stored)), _put(scale, slot, step)


def _bits(values: Any, stored: CacheDtype) -> Any:
    """As the cache holds them."""
    if stored in _MEANT:
        return jax.lax.bitcast_convert_type(values.astype(_MEANT[stored]), _STORED[stored])
    return values.astype(_STORED[stored])


def _held(held: Any, scale: Any, stored: CacheDtype) -> Any:
    """An array or a QTensor of what lies in the cache; nothing moves."""
    if stored in _SCHEMES:
        return QTensor(held, scale, _SCHEMES[stored])
    return jax.lax.bitcast_convert_type(held, _MEANT[stored]) if stored in _MEANT else held
