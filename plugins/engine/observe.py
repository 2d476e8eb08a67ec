"""What a model's matrices are multiplied by: its blocks one after another, one block's weights on the device.

The hidden states that a block is given lie on disk, and so do those that it gives: whoever is killed goes on with the
block that was not finished, with equal bytes. Sums are float32 in a batch and float64 over batches, Hessians float32.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline import arrays, meter
from pipeline.running.progress import Progress
from pipeline.stage import Checkpoint
from pipeline.tensors.qtensor import QTensor
from plugins.engine.engine import Engine
from plugins.engine.load import fill, parameters
from plugins.engine.routed import Hessians, Routed, experts, spaced
from plugins.engine.start import DTYPES, known, resolved
from plugins.mesh.devices import arrange
from plugins.models.common.cache import CacheView
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of

Found = dict[str, dict[str, Any]]  # tensor → statistic → array


def observe(
    engine: Engine, checkpoint: Checkpoint, rows: Sequence[Sequence[int]], batch: int, folder: Path, *, hessian: bool,
    samples: int = 0,
) -> None:  # fmt: skip
    """Run the model over `rows` of token ids and write `layers.N.npz` into `folder` for each block.

    Of every tensor NAME that something is multiplied by there are arrays NAME/tokens, NAME/mean_square and NAME/absmax;
    see `pipeline.calibration.LinearStatistics`. With `hessian` there are NAME/hessian, the name of a file beside it,
    `layers.N.hessian.K.npy`, and NAME/part, the index in that; what is multiplied by the same has one file. With
    `samples` there is NAME/sample, so many of the inputs, evenly spaced, or all if there are fewer; of experts, where a
    tensor has several, some of them more than once then.

    Args:
        rows: of equal length.
        batch: rows at once.
        folder: may hold what an earlier call with equal arguments had finished.
    """
    model, load, tokens, done = begun(engine, checkpoint, rows, batch, folder)
    blocks = list(model.layers)
    devices = devices_of(engine)
    going = Progress("calibrating", len(blocks) * tokens.size, "tokens", done=done * tokens.size)
    for i in range(done, len(blocks)):
        with on_device(blocks[i], load):  # and of it nothing is held when the next one is read
            _look(model, i, tokens.size, batch, folder, going, devices, hessian=hessian, samples=samples)
        hidden_file(folder, i).unlink()


def _look(
    model: Decoder, layer: int, count: int, batch: int, folder: Path, going: Progress, devices: Sequence[Any], *,
    hessian: bool, samples: int,
) -> None:  # fmt: skip
    """Write what is said of a block, and what it gives.

    Args:
        count: tokens that there are.
    """
    block, before = model.layers[layer], np.load(hidden_file(folder, layer), mmap_mode="r")
    every = max(1, (count // samples - 1) | 1) if samples else 0  # odd, or all had few places in windows
    step, told = program(model, block, layer, hessian=hessian, every=every)
    sums, spilled = Sums(), list[Spilled]()
    with arrays.filled(hidden_file(folder, layer + 1), before.shape, before.dtype) as after:
        for at, (y, found, routed) in spread(step, model, block, before, batch, devices):
            sums.add(found)
            after[at : at + batch] = bits(y)
            spilled = spilled or [Spilled(folder, k, count, *of) for k, of in enumerate(routed)]
            for into, of in zip(spilled, routed, strict=True):
                into.add(*of)
            going.add(y.shape[0] * y.shape[1])
        del y, found, routed
        hessians = Hessians(folder, f"{STEM}.{layer}") if hessian else None
        statistics = sums.statistics(told.alike, hessians, samples)
        held = {p.names: p.get_value() for p in parameters(block)}
        for seen, of in zip(told.routed, spilled, strict=True):
            statistics |= experts(seen, of.x, of.live, held, hessians, samples, devices=devices)
            of.gone()
        arrays.save(folder / f"{STEM}.{layer}.npz", statistics)


STEM = "layers"


def outlined(engine: Engine, checkpoint: Checkpoint) -> Decoder:
    """The model, its parameters without values."""
    device, dtype, _ = resolved(engine)
    weights = Weights(checkpoint.store.specs, engine.weights_dtype)
    model: Decoder = family_of(checkpoint.config, engine.families).build(
        checkpoint.config, weights, engine.ops.on(*known(engine, device)), DTYPES[dtype]
    )
    weights.check(checkpoint.config)
    return model


def begun(
    engine: Engine, checkpoint: Checkpoint, rows: Any, batch: int, folder: Path
) -> tuple[Decoder, Callable[..., None], Any, int]:
    """The model, its parameters without values; `load(part)`, which reads those of a part; the rows as an array; and
    the first block that is not done, what is given to which then lies in `folder`."""
    model = outlined(engine, checkpoint)
    load = partial(fill, checkpoint=checkpoint, where=resolved(engine)[0], cast=engine.cast, unpack=engine.unpack)
    tokens = np.asarray(rows, np.int32)
    done = max((i for i in range(len(model.layers) + 1) if hidden_file(folder, i).is_file()), default=-1)
    if done < 0:
        with on_device(model.embed_tokens, load):
            embed = jax.jit(lambda leaf, part: embedded(model, leaf, part))
            leaf = model.embed_tokens.get_value()
            shape, kind = (*tokens.shape, leaf.shape[-1]), np.float32 if model.dtype == "float32" else np.uint16
            with arrays.filled(hidden_file(folder, 0), shape, kind) as into:
                for at in starts(tokens, batch):
                    into[at : at + batch] = bits(embed(leaf, tokens[at : at + batch]))
    return model, load, tokens, max(done, 0)


def hidden_file(folder: Path, block: int) -> Path:
    """What `block` is given, [rows, T, D], as unsigned integers where NumPy's files do not know the dtype."""
    return folder / f"hidden.{block}.npy"


def devices_of(engine: Engine) -> list[Any]:
    """Those that batches go to: all of the engine's mesh; of one that several processes have, those of this process.

    Raises:
        PlanError: there are more or fewer.
    """
    first = resolved(engine)[0]
    if engine.mesh.processes > 1:
        return list(jax.local_devices(backend=first.platform))[: engine.mesh.size // engine.mesh.processes]
    return [first] if engine.mesh.size == 1 else [*arrange(engine.mesh, jax.devices(first.platform)).devices.flat]


def spread(
    step: Callable[..., Any], model: Decoder, block: Any, states: Any, batch: int, devices: Sequence[Any]
) -> Iterator[tuple[int, Any]]:
    """Where a batch of `states` [rows, T, D] begins, and what `step(leaves, x)` gives of it. Each device has all of the
    block's weights; batches go to one after another, so that sums are of the same batches, however many there are."""
    leaves = jax.tree.leaves(nnx.split(block)[1])
    held = [leaves if len(devices) == 1 else jax.device_put(leaves, device) for device in devices]
    first = [*starts(states, batch)]
    for i in range(0, len(first), len(devices)):
        given = zip(first[i : i + len(devices)], devices, held, strict=False)
        found = [(at, step(of, jax.device_put(_part(model, states, at, batch), device))) for at, device, of in given]
        meter.on_device(sum(a.nbytes for a in (*leaves, *jax.tree.leaves(found[0][1]))))
        yield from found  # all of them were asked for before the first is waited for


def _part(model: Decoder, states: Any, at: int, batch: int) -> Any:
    return np.asarray(states[at : at + batch]).view(jnp.dtype(model.dtype))


def starts(tokens: Any, batch: int) -> range:
    return range(0, len(tokens), batch)


def bits(array: Any) -> Any:
    array = np.asarray(array)
    return array if array.dtype == np.float32 else array.view(np.uint16)


class Spilled:
    """What one mixture of a block is given, on disk until its experts are looked at."""

    def __init__(self, folder: Path, number: int, rows: int, x: Any, live: Any):
        self._path, self._at = folder / f"routed.{number}.npy", 0
        self._bits = arrays.mapped(self._path, (rows, x.shape[1]), bits(x).dtype)
        self.x, self.live = self._bits.view(x.dtype), np.zeros((rows, live.shape[1]), np.bool_)

    def add(self, x: Any, live: Any) -> None:
        """Rows x [n, in], and which experts these are for, [n, experts]."""
        stop = self._at + len(x)
        self._bits[self._at : stop], self.live[self._at : stop] = bits(x), np.asarray(live)
        self._at = stop

    def gone(self) -> None:
        self._path.unlink()


@contextmanager
def on_device(part: Any, load: Callable[..., None]) -> Iterator[None]:
    """With the weights of `part` on the device, and without them afterwards."""
    holder = part if isinstance(part, nnx.Module) else nnx.List([part])
    empty = [(p, p.get_value()) for p in parameters(holder)]
    load(holder)
    try:
        yield
    finally:
        for param, nothing in empty:
            param.set_value(nothing)


def embedded(model: Decoder, leaf: Any, tokens: Any) -> Any:
    x = model.ops.embed(tokens, leaf, dtype=jnp.dtype(model.dtype))
    return x if model.embed_scale is None else x * jnp.asarray(model.embed_scale, x.dtype)


@dataclass
class Told:
    """What the trace of a block has said, beside arrays.

    Attributes:
        alike: tensor → the one that is multiplied by the same, and stands for it.
        routed: its mixtures of experts.
        order: what is multiplied one after the other: the tensor that stands for those alike, or the place of a
            mixture in `routed`.
    """

    alike: dict[str, str] = field(default_factory=dict)
    routed: list[Routed] = field(default_factory=list)
    order: list[str | int] = field(default_factory=list)

    def again(self) -> None:
        """Another trace begins, as that of a last batch of fewer rows."""
        self.routed.clear()
        self.order.clear()


def program(
    model: Decoder, block: Any, layer: int, *, hessian: bool, every: int, only: Collection[str] | None = None
) -> tuple[Any, Told]:
    """`(leaves, x [B, T, D]) → (x, tensor → statistic → sums, what each mixture is given)` of one block; and what its
    first call will have said. Of other tensors than `only` nothing is added up; None: of all."""
    graph, state = nnx.split(block)
    tree, told = jax.tree.structure(state), Told()

    @jax.jit
    def run(leaves: Any, x: Any) -> Any:
        own: Any = nnx.merge(graph, jax.tree.unflatten(tree, leaves))
        recorder = _Recorder(list(parameters(own)), hessian, every, told, only)
        positions = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32), x.shape[:2])
        watched: dict[str, Any] = {
            "matmul": _Matmul(model.ops.matmul, recorder), "moe": _Moe(model.ops.moe, recorder)
        }  # fmt: skip
        ops = replace(model.ops, **watched)
        return own(x, layer, CacheView(None, positions, fresh=True), ops), recorder.found, recorder.given

    return run, told


class _Recorder:
    """What was multiplied by which parameter, inside one trace; with `every` one of so many rows."""

    def __init__(
        self, params: Sequence[Any], hessian: bool, every: int, told: Told, only: Collection[str] | None = None
    ):
        told.again()
        self.names = {_known_by(p.get_value()): p.names for p in params}
        self.hessian, self.every, self.told, self.only = hessian, every, told, only
        self.found: Found = {}
        self.given: list[tuple[Any, Any]] = []
        self._first: dict[int, tuple[str, Any]] = {}  # by identity; the array is held, or another could have its own

    def linear(self, w: Any, x: Any) -> None:
        name = self.names[_known_by(w)][0]
        first, _ = self._first.setdefault(id(x), (name, x))
        if first != name:
            self.told.alike[name] = first
            return
        self.told.order.append(name)
        if self.only is None or name in self.only:
            self.found[name] = self.sums(x.reshape(-1, x.shape[-1]).astype(jnp.float32))

    def sums(self, x: Any) -> dict[str, Any]:
        """Sums over the rows of x [N, in], fp32."""
        found = {"tokens": jnp.float32(len(x)), "square": jnp.sum(x * x, 0), "absmax": jnp.max(jnp.abs(x), 0)}
        if self.hessian:
            found["hessian"] = jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST)
        if self.every:
            found["sample"] = x[min(self.every // 2, len(x) - 1) :: self.every]
        return found

    def experts(self, x: Any, live: Any, w_in: Any, b_in: Any, w_out: Any, activation: Any) -> None:
        into, out = (tuple(self.names[_known_by(w)] for w in ws) for ws in (w_in, (w_out,)))
        biases = tuple(None if b is None else self.names[_known_by(b)] for b in b_in)
        self.told.order.append(len(self.told.routed))
        seen = Routed(into, biases, out[0], activation)
        self.told.routed.append(seen)
        if self.only is None or not seen.names.isdisjoint(self.only):
            self.given.append((x, live))


def _known_by(w: Any) -> int:
    """The same of a parameter wherever a trace has it; packed ones are put together anew, out of the same arrays."""
    return id(w.codes if isinstance(w, QTensor) else w)


@dataclass(frozen=True)
class _Matmul:
    kernel: Any
    recorder: _Recorder

    def __call__(self, x: Any, w: Any, *rest: Any, **options: Any) -> Any:
        self.recorder.linear(w, x)
        return self.kernel(x, w, *rest, **options)

    def together(self, *calls: tuple[Any, ...]) -> list[Any]:
        for x, w, *_ in calls:
            self.recorder.linear(w, x)
        return self.kernel.together(*calls)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Moe:
    kernel: Any
    recorder: _Recorder

    def __call__(
        self, x: Any, chosen: Any, weights: Any, w_in: Any, b_in: Any, w_out: Any, b_out: Any, *, activation: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        """See `plugins.kernels.moe`. Rows count for the experts that they chose."""
        count = w_out.shape[0]
        live = jnp.stack([jnp.any((chosen == e) & (weights != 0), -1) for e in range(count)], -1)
        self.recorder.experts(x, live, w_in, b_in, w_out, activation)
        return self.kernel(x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation, **options)


class Sums:
    """Statistics of several batches."""

    def __init__(self) -> None:
        self._of: Found = {}

    def add(self, found: Found) -> None:
        for name, sums in found.items():
            into = self._of.setdefault(name, {})
            for what, array in sums.items():
                new = np.asarray(array, np.float32 if what in ("absmax", "hessian", "sample") else np.float64)
                if what not in into:
                    into[what] = new.copy()
                elif what == "sample":
                    into[what] = np.concatenate([into[what], new])
                elif what == "absmax":
                    np.maximum(into[what], new, out=into[what])
                else:
                    into[what] = into[what] + new

    def statistics(self, alike: Mapping[str, str], hessians: Hessians | None, samples: int) -> dict[str, Any]:
        """NAME/statistic → array, of what was added and of what is `alike`; XᵀX go into files."""
        found: dict[str, Any] = {}
        for first, sums in self._of.items():
            many = max(1, int(sums["tokens"]))
            file = ""
            if hessians is not None:
                with hessians.another(sums["hessian"].shape) as (file, into):
                    into.write((sums["hessian"] / np.float32(many)).data)
            for name in (first, *(n for n, of in alike.items() if of == first)):
                found[f"{name}/tokens"] = np.asarray(sums["tokens"]).astype(np.int64)
                found[f"{name}/mean_square"] = (sums["square"] / many).astype(np.float32)
                found[f"{name}/absmax"] = sums["absmax"]
                if samples:
                    found[f"{name}/sample"] = sums["sample"][spaced(len(sums["sample"]), samples)]
                if hessians is not None:
                    found[f"{name}/hessian"], found[f"{name}/part"] = np.asarray(file), np.zeros(0, np.int64)
        return found
