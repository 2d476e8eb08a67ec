"""From a trainer's population and a checkpoint to its members on devices, and to the weights of the best."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from math import isfinite
from typing import Any

import jax
import numpy as np

from pipeline.figures import Figure
from pipeline.hooks import optional
from pipeline.mesh import SINGLE
from pipeline.records.points import METRICS
from pipeline.reporting.manifest import plain
from pipeline.running import text_stream
from pipeline.stage import Checkpoint, Context, Table
from pipeline.tensors.store import StoreHooks
from pipeline.training import Splits, Trained
from plugins.engine.load import fill
from plugins.engine.load import parameters as params_of
from plugins.engine.start import keep_programs, resolved
from plugins.mesh.devices import arrange
from plugins.train.members import Members, Progress
from plugins.train.options import Member
from plugins.train.start import PICTURE, Cast, built, plan_of
from plugins.train.step import make_step
from plugins.train.trainer import Trainer


def train(trainer: Trainer, ctx: Context, checkpoint: Checkpoint, data: Splits) -> Trained:
    """See `pipeline.training.Trainer.train`; of the members of a population the best comes out."""
    assert trainer.population is not None
    members = trainer.population.members
    engine, result = trainer.engine, trainer.result_specs(checkpoint)
    keep_programs(engine.programs, engine.programs_most)
    one = replace(trainer, engine=replace(engine, mesh=SINGLE))
    device, _, _ = resolved(engine)
    devices = arrange(engine.mesh, jax.devices(device.platform)).devices.flat if engine.mesh.size > 1 else ()
    model, _, _ = built(one, checkpoint, checkpoint)
    shapes = [p.get_value() for p in params_of(model)]
    step = make_step(model, trainer.objective, trainer.optimizer, steps=trainer.steps, recompute=trainer.recompute)
    seeded = optional(checkpoint.store, StoreHooks, "seeded")
    if seeded is None and len({m.seed for m in members}) > 1:
        text_stream.write("train: all begin with the checkpoint's weights, whatever their seed; those of init differ\n")

    @cache
    def fresh(seed: int) -> dict[str, Any]:
        own = checkpoint if seeded is None else replace(checkpoint, store=seeded(seed))
        fill(model, own, device, cast=engine.cast, unpack=engine.unpack)
        found = {p.names[0]: np.array(p.get_value()) for p in params_of(model)}
        for param, shape in zip(params_of(model), shapes, strict=True):
            param.set_value(shape)
        return found

    plan = replace(plan_of(one, device, 0.0, 0, 0), peak=None)
    population = Members(plan, step, members, data, tuple(devices))
    with jax.default_device(device):
        found = population.run(
            lambda i: fresh(members[i].seed), ctx.unfinished, (ctx.run_dir / METRICS,), ctx.run_dir / PICTURE
        )
    best = found.progress.best
    for param in params_of(model):
        param.set_value(jax.device_put(np.asarray(found.parameters[param.names[0]])[best], device))
    return Trained(Cast(model, result, engine.cast), _report(found.progress, members))


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def _report(progress: Progress, members: Sequence[Member]) -> dict[str, Any]:
    """As JSON holds it, with a table of all."""

    def shown(losses: Sequence[float], i: int) -> Any:
        return f"out at update {progress.out[i]}" if progress.out[i] else Figure(losses[i], form=".4f", better="lower")

    order = sorted(range(len(members)), key=lambda i: progress.judged[i])
    columns = ("seed", "rate", "loss", *(("held-out loss",) if progress.held_out else ()))
    seen = [losses for losses in (progress.losses, progress.held_out) if losses]
    rows = tuple((str(members[i].seed), f"{members[i].rate:g}", *(shown(losses, i) for losses in seen)) for i in order)
    best = progress.best
    figures = {"training loss": Figure(progress.losses[best], form=".4f", better="lower")}
    if progress.held_out:
        figures["held-out loss"] = Figure(progress.held_out[best], form=".4f", better="lower")
    said = {
        "step": progress.step, "best": asdict(members[best]), "members": [asdict(m) for m in members],
        "losses": [*map(_number, progress.losses)], "held_out": [*map(_number, progress.held_out)], "out": progress.out,
        "figures": figures, "tables": (Table("Population, the best first", columns, rows),),
    }  # fmt: skip
    return plain(said)  # type: ignore[no-any-return]
