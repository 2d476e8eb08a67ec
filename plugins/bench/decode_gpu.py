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
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from pipeline import meter
from pipeline.errors import ConfigError, WeightmillError
from plugins.bench import logits_apart, of_noise
from plugins.bench.gpu import gpu
from plugins.bench.of_noise import begin, filled
from plugins.bench.ops import on_device
from plugins.engine.load import parameters
from plugins.engine.runtime import Runtime
from plugins.engine.sampling import ends
from plugins.engine.sizes import MOST_STEPS

DATASHEET: Final = {"H200": 4800.0, "H100": 3350.0, "A100": 2039.0}  # GB/s of HBM, of the SXM modules: NVIDIA
SHOWN: Final = 8  # kernels, of those that take longest
COMPARED: Final = 256  # tokens of a prompt whose logits are compared
GREEDY: Final = (True, False, False)  # see `plugins.engine.sampling.choose`


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
    fn = partial(of_noise.step, layers=layers)
    state = [filled(runtime, batch, held, capacity), *begin(runtime, batch, held)]
    chosen: Any = None

    def dispatch(_: int) -> Any:
        nonlocal chosen
        state[0], (state[1], state[2], chosen) = runtime.call("decode", fn, *state, donate=(0,))
        return state[1]

    return _speed(dispatch, steps), chosen


def engines(runtime: Runtime, batch: int, held: int, capacity: int, programs: int) -> Speed:
    """The engine's own programs, of `MOST_STEPS` tokens each: a loop on the device. A token counts."""
    token, position = begin(runtime, batch, held)
    cache, seen = filled(runtime, batch, held, capacity), jnp.zeros((batch, 0), bool)
    keys = jax.random.split(jax.random.key(0), batch)
    numbers: dict[str, Any] = {}
    never = ends(())
    state: list[Any] = [cache, token, position, seen]

    def dispatch(_: int) -> Any:
        cache, token, position, seen = state
        cache, made, *rest = runtime.steps(MOST_STEPS, cache, token, position, seen, keys, numbers, GREEDY, never)
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
    named, full = of_noise.backends(args.kernels), of_noise.config(args.layers, **(changed or {}))
    known, sheet = datasheet(device)
    none: dict[str, Any] = {"read": 0.0, "multiply_add": 0.0, "device": {}}
    limit = on_device.limits() if on_device.is_gpu() else none
    about = {"name": device.device_kind, "jax": jax.__version__, **limit["device"]}
    say(", ".join(f"{key} {value}" for key, value in about.items()))
    say(f"copy {limit['read'] / 1e9:.0f} GB/s, bf16 product {limit['multiply_add'] / 1e12:.0f} TFLOP/s")
    rows: list[dict[str, Any]] = []
    with meter.metered() as counted:
        built = of_noise.model(full, of_noise.ops(named, device))
        of_noise.noise(built)
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
    small, parts = of_noise.config(args.compare, **(changed or {})), []
    if args.compare:
        for what, *three in logits_apart.compared(
            small, named, device, max(args.batch), args.held, args.capacity, min(COMPARED, args.held)
        ):
            say(f"[{time.perf_counter() - began:.0f} s] {args.compare} layers, {logits_apart.said(what, *three)}")
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
