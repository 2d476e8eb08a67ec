"""From a trainer's options and a checkpoint to a loop on a device, and from what it gives to weights."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import exp, prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pipeline import meter
from pipeline.figures import Figure
from pipeline.mesh import Layout
from pipeline.ops import Kernel
from pipeline.places import nbytes_on_disk
from pipeline.records.points import METRICS
from pipeline.reporting.manifest import plain
from pipeline.running import member
from pipeline.stage import Checkpoint, Context, Table
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index
from pipeline.tensors.store_view import StoreView
from pipeline.training import Splits, Trained, indices
from plugins.engine import profiled
from plugins.engine.load import fill
from plugins.engine.load import parameters as params_of
from plugins.engine.runtime import COMPILER_OPTIONS
from plugins.engine.spread import Spread
from plugins.engine.start import keep_programs, resolved
from plugins.mesh.devices import arrange
from plugins.mesh.processes import check
from plugins.mesh.store import DeviceStore
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from plugins.train import others
from plugins.train.inputs import sizes
from plugins.train.loop import Found, Loop, Plan, Programs
from plugins.train.samples import Samples
from plugins.train.step import State, Step, make_step
from plugins.train.trainer import Trainer
from plugins.train.transform import Transform
from plugins.train.watch import PEAKS, better

PICTURE = "loss.png"
DTYPES = {"bf16": "bfloat16", "f32": "float32"}
DETERMINISTIC = {"gpu": {"xla_gpu_exclude_nondeterministic_ops": True}}


def train(
    trainer: Trainer, ctx: Context, checkpoint: Checkpoint, data: Splits, tokenizer: Any | None, seed: int,
    teacher: Checkpoint | None,
) -> Trained:  # fmt: skip
    """See `pipeline.training.Trainer.train`.

    Args:
        teacher: whom the objective learns of, if it does.
    """
    engine = trainer.engine
    profiled.begin()
    keep_programs(engine.programs, engine.programs_most)
    device, _, _ = resolved(engine)
    transform, frozen_by, result = trainer.transform, trainer.freezing, trainer.result_specs(checkpoint)
    parameters = family_of(checkpoint.config, engine.families).parameters(checkpoint.config)
    base = trainer.on_devices(checkpoint).base
    model, spread, layouts = built(trainer, checkpoint, base)
    where = device if spread is None else spread.devices
    beside = {} if frozen_by is None or spread is None else frozen_by.lies(parameters, layouts)
    leaves = None if transform is None else partial(transform.leaves, parameters=parameters, specs=result)
    teaches = None
    if teacher is not None:
        teaches = _frozen_model(trainer, teacher, None, {} if spread is None else engine.placement(teacher).layouts)
    step = make_step(
        model, trainer.objective, trainer.optimizer, steps=trainer.steps, leaves=leaves, spread=spread,
        recompute=trainer.recompute, beside=beside, teacher=teaches,
    )  # fmt: skip
    shapes = {p.names[0]: p.get_value() for p in params_of(model)}
    trained = shapes
    if frozen_by is not None:
        of = jax.ShapeDtypeStruct
        trained = {n: of(s, "float32") for n, s in frozen_by.trained(parameters).items()}  # type: ignore[no-untyped-call]

    def begin() -> State:
        """The state before the first update."""
        if frozen_by is not None:
            inputs = partial(_inputs, trainer, step, frozen, data, seed)
            made = step.init(frozen_by.begin(parameters, seed, checkpoint, inputs))
            return jax.device_put(made, device) if spread is None else made
        fill(model, checkpoint, where, cast=engine.cast, unpack=engine.unpack)
        held = {}
        for param in params_of(model):  # of its own: what the step uses up may be the loader's
            held[param.names[0]] = jax.numpy.array(param.get_value(), copy=True)
            param.set_value(shapes[param.names[0]])
        state = step.init(held)
        return jax.device_put(state, device) if spread is None else state

    def held(of: Decoder, weights: Checkpoint) -> dict[str, Any]:
        fill(of, weights, where, cast=engine.cast, unpack=engine.unpack)
        return {p.names[0]: p.get_value() for p in params_of(of)}

    frozen = {} if frozen_by is None else held(model, base)
    taught = {} if teacher is None or teaches is None else held(teaches, teacher)
    plan = plan_of(trainer, device, trainer.flops_of_token(checkpoint), seed, len(data.held_out or ()))
    if trainer.look.prompts and tokenizer is not None:
        plan = replace(plan, sample=_sampler(trainer, step, frozen, tokenizer, seed))
    loop = Loop(plan, Programs(step, _options(trainer, device), frozen, taught), data)
    like = step.described(trained, device)
    resume = Path(trainer.resume).expanduser().absolute() if trainer.resume is not None else None
    if ctx.unfinished is not None:
        if resume is None:
            others.tell(ctx.unfinished)
        else:
            others.tell_begun_with(resume, ctx.unfinished)
    with jax.default_device(jax.local_devices(backend=device.platform)[0] if spread is not None else device):
        found = loop.run(begin, like, ctx.unfinished, (ctx.run_dir / METRICS,), ctx.run_dir / PICTURE, resume)
    meter.repeated(*found.repeated)
    meter.wrote(0 if ctx.unfinished is None else nbytes_on_disk(ctx.unfinished))
    of_device = (
        prod(a.sharding.shard_shape(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves((like, frozen, taught))
    )
    meter.on_device(sum(of_device))
    if frozen_by is not None:
        whole = spread.gathered() if spread is not None and spread.mesh.processes > 1 else lambda a: a
        arrays = {name: np.asarray(whole(a)) for name, a in found.parameters.items()}
        if ctx.folder is not None and member.first():
            frozen_by.write(ctx.folder, arrays, checkpoint, parameters)
        store = frozen_by.weights(arrays, checkpoint, parameters, cast=engine.cast, unpack=engine.unpack, specs=result)
        return Trained(store, report(found, loop))
    for param in params_of(model):
        param.set_value(found.parameters[param.names[0]])
    return Trained(Cast(model, result, engine.cast), report(found, loop))


def built(
    trainer: Trainer, checkpoint: Checkpoint, base: Checkpoint
) -> tuple[Decoder, Spread | None, Mapping[str, Layout]]:
    """The model of shapes, and the devices that it lies over, if these are several, and how.

    Args:
        base: whose weights it begins with, or keeps.

    Raises:
        PlanError: its tensors do not fit the model, or the model not the devices; all problems at once.
    """
    mesh, layouts, spread = trainer.engine.mesh, {}, None
    if mesh.size > 1:
        check(mesh)
        device, _, _ = resolved(trainer.engine)
        layouts, spread = (
            trainer.on_devices(checkpoint).layouts(),
            Spread(mesh, arrange(mesh, jax.devices(device.platform))),
        )
    if trainer.freezing is not None:
        return _frozen_model(trainer, base, trainer.transform, layouts), spread, layouts
    weights = Weights({n: TensorSpec(s.shape, "F32") for n, s in base.store.specs.items()}, "f32", layouts=layouts)
    return _built(trainer, base, weights, trainer.transform), spread, layouts


def _frozen_model(
    trainer: Trainer, checkpoint: Checkpoint, transform: Transform | None, layouts: Mapping[str, Layout]
) -> Decoder:
    """One whose weights are not trained: packed tensors stay packed, and plain ones are as they are computed with."""
    _, dtype, _ = resolved(trainer.engine)
    return _built(trainer, checkpoint, Weights(checkpoint.store.specs, dtype, layouts=layouts), transform)


def _built(trainer: Trainer, checkpoint: Checkpoint, weights: Weights, transform: Transform | None) -> Decoder:
    engine = trainer.engine
    device, dtype, _ = resolved(engine)
    ops = engine.ops.named().on(device.platform)
    ops = ops if transform is None else transform.ops(ops)
    family = family_of(checkpoint.config, engine.families)
    model: Decoder = family.build(checkpoint.config, weights, ops, DTYPES[dtype])
    weights.check(checkpoint.config)
    return model


def _inputs(
    trainer: Trainer, step: Step, frozen: Mapping[str, Any], data: Splits, seed: int, names: Sequence[str], count: int
) -> Mapping[str, Any]:
    """See `plugins.train.transform.Inputs`; of the examples that come first."""
    at = indices(seed, 0, min(count, len(data.train)), len(data.train))
    rows = trainer.at_once if len(at) % trainer.at_once == 0 else 1
    return sizes(step, frozen, names, [data.train.batch(some) for some in at.reshape(-1, rows)])


def plan_of(trainer: Trainer, device: Any, flops: float, seed: int, held_out: int) -> Plan:
    peak = trainer.peak_flops or PEAKS.get(device.device_kind)
    return Plan(
        trainer.steps, trainer.batch, trainer.at_once, seed, trainer.save, trainer.look, flops=flops,
        peak=peak and trainer.engine.mesh.size * peak, look_share=trainer.look_share(held_out),
    )  # fmt: skip


def _options(trainer: Trainer, device: Any) -> dict[str, Any]:
    """For the compiler."""
    fixed = DETERMINISTIC.get(device.platform, {}) if trainer.deterministic else {}
    return {**COMPILER_OPTIONS.get(device.platform, {}), **fixed}


def _sampler(trainer: Trainer, step: Step, frozen: Mapping[str, Any], tokenizer: Any, seed: int) -> Samples:
    """What writes the texts that `look.prompts` asks for."""
    look = trainer.look

    def decoder(given: Any, kept: Any) -> Any:
        return step.bound.model(step.gradients.leaves(given, kept, None))

    everywhere = step.bound.everywhere
    return Samples(decoder, frozen, tokenizer, look.prompts, look.tokens, look.temperature, seed, everywhere)


class Cast(StoreView):
    """What a model holds, in the dtypes that it is to be written in; a `TensorStore`."""

    def __init__(self, model: Decoder, specs: Mapping[str, TensorSpec], cast: Kernel):
        held = DeviceStore.of_parameters(params_of(model))
        self.store, self._cast = held, cast
        self._specs = {name: specs[name] for name in specs if name in held.specs}

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self._specs

    def read(self, name: str, index: Index = ()) -> Any:
        value, dtype = self.store.read(name, index), self.specs[name].dtype
        return value if numpy_dtype(dtype) == value.dtype else self._cast(value, dtype)


def report(found: Found, loop: Loop) -> dict[str, Any]:
    """What a loop found, with tables and figures for people; as JSON holds it."""
    progress, data = found.progress, loop.data
    counted: dict[str, int | float] = {"examples": len(data.train), "examples held out": len(data.held_out or ())}
    counted |= {name: n for name, n in data.facts.items() if isinstance(n, int | float)}
    rows: list[tuple[str, Any]] = [
        *((name, Figure(n, form=",d") if isinstance(n, int) else Figure(n, form=".3f")) for name, n in counted.items()),
        ("updates", Figure(found.step, form=",d")),
        (f"{loop.unit}, in all updates", Figure(progress.amount, form=",d")),
        ("loss, of the last tenth of updates", Figure(found.loss, form=".4f", better="lower")),
    ]
    figures: dict[str, Any] = {"training loss": Figure(found.loss, form=".4f", better="lower")}
    for name, loss in (("before", progress.first), ("after", progress.last), ("best", progress.best)):
        if loss is not None and (name != "best" or loss != progress.last):
            more = f" (perplexity {exp(loss):.3f})" if loop.programs.perplexity else ""
            at = f", after update {progress.best_step}" if name == "best" else ""
            rows.append((f"held-out loss {name}", f"{loss:.4f}{more}{at}"))
    if progress.last is not None:
        figures["held-out loss"] = Figure(progress.last, form=".4f", better="lower")
    for name, value in progress.shown.items():
        figures[f"held-out {name}"] = Figure(value, form=".4f", better=better(name))
        rows.append((f"held-out {name} after", Figure(value, form=".4f", better=better(name))))
    if found.seconds > 0 and found.made > 1:
        rows.append(("an update", Figure(found.seconds / (found.made - 1), "s", ".3f", "lower")))
    if found.stopped:
        rows.append(("stopped early", found.stopped))
    said = {
        "step": found.step, "loss": found.loss, "stopped": found.stopped, **asdict(progress), "data": data.facts,
        "figures": figures, "tables": (Table("Training", ("", ""), tuple(rows)),),
    }  # fmt: skip
    return plain(said)  # type: ignore[no-any-return]
