"""From a trainer's options and a checkpoint to a loop on a device, and from what it gives to weights."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import exp, prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pipeline import meter
from pipeline.figures import Figure
from pipeline.mesh import Parameter
from pipeline.ops import Kernel
from pipeline.reporting.manifest import plain
from pipeline.stage import Checkpoint, Context, Table
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index
from pipeline.training import Splits, Trained
from plugins.engine.load import fill
from plugins.engine.load import parameters as params_of
from plugins.engine.runtime import COMPILER_OPTIONS
from plugins.engine.start import keep_programs, resolved
from plugins.mesh.store import DeviceStore
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from plugins.train import others
from plugins.train.loop import METRICS, Found, Loop, Plan, Programs
from plugins.train.step import State, make_step
from plugins.train.trainer import Trainer
from plugins.train.watch import PEAKS

PICTURE = "loss.png"
DTYPES = {"bf16": "bfloat16", "f32": "float32"}
DETERMINISTIC = {"gpu": {"xla_gpu_exclude_nondeterministic_ops": True}}


def train(
    trainer: Trainer, ctx: Context, checkpoint: Checkpoint, data: Splits, tokenizer: Any | None, seed: int
) -> Trained:
    """See `pipeline.training.Trainer.train`."""
    engine = trainer.engine
    keep_programs(engine.programs, engine.programs_most)
    device, dtype, _ = resolved(engine)
    family, transform = family_of(checkpoint.config, engine.families), trainer.transform
    parameters, result = family.parameters(checkpoint.config), trainer.result_specs(checkpoint)
    ops, freezes = engine.ops.on(device.platform), transform is not None and transform.freezes
    specs = checkpoint.store.specs
    if freezes:  # packed tensors stay packed, and plain ones as they are computed with
        weights = Weights(specs, "bf16" if dtype == "bf16" else "f32")
    else:
        weights = Weights({n: TensorSpec(s.shape, "F32") for n, s in specs.items()}, "f32")
    model: Decoder = family.build(
        checkpoint.config, weights, ops if transform is None else transform.ops(ops), DTYPES[dtype]
    )
    weights.check()
    leaves = None if transform is None else partial(transform.leaves, parameters=parameters, specs=result)
    step = make_step(model, trainer.objective, trainer.optimizer, steps=trainer.steps, leaves=leaves)
    shapes = {p.names[0]: p.get_value() for p in params_of(model)}
    trained = shapes
    if transform is not None and freezes:
        trained = {n: jax.ShapeDtypeStruct(s, "float32") for n, s in transform.trained(parameters).items()}

    def begin() -> State:
        """The state before the first update."""
        if transform is not None and freezes:
            made: State = jax.device_put(step.init(transform.begin(parameters, seed)), device)
            return made
        fill(model, checkpoint, device, cast=engine.cast, unpack=engine.unpack)
        held = {}
        for param in params_of(model):  # of its own: what the step uses up may be the loader's
            held[param.names[0]] = jax.numpy.array(param.get_value(), copy=True)
            param.set_value(shapes[param.names[0]])
        state: State = jax.device_put(step.init(held), device)
        return state

    options = {**COMPILER_OPTIONS.get(device.platform, {})}
    options |= DETERMINISTIC.get(device.platform, {}) if trainer.deterministic else {}
    plan = Plan(
        trainer.steps, trainer.batch, trainer.at_once, seed, trainer.save, trainer.look, device,
        flops=flops_of_token(parameters, checkpoint.config), peak=trainer.peak_flops or PEAKS.get(device.device_kind),
    )  # fmt: skip
    frozen = {}
    if freezes:
        fill(model, checkpoint, device, cast=engine.cast, unpack=engine.unpack)
        frozen = {p.names[0]: p.get_value() for p in params_of(model)}
    loop = Loop(plan, Programs(step, options, frozen), data)
    like = jax.eval_shape(step.init, trained)
    resume = Path(trainer.resume).expanduser().absolute() if trainer.resume is not None else None
    if ctx.unfinished is not None and resume is None:
        others.tell(ctx.unfinished)
    found = loop.run(begin, like, ctx.unfinished, (ctx.run_dir / METRICS,), ctx.run_dir / PICTURE, resume)
    meter.on_device(sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((like, frozen))))
    if transform is not None and freezes:
        arrays = {name: np.asarray(a) for name, a in found.parameters.items()}
        if ctx.folder is not None:
            transform.write(ctx.folder, arrays, checkpoint, parameters)
        store = transform.weights(arrays, checkpoint, parameters, cast=engine.cast, unpack=engine.unpack, specs=result)
        return Trained(store, report(found, loop))
    for param in params_of(model):
        param.set_value(found.parameters[param.names[0]])
    return Trained(_Cast(model, result, engine.cast), report(found, loop))


class _Cast:
    """What a model holds, in the dtypes that it is to be written in; a `TensorStore`."""

    def __init__(self, model: Decoder, specs: Mapping[str, TensorSpec], cast: Kernel):
        held = DeviceStore.of_parameters(params_of(model))
        self._held, self._cast = held, cast
        self.specs = {name: specs[name] for name in specs if name in held.specs}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def read(self, name: str, index: Index = ()) -> Any:
        value, dtype = self._held.read(name, index), self.specs[name].dtype
        return value if numpy_dtype(dtype) == value.dtype else self._cast(value, dtype)


def flops_of_token(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> float:
    """Of the products of one token with the weights, forth (2 each) and back (4): of experts those that it is sent to.
    What attention takes beside them is not counted, nor what is computed again."""
    values = 0.0
    for parameter in parameters:
        if parameter.axes[0] == "vocab" and parameter.name.endswith("embed_tokens.weight") and not _tied(config):
            continue
        share = 1.0
        if parameter.axes[0] == "experts":
            chosen = config.get("num_experts_per_tok") or config.get("experts_per_token") or parameter.shape[0]
            share = int(chosen) / parameter.shape[0]
        values += prod(parameter.shape) * share if len(parameter.shape) > 1 else 0
    return 6 * values


def _tied(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings"))


def report(found: Found, loop: Loop) -> dict[str, Any]:
    """What a loop found, with tables and figures for people; as JSON holds it."""
    progress, tokens = found.progress, loop.unit == "tokens"
    rows: list[tuple[str, Any]] = [
        ("updates", Figure(found.step, form=",d")),
        (loop.unit, Figure(progress.amount, form=",d")),
        ("loss, of the last tenth of updates", Figure(found.loss, form=".4f")),
    ]
    figures: dict[str, Any] = {"training loss": Figure(found.loss, form=".4f")}
    for name, loss in (("before", progress.first), ("after", progress.last), ("best", progress.best)):
        if loss is not None and (name != "best" or loss != progress.last):
            more = f" (perplexity {exp(loss):.3f})" if tokens else ""
            at = f", after update {progress.best_step}" if name == "best" else ""
            rows.append((f"held-out loss {name}", f"{loss:.4f}{more}{at}"))
    if progress.last is not None:
        figures["held-out loss"] = Figure(progress.last, form=".4f")
    updates = found.step - found.began - 1
    if found.seconds > 0 and updates > 0:
        rows.append(("an update", Figure(found.seconds / updates, "s", ".3f")))
    if found.stopped:
        rows.append(("stopped early", found.stopped))
    said = {
        "step": found.step, "loss": found.loss, "stopped": found.stopped, **asdict(progress),
        "figures": figures, "tables": (Table("Training", ("", ""), tuple(rows)),),
    }  # fmt: skip
    return plain(said)  # type: ignore[no-any-return]
