"""gpt-oss-20b as one GPU decodes it: how quick, by which kernels, and what share of its memory's bandwidth that is.

    python -m plugins.bench.decode_gpu --batch 1 32 --kernels mosaic_gpu

The weights are noise, made on the device, of the published shapes: no checkpoint is read, and time does not depend on
values, but for the experts that a router of noise chooses, which are counted. A step is a program of the engine's
runtime, and so is a prompt. Time is that between dispatching the first of many steps and the end of the last one, which
no step waits for; beside it stands the time in which kernels ran, by the profiler. Both are held against the bandwidth
of the datasheet, and of a copy that is measured in the same process.

Logits of the same weights with `xla` everywhere are compared at a few layers, and both with those of float32, which
says what bf16 rounds away.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline import meter
from pipeline.errors import ConfigError, WeightmillError, did_you_mean
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.bench.gpu import gpu
from plugins.bench.ops import on_device
from plugins.engine.load import parameters
from plugins.engine.runtime import Runtime
from plugins.engine.sampling import likeliest
from plugins.engine.sizes import MOST_STEPS
from plugins.models.common.cache import KV, Cache
from plugins.models.common.ops import Ops
from plugins.models.common.weights import Weights
from plugins.models.gpt_oss.family import GptOss

CONFIG: Final = GptOss.published / "openai" / "gpt-oss-20b.json"
DATASHEET: Final = {"H200": 4800.0, "H100": 3350.0, "A100": 2039.0}  # GB/s of HBM, of the SXM modules: NVIDIA
SCALES: Final = (118, 125)  # E8M0 codes of 2^-9 to 2^-3
SHOWN: Final = 8  # kernels, of those that take longest
COMPARED: Final = 256  # tokens of a prompt whose logits are compared
PACKED: Final = ("gate_up_proj", "down_proj")
PLAIN: Final = "xla"
GREEDY: Final = (True, False, False)  # see `plugins.engine.sampling.choose`
BF16_ROUNDING: Final = 2.0**-9  # at most, of a value; half of the distance between two of them


@dataclass(eq=False)
class Experts:
    """The op `moe`, and what the router chose in each layer of the trace that is going on."""

    kernel: Kernel
    chosen: list[Any] = field(default_factory=list)

    def __call__(self, x: Any, chosen: Any, *args: Any, **options: Any) -> Any:
        self.chosen.append(chosen)
        return self.kernel(x, chosen, *args, **options)

    def taken(self, layers: int) -> Any:
        """Those of the last pass, [layers, N, k]."""
        found, self.chosen = self.chosen[-layers:], []
        return jnp.stack(found)


def backends(given: Sequence[str]) -> dict[str, str]:
    """By op. A name alone is that of the kernels of moe and attention; the rest is XLA's.

    Raises:
        ConfigError: there is no such op.
    """
    known = [f.name for f in fields(Ops)]
    found = dict.fromkeys(known, PLAIN)
    for word in given:
        op, _, name = word.rpartition("=")
        if op and op not in known:
            raise ConfigError(f"--kernels: there is no op {op!r}{did_you_mean(op, known)}")
        found |= {op: name} if op else dict.fromkeys(("moe", "attention"), name)
    return found


def ops(named: Mapping[str, str], platform: str) -> Ops:
    """Each op with its backend, or XLA's where that one declines; what ran is counted."""
    kernels = {op: Kernel(op, tuple(dict.fromkeys((name, PLAIN))), platform) for op, name in named.items()}
    return Ops(**{**kernels, "moe": Experts(kernels["moe"])})  # type: ignore[arg-type]


def config(layers: int | None, **changed: int) -> dict[str, Any]:
    """That of gpt-oss-20b.

    Args:
        layers: the first ones only.
        changed: other sizes, for tests.
    """
    found: dict[str, Any] = {**json.loads(CONFIG.read_text()), **changed}
    layers = layers or found["num_hidden_layers"]
    return {**found, "num_hidden_layers": layers, "layer_types": found["layer_types"][:layers]}


def specs(config: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Tensors as the published checkpoint stores them: experts in MXFP4, everything else in bfloat16."""
    return {
        name: TensorSpec(p.shape, "BF16", MXFP4 if name.endswith(PACKED) else None)
        for p in GptOss().parameters(config) for name in p.names
    }  # fmt: skip


def model(config: Mapping[str, Any], of: Ops, dtype: str = "bfloat16") -> Any:
    """Its shapes, without weights."""
    weights = Weights(specs(config))
    built = GptOss().build(config, weights, of, dtype)
    weights.check()
    return built


@partial(jax.jit, static_argnums=(1, 2, 3))
def _normal(key: Any, shape: tuple[int, ...], scale: float, mean: float) -> Any:
    return (mean + scale * jax.random.normal(key, shape, jnp.bfloat16)).astype(jnp.bfloat16)


@partial(jax.jit, static_argnums=1)
def _bytes(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.bits(key, shape, jnp.uint8)


@partial(jax.jit, static_argnums=1)
def _scales(key: Any, shape: tuple[int, ...]) -> Any:
    return jax.random.randint(key, shape, *SCALES).astype(jnp.uint8)


def noise(built: Any, seed: int = 0) -> None:
    """Weights of a model, of sizes that keep activations about 1, on the default device."""
    for i, param in enumerate(parameters(built)):
        key = jax.random.fold_in(jax.random.key(seed, impl="rbg"), i)  # not threefry: 13 GB of it take long
        spec, [name, *_] = param.spec, param.names
        if spec.scheme is not None:
            shapes = spec.scheme.components(spec.shape)
            first, second = jax.random.split(key)
            param.set_value(QTensor(_bytes(first, shapes["codes"]), _scales(second, shapes["scales"]), spec.scheme))
        elif name.endswith("norm.weight"):
            param.set_value(jnp.ones(spec.shape, jnp.bfloat16))
        elif len(spec.shape) == 1 or name.endswith("bias"):  # biases and sinks
            param.set_value(_normal(key, spec.shape, 0.1, 0.0))
        else:
            wide = 1.0 if "embed_tokens" in name else spec.shape[-1] ** -0.5
            param.set_value(_normal(key, spec.shape, wide, 0.0))


def filled(runtime: Runtime, batch: int, held: int, capacity: int, seed: int = 1) -> Cache:
    """A cache of noise in which every sequence has `held` tokens."""
    cache = runtime.new_cache(batch, capacity)
    key = jax.random.key(seed, impl="rbg")
    layers = []
    for i, layer in enumerate(cache.layers):
        k, v = (
            jax.lax.bitcast_convert_type(_normal(jax.random.fold_in(key, 2 * i + j), layer.k.shape, 1.0, 0.0), a.dtype)
            for j, a in enumerate((layer.k, layer.v))
        )
        layers.append(KV(k, v))
    at = {}
    for slots in cache.positions:
        held_by = np.arange(max(0, held - slots), held, dtype=np.int32)
        row = np.full(slots, -1, np.int32)
        row[held_by % slots] = held_by
        at[slots] = jnp.broadcast_to(jnp.asarray(row), (batch, slots))
    return replace(cache, layers=tuple(layers), positions=at)


def step(built: Any, cache: Any, token: Any, position: Any, *, layers: int) -> Any:
    """One token of every sequence: the cache with it, the next ones, their positions, and the experts of each layer."""
    hidden, cache = built(token[:, None], position[:, None], cache, fresh=False)
    token = likeliest(built.logits(hidden[:, 0]))
    return cache, (token, position + 1, built.ops.moe.taken(layers))


def with_logits(built: Any, cache: Any, token: Any, position: Any, *, layers: int) -> Any:
    """Logits of one more token of every sequence, and the experts of each layer."""
    hidden, _ = built(token[:, None], position[:, None], cache, fresh=False)
    return built.logits(hidden[:, 0]), built.ops.moe.taken(layers)


def of_prompt(built: Any, tokens: Any, positions: Any, *, layers: int) -> Any:
    """Logits of every token of prompts, [B T, V], and the experts of each layer."""
    hidden, _ = built(tokens, positions)
    logits = built.logits(hidden)
    return logits.reshape(-1, logits.shape[-1]), built.ops.moe.taken(layers)


@dataclass(frozen=True)
class Read:
    """Bytes that a step reads at the least.

    Attributes:
        dense: of weights that every token is multiplied by, the head among them.
        experts: of those that are chosen.
        cache: of keys and values that are in sight.
        used: experts of a layer that are read, on average.
    """

    dense: float
    experts: float
    cache: float
    used: float

    @property
    def all(self) -> float:
        return self.dense + self.experts + self.cache


def read(built: Any, batch: int, held: int, chosen: Any) -> Read:
    """
    Args:
        held: tokens that a sequence has.
        chosen: [layers, B, k].
    """
    experts, used = 0.0, [len(np.unique(layer)) for layer in np.asarray(chosen)]
    dense = 0.0
    for param in parameters(built):
        spec, [name, *_] = param.spec, param.names
        if "embed_tokens" in name:
            dense += batch * spec.shape[1] * 2  # rows that are looked up
        elif ".experts." in name:
            layer = int(name.split(".layers.")[1].split(".")[0])
            experts += spec.nbytes / spec.shape[0] * used[layer]
        else:
            dense += spec.nbytes
    sight = sum(min(held, s.window or held) * s.kv_heads * s.head_dim * 2 * 2 for s in built.cache_shapes)
    return Read(dense, experts, float(batch * sight), float(np.mean(used)))


@dataclass(frozen=True)
class Speed:
    """Attributes:
    seconds: of a step, or of a prompt, by the host's clock, without waiting between them.
    took: the same by the profiler.
    """

    seconds: float
    took: on_device.Took


def decode(runtime: Runtime, batch: int, held: int, capacity: int, steps: int) -> tuple[Speed, Any]:
    """`steps` tokens of every sequence, a program each, twice; and the experts that the last one chose."""
    if capacity < held + 2 * steps + 2:
        raise ConfigError(f"--capacity {capacity}: {held + 2 * steps + 2} tokens come into the cache")
    layers = len(runtime.cache_shapes)
    fn = partial(step, layers=layers)
    state = [filled(runtime, batch, held, capacity), *_begin(runtime, batch, held)]
    chosen: Any = None

    def dispatch(_: int) -> Any:
        nonlocal chosen
        state[0], (state[1], state[2], chosen) = runtime.call("decode", fn, *state, donate=(0,))
        return state[1]

    return _speed(dispatch, steps), chosen


def engines(runtime: Runtime, batch: int, held: int, capacity: int, programs: int) -> Speed:
    """The engine's own programs, of `MOST_STEPS` tokens each: a loop on the device. A token counts."""
    token, position = _begin(runtime, batch, held)
    cache, seen = filled(runtime, batch, held, capacity), jnp.zeros((batch, 0), bool)
    keys = jax.random.split(jax.random.key(0), batch)
    numbers: dict[str, Any] = {}
    state: list[Any] = [cache, token, position, seen]

    def dispatch(_: int) -> Any:
        cache, token, position, seen = state
        cache, made, *rest = runtime.steps(MOST_STEPS, cache, token, position, seen, keys, numbers, GREEDY)
        state[:] = [cache, *rest]
        return made

    found = _speed(dispatch, programs)
    took = found.took
    by_name = {name: s / MOST_STEPS for name, s in took.kernels.items()}
    each = replace(took, seconds=took.seconds / MOST_STEPS, wall=took.wall / MOST_STEPS, kernels=by_name)
    return Speed(found.seconds / MOST_STEPS, each)


def prefill(runtime: Runtime, tokens: int, repeats: int) -> Speed:
    """One prompt into an empty cache."""
    ids = jnp.asarray(np.random.default_rng(0).integers(runtime.vocab, size=(1, tokens)), jnp.int32)
    positions, pick = jnp.arange(tokens, dtype=jnp.int32)[None], jnp.asarray([tokens - 1], jnp.int32)
    last = jnp.zeros((1, runtime.hidden), jnp.dtype(runtime.dtype))
    state: list[Any] = [runtime.new_cache(1, tokens), last]

    def dispatch(_: int) -> Any:
        state[:] = runtime.prefill(state[0], ids, positions, pick, state[1], fresh=True)
        return state[1]

    return _speed(dispatch, repeats)


def _begin(runtime: Runtime, batch: int, held: int) -> tuple[Any, Any]:
    token = jnp.asarray(np.random.default_rng(2).integers(runtime.vocab, size=batch), jnp.int32)
    return token, jnp.full(batch, held, jnp.int32)


def _speed(dispatch: Callable[[int], Any], count: int) -> Speed:
    """Of `count` calls by the clock, and of as many by the profiler, after two that compile and warm up."""
    for i in range(2):
        jax.block_until_ready(dispatch(i))  # type: ignore[no-untyped-call]
    wall = _clock(dispatch, count)
    with on_device.profiled() as found:
        _clock(dispatch, count)
    return Speed(wall, on_device.judged(found, wall, count))


def _clock(dispatch: Callable[[int], Any], count: int) -> float:
    start, result = time.perf_counter(), None
    for i in range(count):
        result = dispatch(i)
    jax.block_until_ready(result)  # type: ignore[no-untyped-call]
    return (time.perf_counter() - start) / count


@dataclass(frozen=True)
class Apart:
    """How far logits are from others, over the tokens of one call.

    Attributes:
        largest: difference.
        rms: of differences.
        spread: standard deviation of the others.
        same: share of tokens whose likeliest next one is the same.
        other_experts: tokens that another expert was chosen for in some layer: a rounding turned the router's choice.
        largest_else, rms_else: of the tokens of which that is not so.
    """

    largest: float
    rms: float
    spread: float
    same: float
    other_experts: int
    tokens: int
    largest_else: float
    rms_else: float


@jax.jit
def _differences(a: Any, b: Any) -> Any:
    off = jnp.abs(a - b)
    same = jnp.argmax(a, -1) == jnp.argmax(b, -1)
    return jnp.max(off, -1), jnp.mean(jnp.square(off), -1), same, jnp.std(b)


def apart(found: tuple[Any, Any], other: tuple[Any, Any]) -> Apart:
    """
    Args:
        found, other: logits [N, V] and experts [layers, N, k].
    """
    most, squares, same, spread = map(np.asarray, _differences(found[0], other[0]))
    ours, theirs = (np.sort(np.asarray(experts), axis=-1) for experts in (found[1], other[1]))
    turned = (ours != theirs).any(axis=(0, 2))
    rest = ~turned
    return Apart(
        float(most.max()), math.sqrt(float(squares.mean())), float(spread), float(same.mean()), int(turned.sum()),
        len(turned), float(most[rest].max(initial=0.0)), math.sqrt(float(squares[rest].mean())) if rest.any() else 0.0,
    )  # fmt: skip


def compared(
    config: Mapping[str, Any], named: Mapping[str, str], device: Any, batch: int, held: int, capacity: int, tokens: int
) -> Iterator[tuple[str, Apart, Apart, Apart]]:
    """Of a step and of a prompt: the kernels and XLA's, and each and float32, from the same weights and cache."""
    layers = config["num_hidden_layers"]
    plain = dict.fromkeys(named, PLAIN)
    of = {
        "kernels": (named, "bfloat16"), "xla": (plain, "bfloat16"), "float32": (plain, "float32")
    }  # fmt: skip
    weights: Any = None
    found: dict[str, dict[str, tuple[Any, Any]]] = {"step": {}, "prompt": {}}
    for name, (kernels, dtype) in of.items():
        built = model(config, ops(kernels, device.platform), dtype)
        if weights is None:
            noise(built)
            weights = jax.tree.leaves(nnx.split(built)[1])
        else:
            graph, state = nnx.split(built)
            built = nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(state), weights))
        runtime = Runtime(built, config, "bf16", device, 0.0)
        cache = filled(runtime, batch, held, capacity)
        ids = jnp.asarray(np.random.default_rng(3).integers(runtime.vocab, size=(1, tokens)), jnp.int32)
        positions = jnp.arange(tokens, dtype=jnp.int32)[None]
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            begin = _begin(runtime, batch, held)
            found["step"][name] = runtime.call("logits", partial(with_logits, layers=layers), cache, *begin)
            found["prompt"][name] = runtime.call("prompt", partial(of_prompt, layers=layers), ids, positions)
    for what, these in found.items():
        pairs = (("kernels", "xla"), ("kernels", "float32"), ("xla", "float32"))
        ours, known, theirs = (apart(these[a], these[b]) for a, b in pairs)
        yield f"{what}, {batch if what == 'step' else tokens} tokens", ours, known, theirs


def said(what: str, ours: Apart, known: Apart, theirs: Apart) -> str:
    def one(a: Apart) -> str:
        return f"{a.largest:.4f} at most, {a.rms:.2e} rms"

    return (
        f"logits of a {what}: spread {ours.spread:.3f}; kernels and xla {one(ours)} ({ours.largest_else:.4f}, "
        f"{ours.rms_else:.2e} without {ours.other_experts} of {ours.tokens} tokens that had other experts), the same "
        f"next token after {ours.same:.1%}; from float32: kernels {one(known)} (other experts {known.other_experts}), "
        f"xla {one(theirs)} (other experts {theirs.other_experts}); a bf16 value is rounded by {BF16_ROUNDING:.1e} of "
        f"itself, the largest logit by {BF16_ROUNDING * 5 * ours.spread:.4f}"
    )


def shown(took: on_device.Took) -> str:
    """Where the time goes, by kernel."""
    first = list(took.kernels.items())
    rest = sum(seconds for _, seconds in first[SHOWN:])
    said = [f"{name[:40]} {1e6 * seconds:.1f}" for name, seconds in first[:SHOWN]]
    return ", ".join([*said, *([f"{len(first) - SHOWN} others {1e6 * rest:.1f}"] if first[SHOWN:] else [])])


def datasheet(device: Any) -> tuple[str, float]:
    """The name and bandwidth, GB/s, of a GPU that is known; of another nothing."""
    return next(((name, rate) for name, rate in DATASHEET.items() if name in device.device_kind), ("", 0.0))


def report(
    args: argparse.Namespace, say: Callable[[str], None], changed: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """Measure, and say what was found as it comes; all of it, as JSON holds it."""
    began, device = time.perf_counter(), jax.devices()[0]
    named, full = backends(args.kernels), config(args.layers, **(changed or {}))
    known, sheet = datasheet(device)
    none: dict[str, Any] = {"read": 0.0, "multiply_add": 0.0, "device": {}}
    limit = on_device.limits() if on_device.is_gpu() else none
    about = {"name": device.device_kind, "jax": jax.__version__, **limit["device"]}
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    say(f"copy {limit['read'] / 1e9:.0f} GB/s, bf16 product {limit['multiply_add'] / 1e12:.0f} TFLOP/s")
    rows: list[dict[str, Any]] = []
    with meter.metered() as counted:
        built = model(full, ops(named, device.platform))
        noise(built)
        jax.block_until_ready([p.get_value() for p in parameters(built)])  # type: ignore[no-untyped-call]
        runtime = Runtime(built, full, "bf16", device, time.perf_counter() - began)
        say(f"[{runtime.load_s:.0f} s] {len(built.cache_shapes)} layers, {runtime.device_nbytes / 1e9:.2f} GB")
        for batch in args.batch:
            speed, chosen = decode(runtime, batch, args.held, args.capacity, args.steps)
            of = read(built, batch, args.held, chosen)
            ways = {"step": speed}
            if args.engine:
                programs = max(2, args.steps // MOST_STEPS)
                ways["engine"] = engines(runtime, batch, args.held, args.capacity, programs)
            for way, found in ways.items():
                row = {
                    "batch": batch, "program": way, "seconds": found.seconds, "kernels_s": found.took.seconds,
                    "how": found.took.how, "tokens": batch / found.seconds, "nbytes": of.all, "dense": of.dense,
                    "experts": of.experts, "cache": of.cache, "used": of.used, "by_name": dict(found.took.kernels),
                }  # fmt: skip
                rows.append(row)
                say(f"[{time.perf_counter() - began:.0f} s] {_row(row, sheet, known, limit['read'] / 1e9)}")
                say(f"    µs of a step: {shown(found.took)}")
        if args.prefill:
            one = prefill(runtime, args.prefill, 4)
            rows.append({
                "prefill": args.prefill, "seconds": one.seconds, "kernels_s": one.took.seconds, "how": one.took.how,
                "tokens": args.prefill / one.seconds, "by_name": dict(one.took.kernels),
            })  # fmt: skip
            say(
                f"[{time.perf_counter() - began:.0f} s] prompt of {args.prefill} tokens: {1e3 * one.seconds:.2f} ms, "
                f"{args.prefill / one.seconds:,.0f} tokens/s, kernels {1e3 * one.took.seconds:.2f} ms"
            )
            say(f"    µs of a prompt: {shown(one.took)}")
        say(f"compiling took {runtime.compile_s:.0f} s; ran: {_ran(counted)}")
    del runtime, built
    small, parts = config(args.compare, **(changed or {})), []
    if args.compare:
        for what, *three in compared(
            small, named, device, max(args.batch), args.held, args.capacity, min(COMPARED, args.held)
        ):
            say(f"[{time.perf_counter() - began:.0f} s] {args.compare} layers, {said(what, *three)}")
            pairs = zip(("kernels_xla", "kernels_f32", "xla_f32"), map(vars, three), strict=True)
            parts.append({"what": what, **dict(pairs)})
    return {"device": about, "limits": limit, "datasheet": sheet, "kernels": named, "rows": rows, "logits": parts}


def _row(row: Mapping[str, Any], sheet: float, known: str, copy: float) -> str:
    def rate(seconds: float) -> str:
        found = row["nbytes"] / seconds / 1e9
        of = f", {found / sheet:.1%} of {known}'s {sheet:.0f}" if sheet else ""
        return f"{found:.0f} GB/s{of}" + (f", {found / copy:.1%} of a copy's {copy:.0f}" if copy else "")

    return (
        f"batch {row['batch']}, {row['program']}: {row['tokens']:,.1f} tokens/s, {1e3 * row['seconds']:.3f} ms a step, "
        f"{row['nbytes'] / 1e9:.3f} GB (dense {row['dense'] / 1e9:.3f}, experts {row['experts'] / 1e9:.3f}: "
        f"{row['used']:.1f} of a layer, cache {row['cache'] / 1e9:.3f}), {rate(row['seconds'])}; kernels alone "
        f"{1e3 * row['kernels_s']:.3f} ms: {rate(row['kernels_s'])} ({row['how']})"
    )


def _ran(counted: meter.Meter) -> str:
    """Which backends ran each op, and what was declined."""
    record = counted.record()
    return json.dumps({key: record[key] for key in ("backends", "declined")}, ensure_ascii=False)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--batch", type=int, nargs="+", default=[1, 32], help="sequences at once")
    found.add_argument(
        "--kernels", nargs="+", default=["mosaic_gpu"], metavar="[OP=]NAME",
        help="a backend of one op, or of moe and attention; all others are xla",
    )  # fmt: skip
    found.add_argument("--layers", type=int, help="the first ones only (default: all 24)")
    found.add_argument("--held", type=int, default=1024, help="tokens in the cache of every sequence")
    found.add_argument("--capacity", type=int, default=2048, help="of the cache")
    found.add_argument("--steps", type=int, default=32, help="that are timed, twice")
    found.add_argument("--prefill", type=int, default=1024, help="tokens of a prompt; 0: none")
    found.add_argument("--compare", type=int, default=2, help="layers whose logits are compared; 0: none are")
    found.add_argument("--engine", action="store_true", help=f"the engine's programs of {MOST_STEPS} steps too")
    found.add_argument("--out", type=Path, help="a JSON file for all that was found")
    return found


def main(words: Sequence[str] | None = None) -> int:
    args = parser().parse_args(words)
    try:
        if args.layers is None:
            gpu()  # all of it is 14 GB, and a CPU's figures of it are those of `plugins.bench.engine`
        found = report(args, lambda line: print(line, file=sys.stdout, flush=True))
    except WeightmillError as why:
        print(why, file=sys.stderr)
        return why.exit_code
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
