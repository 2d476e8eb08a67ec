"""From an engine's options and a checkpoint to a model on a device."""

import os
import time
from pathlib import Path
from typing import Any, Literal

import jax

from pipeline.errors import ConfigError, did_you_mean
from pipeline.stage import Checkpoint
from plugins.engine.eager import is_eager, on_arrays
from plugins.engine.engine import Engine
from plugins.engine.load import fill
from plugins.engine.runtime import Runtime
from plugins.engine.session import Model
from plugins.models.common.cache import CacheDtype
from plugins.models.common.decoder import Decoder
from plugins.models.common.weights import Weights
from plugins.models.family import family_of

_last: tuple[Engine, Any, Model] | None = None
_DTYPES = {"bf16": "bfloat16", "f32": "float32"}


def start(engine: Engine, checkpoint: Checkpoint) -> Model:
    """See `Engine.load`. The model that was loaded last is handed out again when it is asked for again.

    That is what evaluating and then generating does. Nothing else keeps a model alive.
    """
    global _last
    if _last is not None and _last[0] == engine and _last[1] is checkpoint.store:
        return _last[2]
    _last = None  # before the next one is loaded: two need not fit
    model = _started(engine, checkpoint)
    _last = (engine, checkpoint.store, model)
    return model


def release() -> None:
    """Let go of the model that was loaded last."""
    global _last
    _last = None


def _started(engine: Engine, checkpoint: Checkpoint) -> Model:
    began = time.perf_counter()
    keep_programs(engine.programs)
    device = find_device(engine.device)
    dtype: Literal["bf16", "f32"]
    dtype = ("f32" if device.platform == "cpu" else "bf16") if engine.dtype == "auto" else engine.dtype
    kept: CacheDtype = dtype if engine.cache == "auto" else engine.cache
    weights = Weights(checkpoint.store.specs, engine.hold)
    family = family_of(checkpoint.config, engine.families)
    eager = is_eager(engine.ops)
    ops = on_arrays(engine.ops) if eager else engine.ops
    model: Decoder = family.build(checkpoint.config, weights, ops, _DTYPES[dtype])
    weights.check()
    fill(model, checkpoint, device, cast=engine.cast, unpack=engine.unpack)
    runtime = Runtime(model, checkpoint.config, kept, device, time.perf_counter() - began, eager)
    return Model(runtime, checkpoint, engine)


def keep_programs(folder: str | None) -> None:
    """Let JAX keep what it compiles; see `Engine.programs`. What JAX was told before stays."""
    if folder == "auto":
        if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
            return
        folder = str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "weightmill" / "jax")
        _set("jax_persistent_cache_min_compile_time_secs", 0.5)
    _set("jax_compilation_cache_dir", folder)


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
