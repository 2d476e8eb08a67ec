"""Blocks that are quantized one after another: each by what the quantized blocks before it give.

What a matrix is multiplied by is then what it will be multiplied by, and columns make good what blocks before lost, too
(Frantar et al. 2022, section 4). With `within` that holds inside of a block as well, whose matrices are quantized in
the order in which they are multiplied: q, k and v, then o, and so on ("true sequential").

Hidden states before a block lie on disk: whoever is killed goes on with the block that was not finished, with equal
bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pipeline import arrays
from pipeline.stage import Checkpoint
from plugins.engine.engine import Engine
from plugins.engine.load import parameters
from plugins.engine.observe import (
    Spilled,
    Sums,
    Told,
    begun,
    bits,
    devices_of,
    hidden_file,
    on_device,
    outlined,
    program,
    spread,
)
from plugins.engine.routed import Hessians, experts
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import abstract

Rounded = Callable[[int, int, frozenset[str]], Checkpoint]
STEM = "successive"


def successive(
    engine: Engine, checkpoint: Checkpoint, rows: Sequence[Sequence[int]], batch: int, folder: Path, *, hessian: bool,
    coded: Checkpoint, names: frozenset[str], within: bool, rounded: Rounded,
) -> None:  # fmt: skip
    """Run the model over `rows` of token ids, each block as it was when nothing of it was quantized and then as it is.

    Args:
        rows: of equal length.
        batch: rows at once.
        folder: may hold what an earlier call with equal arguments had finished.
        hessian: what is multiplied together is wanted.
        coded: the checkpoint as it will be; nothing is read of it.
        names: tensors that are to be quantized.
        within: matrices of a block see what quantized ones before them in it give.
        rounded: `rounded(block, part, names)` is called when `successive.npz` in `folder` has statistics of these, as
            `plugins.engine.observe` writes them; gives a checkpoint that has them quantized.
    """
    model, load, _, done = begun(engine, checkpoint, rows, batch, folder)
    packed, devices = outlined(engine, coded), devices_of(engine)
    for i in range(done, len(model.layers)):
        block, becomes = model.layers[i], packed.layers[i]
        before = np.load(hidden_file(folder, i), mmap_mode="r")
        with on_device(block, load):
            for part, group in enumerate(_groups(model, block, i, before[:batch], names, within=within)):
                _look(model, block, i, before, batch, folder, group, devices, hessian=hessian)
                load(becomes, checkpoint=rounded(i, part, group & names), only=group & names)
                _move(becomes, block, group & names)
                for path in folder.glob(f"{STEM}*.np[yz]"):
                    path.unlink()
            _run(model, block, i, before, batch, folder, devices)
        hidden_file(folder, i).unlink()


def _run(model: Decoder, block: Any, layer: int, states: Any, batch: int, folder: Path, devices: Sequence[Any]) -> None:
    """Write what a block gives, as it is now; of its weights nothing is held afterwards."""
    step, _ = program(model, block, layer, hessian=False, every=0, only=())
    with arrays.filled(hidden_file(folder, layer + 1), states.shape, states.dtype) as after:
        for at, (y, *_) in spread(step, model, block, states, batch, devices):
            after[at : at + batch] = bits(y)


def _move(source: Any, into: Any, names: frozenset[str]) -> None:
    """Parameters that hold any of `names`, from one block to another that is the same otherwise."""
    for a, b in zip(parameters(source), parameters(into), strict=True):
        assert a.names == b.names
        if not names.isdisjoint(a.names):
            b.set_value(a.get_value())
            a.set_value(abstract(a.spec))


def _groups(
    model: Decoder, block: Any, layer: int, states: Any, names: frozenset[str], *, within: bool
) -> list[frozenset[str]]:
    """Tensors of a block that are looked at together, one group after another, where any of them is in `names`."""
    step, told = program(model, block, layer, hessian=False, every=0)
    leaves = jax.tree.leaves(nnx.split(block)[1])
    jax.eval_shape(step, leaves, jnp.asarray(states).view(model.dtype))
    groups = [frozenset(group) for group in _in_order(told)]
    return [g for g in (groups if within else [frozenset[str]().union(*groups)]) if not names.isdisjoint(g)]


def _in_order(told: Told) -> Iterator[set[str]]:
    """Tensors that are multiplied by the same, group after group."""
    for what in told.order:
        if isinstance(what, int):
            seen = told.routed[what]
            yield {name for of in seen.into for name in of}
            yield {*seen.out}
        else:
            yield {what, *(name for name, first in told.alike.items() if first == what)}


def _look(
    model: Decoder, block: Any, layer: int, states: Any, batch: int, folder: Path, group: frozenset[str],
    devices: Sequence[Any], *, hessian: bool,
) -> None:  # fmt: skip
    """Write `successive.npz`: what the tensors of `group` are multiplied by, as the block is now."""
    step, told = program(model, block, layer, hessian=hessian, every=0, only=group)
    sums, spilled = Sums(), list[Spilled]()
    for _, (_, found, routed) in spread(step, model, block, states, batch, devices):
        sums.add(found)
        spilled = spilled or [Spilled(folder, k, states.shape[0] * states.shape[1], *of) for k, of in enumerate(routed)]
        for into, of in zip(spilled, routed, strict=True):
            into.add(*of)
    hessians = Hessians(folder, STEM) if hessian else None
    statistics = sums.statistics(told.alike, hessians, 0)
    held = {p.names: p.get_value() for p in parameters(block)}
    mine = [seen for seen in told.routed if not group.isdisjoint(seen.names)]
    for seen, of in zip(mine, spilled, strict=True):
        statistics |= experts(seen, of.x, of.live, held, hessians, 0, devices=devices, only=group)
        of.gone()
    arrays.save(folder / f"{STEM}.npz", statistics)
