"""What a model's matrices are multiplied by: its blocks one after another, one block's weights on the device.

The hidden states that a block is given lie on disk, and so do those that it gives: whoever is killed goes on with the
block that was not finished, with equal bytes. Sums are float32 in a batch and float64 over batches, Hessians float32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline.running.progress import Progress
from pipeline.stage import Checkpoint
from pipeline.tensors.qtensor import QTensor
from plugins.engine.engine import Engine
from plugins.engine.load import fill, parameters
from plugins.engine.start import DTYPES, resolved
from plugins.kernels.dequantize.traced import decode
from plugins.models.common.cache import CacheView
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of

Found = dict[str, dict[str, Any]]  # tensor → statistic → array


def observe(
    engine: Engine, checkpoint: Checkpoint, rows: Sequence[Sequence[int]], batch: int, folder: Path, *, hessian: bool
) -> None:
    """Run the model over `rows` of token ids and write `layers.N.npz` into `folder` for each block.

    Of every tensor NAME that something is multiplied by there are arrays NAME/tokens, NAME/mean_square, NAME/absmax and
    with `hessian` NAME/hessian; see `pipeline.calibration.LinearStatistics`.

    Args:
        rows: of equal length.
        batch: rows at once.
        folder: may hold what an earlier call with equal arguments had finished.
    """
    device, dtype, _ = resolved(engine)
    weights = Weights(checkpoint.store.specs, engine.weights_dtype)
    model: Decoder = family_of(checkpoint.config, engine.families).build(
        checkpoint.config, weights, engine.ops.on(device.platform), DTYPES[dtype]
    )
    weights.check()
    load = partial(fill, checkpoint=checkpoint, where=device, cast=engine.cast, unpack=engine.unpack)
    tokens = np.asarray(rows, np.int32)
    blocks = list(model.layers)
    done = max((i for i in range(len(blocks) + 1) if _hidden(folder, i).is_file()), default=-1)
    going = Progress("calibrating", len(blocks) * tokens.size, "tokens", done=max(done, 0) * tokens.size)
    if done < 0:
        with _held(model.embed_tokens, load):
            embed = jax.jit(lambda leaf, part: _embedded(model, leaf, part))
            leaf = model.embed_tokens.get_value()
            _save(_hidden(folder, 0), [np.asarray(embed(leaf, tokens[i : i + batch])) for i in _starts(tokens, batch)])
        done = 0
    for i in range(done, len(blocks)):
        before = np.load(_hidden(folder, i), mmap_mode="r")
        with _held(blocks[i], load):
            step = _program(model, blocks[i], i, hessian=hessian)
            sums, after = Sums(), []
            leaves = jax.tree.leaves(nnx.split(blocks[i])[1])
            for at in _starts(tokens, batch):
                y, found = step(leaves, jnp.asarray(before[at : at + batch]).view(model.dtype))
                sums.add(found)
                after.append(_bits(y))
                going.add(y.shape[0] * y.shape[1])
        _save_arrays(folder / f"{STEM}.{i}.npz", sums.statistics)
        _save(_hidden(folder, i + 1), after)
        _hidden(folder, i).unlink()


STEM = "layers"


def _hidden(folder: Path, block: int) -> Path:
    """What `block` is given, [rows, T, D], as unsigned integers where NumPy's files do not know the dtype."""
    return folder / f"hidden.{block}.npy"


def _starts(tokens: Any, batch: int) -> range:
    return range(0, len(tokens), batch)


def _bits(array: Any) -> Any:
    array = np.asarray(array)
    return array if array.dtype == np.float32 else array.view(np.uint16)


def _save(path: Path, parts: Sequence[Any]) -> None:
    """Write parts one after another as one array: a file that is there is whole."""
    partial_path = path.with_suffix(".partial")
    shape = (sum(len(p) for p in parts), *parts[0].shape[1:])
    with partial_path.open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": _bits(parts[0]).dtype.str, "fortran_order": False, "shape": shape}
        )
        for part in parts:
            file.write(np.ascontiguousarray(_bits(part)).data)
    partial_path.replace(path)


def _save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    partial_path = path.with_suffix(".partial")
    with partial_path.open("wb") as file:
        np.savez(file, **arrays)
    partial_path.replace(path)


@contextmanager
def _held(part: Any, load: Callable[..., None]) -> Iterator[None]:
    """With the weights of `part` on the device, and without them afterwards."""
    holder = part if isinstance(part, nnx.Module) else nnx.List([part])
    empty = [(p, p.get_value()) for p in parameters(holder)]
    load(holder)
    try:
        yield
    finally:
        for param, nothing in empty:
            param.set_value(nothing)


def _embedded(model: Decoder, leaf: Any, tokens: Any) -> Any:
    x = model.ops.embed(tokens, leaf, dtype=jnp.dtype(model.dtype))
    return x if model.embed_scale is None else x * jnp.asarray(model.embed_scale, x.dtype)


def _program(model: Decoder, block: Any, layer: int, *, hessian: bool) -> Any:
    """`(leaves, x [B, T, D]) → (x, tensor → statistic → sums)` of one block."""
    graph, state = nnx.split(block)
    tree = jax.tree.structure(state)

    @jax.jit
    def run(leaves: Any, x: Any) -> Any:
        own: Any = nnx.merge(graph, jax.tree.unflatten(tree, leaves))
        recorder = _Recorder(list(parameters(own)), hessian)
        positions = jnp.broadcast_to(jnp.arange(x.shape[1], dtype=jnp.int32), x.shape[:2])
        watched: dict[str, Any] = {
            "matmul": _Matmul(model.ops.matmul, recorder), "moe": _Moe(model.ops.moe, recorder)
        }  # fmt: skip
        ops = replace(model.ops, **watched)
        return own(x, layer, CacheView(None, positions, fresh=True), ops), recorder.found

    return run


class _Recorder:
    """What was multiplied by which parameter, inside one trace."""

    def __init__(self, params: Sequence[Any], hessian: bool):
        self.names = {_known_by(p.get_value()): p.names for p in params}
        self.hessian = hessian
        self.found: Found = {}

    def linear(self, w: Any, x: Any) -> None:
        names = self.names[_known_by(w)]
        x = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
        self.found[names[0]] = self.sums(x, jnp.ones(len(x), jnp.float32))

    def sums(self, x: Any, live: Any) -> dict[str, Any]:
        """Sums over the rows of x [N, in] that are live [N]."""
        x = x * live[:, None]
        found = {"tokens": jnp.sum(live), "square": jnp.sum(x * x, 0), "absmax": jnp.max(jnp.abs(x), 0)}
        if self.hessian:
            found["hessian"] = jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST)
        return found

    def experts(self, w: Any, sums: Any) -> None:
        """`sums` with a leading dimension of experts, which may be one tensor or one each."""
        names = self.names[_known_by(w)]
        if len(names) == 1:
            self.found[names[0]] = sums
            return
        for e, name in enumerate(names):
            self.found[name] = jax.tree.map(lambda a, e=e: a[e], sums)


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
        """Experts one after another, each with all tokens, of which those count that chose it."""
        count = w_out.shape[0]
        plain = [decode(w, jnp.float32) if isinstance(w, QTensor) else w.astype(jnp.float32) for w in w_in]
        live = jnp.stack([jnp.any((chosen == e) & (weights != 0), -1) for e in range(count)]).astype(jnp.float32)

        def one(e: Any) -> Any:
            inside = []
            for w, b in zip(plain, b_in, strict=True):
                y = jnp.matmul(x.astype(jnp.float32), w[e].T, precision=jax.lax.Precision.HIGHEST)
                inside.append((y if b is None else y + b[e][None].astype(jnp.float32)).astype(x.dtype))
            h = activation(*inside).astype(jnp.float32)
            return self.recorder.sums(x.astype(jnp.float32), live[e]), self.recorder.sums(h, live[e])

        into, out = jax.lax.map(one, jnp.arange(count))
        for w in w_in:
            self.recorder.experts(w, into)
        self.recorder.experts(w_out, out)
        return self.kernel(x, chosen, weights, w_in, b_in, w_out, b_out, activation=activation, **options)


class Sums:
    """Statistics of several batches."""

    def __init__(self) -> None:
        self._of: Found = {}

    def add(self, found: Found) -> None:
        for name, sums in found.items():
            into = self._of.setdefault(name, {})
            for what, array in sums.items():
                new = np.asarray(array, np.float32 if what in ("absmax", "hessian") else np.float64)
                if what not in into:
                    into[what] = new.copy()
                elif what == "absmax":
                    np.maximum(into[what], new, out=into[what])
                else:
                    into[what] = into[what] + new

    @property
    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, sums in self._of.items():
            tokens = np.asarray(sums["tokens"])
            many = np.maximum(tokens, 1)
            found[f"{name}/tokens"] = tokens.astype(np.int64)
            found[f"{name}/mean_square"] = (sums["square"] / many[..., None]).astype(np.float32)
            found[f"{name}/absmax"] = sums["absmax"]
            if "hessian" in sums:
                found[f"{name}/hessian"] = sums["hessian"] / many[..., None, None].astype(np.float32)
        return found
