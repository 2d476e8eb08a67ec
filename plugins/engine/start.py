"""From an engine's options and a checkpoint to a model on a device."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jax

from pipeline import meter, tracing
from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean
from pipeline.files import cache_folder
from pipeline.hooks import optional
from pipeline.method import MethodHooks
from pipeline.planning.mesh_costs import weights_nbytes
from pipeline.running import text_stream
from pipeline.stage import Checkpoint
from pipeline.units import parse_bytes, show_bytes
from plugins.engine import profiled
from plugins.engine.eager import is_eager, on_arrays
from plugins.engine.engine import Engine
from plugins.engine.load import fill
from plugins.engine.runtime import Runtime
from plugins.engine.session import Model
from plugins.engine.spread import Spread
from plugins.mesh.devices import arrange
from plugins.mesh.processes import check
from plugins.models.common.cache import CacheDtype
from plugins.models.common.decoder import Decoder
from plugins.models.common.ops import Ops
from plugins.models.common.rounding import MatMul, MoE, Rounder, Turner
from plugins.models.common.weights import Weights
from plugins.models.family import family_of

DTYPES = {"bf16": "bfloat16", "f32": "float32"}


def start(engine: Engine, checkpoint: Checkpoint, devices: Sequence[Any] | None = None) -> Model:
    """See `Engine.load`.

    Args:
        devices: JAX devices that a mesh takes, instead of all that there are.
    """
    began = time.perf_counter()
    if tracing.active:
        profiled.begin()
    keep_programs(engine.programs, engine.programs_most)
    device, dtype, kept = resolved(engine)
    planned, _ = engine.weights(checkpoint)
    spread, layouts = None, None
    if engine.mesh.size > 1:
        if problems := engine.for_one_device():
            raise PlanError(problems)
        check(engine.mesh)
        placement = engine.placement(checkpoint)
        spread = Spread(engine.mesh, arrange(engine.mesh, devices or jax.devices(device.platform)))
        layouts = placement.layouts
        planned = weights_nbytes(engine.mesh, placement.parameters, placement.specs, layouts)
    weights = Weights(checkpoint.store.specs, engine.weights_dtype, layouts=layouts)
    family = family_of(checkpoint.config, engine.families)
    on = known(engine, device)
    _all_run(engine, checkpoint, on)
    ops = engine.ops.on(*on)
    eager = is_eager(ops) or (engine.activations is not None and not engine.rounding.traced)
    ops = on_arrays(ops) if eager else ops
    ops = rounding(ops, engine, checkpoint)
    model: Decoder = family.build(checkpoint.config, weights, ops, DTYPES[dtype])
    ignored = weights.check(checkpoint.config)
    where = device if spread is None else spread.devices
    under = engine.input_scales(checkpoint)
    fill(model, checkpoint, where, cast=engine.cast, unpack=engine.unpack, under=under, turns=True)
    runtime = Runtime(model, checkpoint.config, kept, device, time.perf_counter() - began, eager, spread)
    if runtime.device_nbytes != planned:
        taken = f"{show_bytes(runtime.device_nbytes)} on the device, where {show_bytes(planned)} were planned"
        text_stream.write(f"the weights take {taken}; please report it\n")
    meter.on_device(runtime.device_nbytes)
    if tracing.active:
        tracing.done("load the weights", "execute", began, runtime.load_s, nbytes=runtime.device_nbytes)
    return Model(runtime, checkpoint, engine, planned, ignored)


def rounding(ops: Ops, engine: Engine, checkpoint: Checkpoint) -> Ops:
    """`ops` that round the inputs of packed weights, where the engine is to do so, and rotate those of rotated ones."""
    if engine.activations is None and checkpoint.turned is None:
        return ops
    if engine.activations is None:
        return replace(ops, matmul=MatMul(ops.matmul, Turner()), moe=MoE(ops.moe, Turner()))  # type: ignore[arg-type]
    scheme, recipe = engine.activations.scheme, optional(engine.activations, MethodHooks, "recipe")
    fed, found = engine.activations_scales == "calibrated", engine.input_scales(checkpoint)
    if found is not None:
        scheme = found.scheme
    rounder = Rounder(engine.rounding.on(ops.matmul.platform), scheme, recipe, fed)  # type: ignore[arg-type]
    return replace(ops, matmul=MatMul(ops.matmul, rounder), moe=MoE(ops.moe, rounder))  # type: ignore[arg-type]


def known(engine: Engine, device: Any) -> tuple[str, str]:
    """The platform and kind of a device, as kernels are chosen by; of several processes no kind, since each has tables
    of its own, and all have to run one program."""
    return device.platform, device.device_kind if engine.mesh.processes == 1 else ""


def _all_run(engine: Engine, checkpoint: Checkpoint, on: tuple[str, str]) -> None:
    """Raise PlanError unless some chosen backend runs every op of the model on the device that there is, which a plan
    without JAX can only guess; before anything is loaded or traced."""
    problems: dict[Problem, None] = {}
    for call in engine.calls(checkpoint, device=on):
        choice = call.kernel.choose(call.given)
        if choice.backend is None:
            text = f"no chosen backend of {call.kernel.op} can do this ({choice.reasons})"
            problems[Problem(call.where, text)] = None
    if problems:
        raise PlanError(problems)


def resolved(engine: Engine) -> tuple[Any, Literal["bf16", "f32"], CacheDtype]:
    """The device, the dtype of activations and that of the KV cache that the engine's options mean on this machine.

    Raises:
        ConfigError: no such device.
    """
    device = find_device(engine.device)
    dtype: Literal["bf16", "f32"]
    dtype = ("f32" if device.platform == "cpu" else "bf16") if engine.dtype == "auto" else engine.dtype
    return device, dtype, dtype if engine.cache == "auto" else engine.cache


def keep_programs(folder: str | None, most: str) -> None:
    """Let JAX keep what it compiles; see `Engine.programs`. What JAX was told before stays."""
    if folder == "auto":
        if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
            return
        folder = str(cache_folder() / "jax")
        _set("jax_persistent_cache_min_compile_time_secs", 0.5)
    if folder is not None:
        _date_programs(Path(folder))
        _set("jax_compilation_cache_max_size", parse_bytes(most, "engine.programs_most"))
    _set("jax_compilation_cache_dir", folder)


def _date_programs(folder: Path) -> None:
    """When a program was last used stands in a file beside it (jax/_src/lru_cache.py), without which JAX removes
    nothing and keeps nothing new: programs of a cache that had no bound, or of a process that was killed, have none."""
    for program in folder.glob("*-cache"):
        used = program.with_name(program.name.removesuffix("-cache") + "-atime")
        try:
            if not used.exists():
                used.write_bytes(program.stat().st_mtime_ns.to_bytes(8, "little"))
        except OSError:  # removed meanwhile, or a folder that only others may write
            continue


def _set(option: str, value: Any) -> None:
    jax.config.update(option, value)  # type: ignore[no-untyped-call]


def find_device(name: str) -> Any:
    """The JAX device that `name` means.

    Raises:
        ConfigError: there is none.
    """
    if name == "auto":
        return jax.devices()[0]
    platform, _, number = name.partition(":")
    try:
        devices = jax.devices(platform)
    except RuntimeError:
        devices = []
    if not devices or not (number or "0").isdigit() or int(number or 0) >= len(devices):
        known = [f"{d.platform}:{d.id}" for d in jax.devices()]
        raise ConfigError(
            f"engine.device={name!r}: JAX has no such device{did_you_mean(name, ['auto', 'cpu', *known])}"
        )
    return devices[int(number or 0)]
