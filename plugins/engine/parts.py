"""What a step of a model is made of: its ops, each measured with the arrays that a real step gives it.

A step runs once op by op, and what every op is called with is noted. Calls of one op with equal shapes are then one
program, with the weights of all layers one after another as a step has them, so that no cache holds what a step would
read from memory. Each waits for the one before, which may take a microsecond of its own; what it takes to start a
program with as many arrays is left out. What the whole step takes beyond the sum of its parts is everything between
them: residual sums, activations of dense layers, the cache, and what starting a kernel costs.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, dtype_name
from plugins.engine.options import Sampling
from plugins.engine.runtime import COMPILER_OPTIONS, Runtime
from plugins.engine.sampling import ends, likeliest, numbers
from plugins.engine.sizes import bucket
from plugins.models.common.ops import Ops

STEPS = 8  # of the whole, in one program
LEAST = 5  # calls whose median counts
WEIGHTED = {"matmul": (1,), "moe": (3, 5)}  # arguments that are read whole, or as far as experts are chosen
CHOSEN = 1  # argument of moe that says which


@dataclass(frozen=True)
class Group:
    """Calls of one op with equal shapes.

    Attributes:
        label: what it works on.
        calls: of each the argument lists that are given at once, and options.
        at_once: they are given to `together`.
    """

    op: str
    label: str
    at_once: bool
    calls: list[tuple[tuple[tuple[Any, ...], ...], dict[str, Any]]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Of weights that the calls read."""
        lists = [args for together, _ in self.calls for args in together]
        return sum(_read(self.op, args) for args in lists)


@dataclass(frozen=True)
class _Noted:
    """A kernel whose calls are kept."""

    op: str
    kernel: Any
    calls: list[Any] = field(compare=False)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls.append((self.op, (args,), options, False))
        return self.kernel(*args, **options)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        self.calls.append((self.op, calls, {}, True))
        return self.kernel.together(*calls)  # type: ignore[no-any-return]


def decoding(runtime: Runtime, ids: Sequence[int], seconds: float) -> dict[str, Any]:
    """The step that follows `ids`: what `measured` gives."""
    sampling = Sampling(max_tokens=1)
    cache = runtime.new_cache(1, len(ids) + STEPS)
    tokens, at = np.asarray([ids], np.int32), 0
    last = jnp.zeros((1, runtime.hidden), runtime.dtype)
    while at < len(ids):
        size = bucket(len(ids) - at)
        some = np.zeros((1, size), np.int32)
        here = tokens[:, at : at + size]
        some[:, : here.shape[1]] = here
        positions = np.where(np.arange(size) < here.shape[1], at + np.arange(size), -1)[None].astype(np.int32)
        pick = np.asarray([here.shape[1] - 1], np.int32)
        cache, last = runtime.prefill(cache, some, positions, pick, last, fresh=at == 0)
        at += here.shape[1]
    token, position = jnp.asarray(tokens[:, -1]), jnp.asarray([len(ids)], jnp.int32)
    groups = noted(runtime, token[:, None], position[:, None], cache, fresh=False)
    kept: list[Any] = [cache, jnp.zeros((1, 0), bool)]
    keys = jax.random.split(jax.random.key(0), 1)
    given, kind, never = numbers(sampling), sampling.kind, ends(())

    def steps() -> Any:
        """Always the same ones: what they put into the cache is what they find there."""
        cache, seen = kept
        kept[0], made, _, _, kept[1] = runtime.steps(STEPS, cache, token, position, seen, keys, given, kind, never)
        return made

    return measured(runtime, groups, lambda: _median(steps, seconds) / STEPS, seconds)


def reading(runtime: Runtime, ids: Sequence[int], seconds: float) -> dict[str, Any]:
    """The prompt `ids`, into an empty cache: what `measured` gives.

    Raises:
        ValueError: prompts of so many tokens are read in several programs.
    """
    if bucket(len(ids)) != len(ids):
        raise ValueError(f"a prompt of {len(ids)} tokens is read in parts; one of {bucket(len(ids))} is not")
    tokens = np.asarray([ids], np.int32)
    positions = np.arange(len(ids), dtype=np.int32)[None]
    pick = np.asarray([len(ids) - 1], np.int32)
    groups = noted(runtime, jnp.asarray(tokens), jnp.asarray(positions), runtime.new_cache(1, len(ids) + 1), fresh=True)
    seen, keys = jnp.zeros((1, 0), bool), jax.random.split(jax.random.key(0), 1)
    given, kind = numbers(Sampling()), Sampling().kind

    def once() -> float:
        cache = runtime.new_cache(1, len(ids) + 1)
        last = jnp.zeros((1, runtime.hidden), runtime.dtype)
        jax.block_until_ready((cache, last))  # type: ignore[no-untyped-call]
        start = time.perf_counter()
        _, last = runtime.prefill(cache, tokens, positions, pick, last, fresh=True)
        jax.block_until_ready(runtime.first(last, seen, keys, given, kind))  # type: ignore[no-untyped-call]
        return time.perf_counter() - start

    def whole() -> float:
        once()
        took = [once() for _ in range(LEAST)]
        while sum(took) < seconds:
            took.append(once())
        return statistics.median(took)

    return measured(runtime, groups, whole, seconds)


def noted(runtime: Runtime, tokens: Any, positions: Any, cache: Any, *, fresh: bool) -> list[Group]:
    """The calls of a step that runs op by op, on `tokens` [1, T]; then logits and choice after the last of them."""
    model = runtime.model()
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any], bool]] = []
    model.ops = Ops(*(_Noted(f.name, getattr(model.ops, f.name), calls) for f in fields(Ops)))  # type: ignore[arg-type]
    with jax.disable_jit():
        hidden, _ = model(tokens, positions, cache, fresh=fresh)
        logits = model.logits(hidden[:, -1])
    calls.append(("sample", ((logits,),), {}, False))
    groups: dict[Any, Group] = {}
    for op, together, options, at_once in calls:
        key = (op, at_once, *(_shape(leaf) for leaf in jax.tree.leaves((together, options))))
        if key not in groups:
            label, known = _label(op, together, options), [g.label for g in groups.values() if g.op == op]
            again = sum(label == other.partition(" (")[0] for other in known)
            groups[key] = Group(op, f"{label} ({again + 1})" if again else label, at_once)
        groups[key].calls.append((together, options))
    return list(groups.values())


def measured(runtime: Runtime, groups: Sequence[Group], whole: Callable[[], float], seconds: float) -> dict[str, Any]:
    """Seconds of a step, `whole`, and of its `parts`, each for `seconds`.

    Args:
        whole: measures it; asked last, as it gives away the cache that parts read.
    """
    kernels: dict[str, Callable[..., Any]] = {f.name: getattr(runtime.model().ops, f.name) for f in fields(Ops)}
    kernels["sample"] = likeliest
    parts = []
    for g in groups:
        run, start = _programs(runtime, kernels[g.op], g)
        took = max(0.0, _median(run, seconds) - _median(start, seconds))
        parts.append({"op": g.op, "label": g.label, "calls": len(g.calls), "nbytes": g.nbytes, "s": took})
    return {"parts": parts, "whole": whole()}


def _programs(runtime: Runtime, kernel: Any, group: Group) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """One program that makes all calls of a group, each when the one before is done, as in a step: XLA would make as
    many at once as it has threads. And one that is given as much, gives as many results, and does nothing: a
    microsecond or two for each of them, where a call may take no more."""
    leaves, tree = jax.tree.flatten(group.calls, is_leaf=lambda leaf: leaf is None)
    # By identity: what several calls are given is given once, as in a step.
    arrays = {id(leaf): leaf for leaf in leaves if _is_array(leaf)}

    def run(arrays: dict[int, Any]) -> list[Any]:
        calls = jax.tree.unflatten(tree, [arrays.get(id(leaf), leaf) for leaf in leaves])
        made: list[Any] = []
        for together, options in calls:
            x, last = together[0][0], jax.tree.leaves(made[-1:])
            waits = x + sum(leaf.ravel()[0].astype(jnp.float32) * 0 for leaf in last).astype(x.dtype) if last else x
            lists = [(waits if args[0] is x else args[0], *args[1:]) for args in together]
            made.append(kernel.together(*lists) if group.at_once else kernel(*lists[0], **options))
        return made

    options = COMPILER_OPTIONS.get(runtime.device.platform)
    program = jax.jit(run).lower(arrays).compile(compiler_options=options)
    count = len(jax.tree.leaves(program.out_info))
    nothing = jax.jit(lambda given: [jnp.negative(jnp.float32(i)) for i in range(count)], keep_unused=True)
    start = nothing.lower(arrays).compile(compiler_options=options)
    return lambda: program(arrays), lambda: start(arrays)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _median(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of a call; the first, which may compile, does not count."""
    jax.block_until_ready(call())  # type: ignore[no-untyped-call]
    took: list[float] = []
    while len(took) < LEAST or sum(took) < seconds:
        start = time.perf_counter()
        jax.block_until_ready(call())  # type: ignore[no-untyped-call]
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def _read(op: str, args: tuple[Any, ...]) -> int:
    """Bytes of weights that a call reads."""
    places = [args[i] for i in WEIGHTED.get(op, ())]
    weights = [w for place in places for w in (place if isinstance(place, tuple | list) else [place])]
    nbytes: int = sum(leaf.nbytes for w in weights for leaf in jax.tree.leaves(w))
    if op != "moe":
        return nbytes
    experts: int = weights[0].shape[0]
    return nbytes * len(np.unique(np.asarray(args[CHOSEN]))) // experts


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}{leaf.shape}" if _is_array(leaf) else repr(leaf)


def _label(op: str, together: Sequence[tuple[Any, ...]], options: dict[str, Any]) -> str:
    """What calls work on, in words."""
    first = together[0]
    if op == "matmul":
        return f"{first[1].shape[-1]} → {' + '.join(str(args[1].shape[-2]) for args in together)} {_format(first[1])}"
    if op == "embed":
        return f"{' × '.join(map(str, first[1].shape))} {_format(first[1])}"
    if op == "moe":
        experts, _, inside = first[5].shape
        return f"{experts} experts, {first[0].shape[-1]} → {inside} → {first[5].shape[-2]} {_format(first[5])}"
    if op == "attention":
        window = "" if options.get("window") is None else f", window {options['window']}"
        heads = f"{first[0].shape[-2]} heads of {first[0].shape[-1]} on {first[1].shape[-2]}"
        return f"{heads}, {first[1].shape[1]} slots{window}"
    return " × ".join(map(str, first[0].shape))


def _format(w: Any) -> str:
    return TensorSpec(tuple(w.shape), "BF16", w.scheme).encoding if isinstance(w, QTensor) else dtype_name(w.dtype)
