"""Reconstruction, block after block: see `plugins.train.reconstruct`.

Hidden states before a block lie on disk, those of the unquantized model and those of the quantized one, and so does
what was learned of each block: whoever is killed goes on with the block that was not finished, with equal bytes.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pipeline import gained, meter
from pipeline.arrays import save
from pipeline.errors import ConfigError
from pipeline.learned import REPORT, arrays_of
from pipeline.running import text_stream
from pipeline.running.progress import Progress
from pipeline.stage import Checkpoint
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.stats import Gain
from plugins.engine.engine import Engine
from plugins.engine.load import fill, parameters
from plugins.engine.start import resolved
from plugins.models.common.cache import CacheView
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from plugins.train.levels import Levels, coded_as, decoded, fixed_of
from plugins.train.reconstruct import SCALES, Reconstruction

STEM = "blocks"
LEAST, MOST = -0.9, 1.0  # that factors on scales differ from 1
Run = Callable[[Any, Any], Any]


def reconstruct(
    how: Reconstruction, engine: Engine, checkpoint: Checkpoint, coded: Checkpoint, rows: Sequence[Sequence[int]],
    batch: int, folder: Path, seed: int,
) -> None:  # fmt: skip
    """Write `blocks.N.npz` into `folder` for each block; see `pipeline.learned.Learned`.

    Args:
        checkpoint: unquantized.
        coded: the same quantized, as it begins.
        rows: of equal length.
        batch: rows that go through a block at once.
        folder: may hold what an earlier call with equal arguments had finished.
    """
    if engine.mesh.size > 1:
        raise ConfigError("calibrate.reconstruct runs on one device, and the engine has several; mesh=single")
    device, _, _ = resolved(engine)
    specs = {n: TensorSpec(s.shape, "F32") for n, s in checkpoint.store.specs.items()}
    weights = Weights(specs, "f32")
    ops = engine.ops.named().on(device.platform)
    model: Decoder = family_of(checkpoint.config, engine.families).build(checkpoint.config, weights, ops, "float32")
    weights.check(checkpoint.config)
    load = partial(fill, where=device, cast=engine.cast, unpack=engine.unpack)
    tokens = np.asarray(rows, np.int32)
    kept_out = max(1, round(how.held_out * len(tokens)))
    if kept_out >= len(tokens):
        text = f"{len(tokens)} row of the text is too few to learn of some and judge by others"
        raise ConfigError(f"calibrate.reconstruct: {text}; calibrate.windows.tokens has more")
    if how.batch > (most := len(tokens) - kept_out):
        text = f"at most {most}, the rows of the texts that held_out={how.held_out:g} leaves, are allowed"
        raise ConfigError(f"calibrate.reconstruct.batch={how.batch}: {text}")
    blocks = list(model.layers)
    done = next((i for i in range(len(blocks)) if not _learned(folder, i).is_file()), len(blocks))
    if done:
        text_stream.write(f"reconstruct: going on after block {done} of {len(blocks)}\n")
    going = Progress("reconstructing", len(blocks) * how.updates, "updates", done=done * how.updates)
    if done == 0:
        _save(_hidden(folder, 0, "was"), _embedded(model, checkpoint, load, tokens, batch))
        _save(_hidden(folder, 0, "is"), _embedded(model, coded, load, tokens, batch))
    for i in range(done, len(blocks)):
        was, now = (np.load(_hidden(folder, i, which), mmap_mode="r") for which in ("was", "is"))
        block = _Block(model, blocks[i], i, batch)
        shapes = [(p, p.get_value()) for p in parameters(blocks[i])]
        load(blocks[i], checkpoint)
        values = block.values(blocks[i])
        wanted = block.all(values, was)
        parts = _parts(blocks[i], values, coded, checkpoint)
        mine = {name for of in parts.values() for name in of.names}
        if plain := [n for p in parameters(blocks[i]) for n in p.names if n not in mine]:
            load(blocks[i], coded, only=plain)
        values = block.values(blocks[i])
        for param, nothing in shapes:
            param.set_value(nothing)
        found, said = _learn(how, block, parts, values, now, wanted, kept_out, [seed, i], going)
        decoded = {k: of.whole([jnp.asarray(engine.unpack(q, "F32")) for q in found[k]]) for k, of in parts.items()}
        after = block.all({**values, **decoded}, now)
        arrays: dict[str, Any] = {f"{STEM}.{i}/{REPORT}": json.dumps(said)}
        for key, of in parts.items():
            for name, w, q, gain in zip(of.names, of.were, found[key], of.gains, strict=True):
                arrays |= arrays_of(name, q, _with(gain, checkpoint, name, w, engine.unpack(q, "F32")))
        _save(_hidden(folder, i + 1, "was"), wanted)
        _save(_hidden(folder, i + 1, "is"), after)
        save(_learned(folder, i), arrays)
        for which in ("was", "is"):
            _hidden(folder, i, which).unlink()
    for which in ("was", "is"):
        _hidden(folder, len(blocks), which).unlink(missing_ok=True)


def _learned(folder: Path, block: int) -> Path:
    return folder / f"{STEM}.{block}.npz"


def _hidden(folder: Path, block: int, which: str) -> Path:
    """What `block` is given, fp32 [rows, T, D], of the model as it `was`, and as it `is` quantized."""
    return folder / f"hidden.{block}.{which}.npy"


def _save(path: Path, array: Any) -> None:
    save(path, array)
    meter.on_disk(sum(p.stat().st_size for p in path.parent.glob("hidden.*.npy")))


def _embedded(model: Decoder, checkpoint: Checkpoint, load: Callable[..., None], tokens: Any, batch: int) -> Any:
    holder, empty = nnx.List([model.embed_tokens]), model.embed_tokens.get_value()
    load(holder, checkpoint)
    leaf = model.embed_tokens.get_value()
    model.embed_tokens.set_value(empty)

    @jax.jit
    def embed(leaf: Any, part: Any) -> Any:
        x = model.ops.embed(part, leaf, dtype=jnp.float32)
        return x if model.embed_scale is None else x * jnp.asarray(model.embed_scale, x.dtype)

    return np.concatenate([np.asarray(embed(leaf, tokens[at : at + batch])) for at in range(0, len(tokens), batch)])


class _Block:
    """One block as a function of its parameters, which are known by the first of their names."""

    def __init__(self, model: Decoder, block: Any, layer: int, batch: int):
        graph, state = nnx.split(block)
        tree, ops = jax.tree.structure(state), model.ops
        shapes = jax.tree.leaves(state)

        def run(values: Mapping[str, Any], x: Any) -> Any:
            own: Any = nnx.merge(graph, jax.tree.unflatten(tree, shapes))
            for p in parameters(own):
                p.set_value(values[p.names[0]])
            positions = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32), x.shape[:2])
            return own(x, layer, CacheView(None, positions, fresh=True), ops)

        self.run, self._layer, self._batch = run, layer, batch
        self._compiled = jax.jit(run)

    @staticmethod
    def values(block: Any) -> dict[str, Any]:
        return {p.names[0]: p.get_value() for p in parameters(block)}

    def all(self, values: Mapping[str, Any], x: Any) -> Any:
        """What it gives of all rows, fp32 [rows, T, D]."""
        parts = range(0, len(x), self._batch)
        return np.concatenate([np.asarray(self._compiled(values, jnp.asarray(x[i : i + self._batch]))) for i in parts])


@dataclass
class _Part:
    """A parameter that is learned: one tensor, or a stack of several.

    Attributes:
        names: of the tensors.
        stack: there are several.
        were: their values, fp32.
        starts: as they begin.
        gains: what was lost of outputs so far, where that was measured.
        fixed: what does not change, of each: see `levels.fixed_of`.
    """

    names: tuple[str, ...]
    stack: bool
    were: list[Any]
    starts: list[QTensor]
    gains: list[Gain | None]
    fixed: list[dict[str, Any]]

    def whole(self, each: Sequence[Any]) -> Any:
        return jnp.stack(each) if self.stack else each[0]


def _parts(block: Any, values: Mapping[str, Any], coded: Checkpoint, checkpoint: Checkpoint) -> dict[str, _Part]:
    """First name → the parameter, of those whose tensors are quantized."""
    found = {}
    for p in parameters(block):
        packed = [n for n in p.names if coded.store.specs[n].scheme is not None]
        if not packed or any(checkpoint.store.specs[n].scheme == coded.store.specs[n].scheme for n in packed):
            continue  # bit for bit as it came
        if len(packed) < len(p.names):
            raise ConfigError(
                f"calibrate.reconstruct: {p.names[0]} and {len(p.names) - 1} others are computed with as one, and of "
                f"these {len(packed)} are quantized; rules that take all of them or none"
            )
        whole = np.asarray(values[p.names[0]])
        part = _Part(p.names, p.stack, list(whole) if p.stack else [whole], [], [], [])
        for name, w in zip(p.names, part.were, strict=True):
            with meter.metered() as of:  # what was lost is said by whoever reads what was learned
                q = coded.store.read(name)
            part.starts.append(q)
            part.gains.append(of.gains.get(name))
            part.fixed.append(fixed_of(w, q))
        found[p.names[0]] = part
    return found


def _with(gain: Gain | None, checkpoint: Checkpoint, name: str, w: Any, after: Any) -> Gain | None:
    """What was lost step by step, and after the last one."""
    if gain is None:
        return None
    known = None if checkpoint.statistics is None else checkpoint.statistics.of(name)
    if known is not None and gain.by == "squares":
        known = replace(known, hessian=None)
    last = gained.gain([("reconstruct", np.asarray(after))], w, known)
    return Gain(gain.by, gain.signal, {**gain.lost, **last.lost})


def _learn(
    how: Reconstruction, block: _Block, parts: Mapping[str, _Part], values: Mapping[str, Any], x: Any, wanted: Any,
    kept_out: int, seed: Sequence[int], going: Progress,
) -> tuple[dict[str, list[QTensor]], dict[str, Any]]:  # fmt: skip
    """What the tensors of `parts` have become, and what is to be told of it.

    Args:
        values: of all parameters; those of `parts` count for nothing.
        x: what the block is given, of the rows of a text, the last `kept_out` of which no gradient sees.
        wanted: what it is to give.
    """
    if not parts:
        going.add(how.updates)
        return {}, {}
    kinds = {key: [(Levels.of(q.scheme.element), q.scheme) for q in of.starts] for key, of in parts.items()}
    fixed = {key: of.fixed for key, of in parts.items()}
    rest = {key: value for key, value in values.items() if key not in parts}

    def begin(key: str) -> list[dict[str, Any]]:
        found = []
        for of, (_, scheme) in zip(fixed[key], kinds[key], strict=True):
            one = {}
            if how.scale_rate and scheme.scale in SCALES:
                one["factors"] = jnp.zeros_like(of["stored"])
            if how.round_rate:
                one["offsets"] = jnp.zeros_like(of["u"])
            found.append(one)
        return found

    rates = {"factors": how.scale_rate, "offsets": how.round_rate}
    adam = optax.scale_by_adam(b1=0.9, b2=0.99)
    schedule = optax.cosine_decay_schedule(1.0, how.updates)

    def loss(learned: Any, fixed: Any, rest: Any, x: Any, y: Any) -> Any:
        made = {
            key: parts[key].whole([
                decoded(f, one, levels, scheme.scale, scheme.block_elems)
                for f, one, (levels, scheme) in zip(fixed[key], learned[key], kinds[key], strict=True)
            ])
            for key in parts
        }  # fmt: skip
        return jnp.mean(jnp.square(block.run({**rest, **made}, x) - y))

    @jax.jit
    def update(learned: Any, state: Any, at: Any, fixed: Any, rest: Any, x: Any, y: Any) -> Any:
        gradients = jax.grad(loss)(learned, fixed, rest, x, y)
        steps, state = adam.update(gradients, state)
        moved = {
            key: [
                {what: a - schedule(at) * rates[what] * steps[key][n][what] for what, a in one.items()}
                for n, one in enumerate(each)
            ]
            for key, each in learned.items()
        }
        bounds = {"factors": (LEAST, MOST), "offsets": (-1.0, 1.0)}
        return {
            key: [{what: jnp.clip(a, *bounds[what]) for what, a in one.items()} for one in each]
            for key, each in moved.items()
        }, state

    judge = jax.jit(loss)

    def judged(learned: Any) -> float:
        held = range(len(x) - kept_out, len(x), how.batch)
        sums = [(min(how.batch, len(x) - i), i) for i in held]
        parted = (n * float(judge(learned, fixed, rest, x[i : i + n], wanted[i : i + n])) for n, i in sums)
        return sum(parted) / kept_out

    learned = {key: begin(key) for key in parts}
    state = adam.init(learned)
    first = least = judged(learned)
    best, best_at = learned, 0
    for at, rows in enumerate(_orders(len(x) - kept_out, how.batch, how.updates, seed)):
        learned, state = update(learned, state, at, fixed, rest, jnp.asarray(x[rows]), jnp.asarray(wanted[rows]))
        if (at + 1) % how.look == 0 or at + 1 == how.updates:
            now = judged(learned)
            if now < least:
                least, best, best_at = now, learned, at + 1
        going.add(1)
    made = {
        key: [
            coded_as(q, f, one, levels)
            for q, f, one, (levels, _) in zip(of.starts, of.fixed, best[key], kinds[key], strict=True)
        ]
        for key, of in parts.items()
    }
    power = float(np.mean(np.square(wanted[len(x) - kept_out :], dtype=np.float64)))
    changed = [
        np.mean(np.asarray(a.codes) != np.asarray(b.codes))
        for key, of in parts.items()
        for a, b in zip(of.starts, made[key], strict=True)
    ]
    return made, {
        "before": first / power,
        "after": least / power,
        "update": best_at,
        "changed": float(np.mean(changed)),
    }


def _orders(count: int, batch: int, updates: int, seed: Sequence[int]) -> Iterator[Any]:
    """Rows of each update, in ascending order: all of them before any comes again."""
    rng, left = np.random.default_rng([*seed]), np.zeros(0, np.int64)
    for _ in range(updates):
        while len(left) < batch:
            left = np.concatenate([left, rng.permutation(count)])
        yield np.sort(left[:batch])
        left = left[batch:]
