"""How an engine comes to a model: a plugin node that imports JAX when it is used, and not while a run is planned."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import backends
from pipeline.digest import identity
from pipeline.planning.code import reach
from pipeline.stage import Checkpoint
from plugins.engine.engine import Engine, Resolved

if TYPE_CHECKING:
    from plugins.engine.session import Model


@dataclass(frozen=True)
class JaxLoader:
    """A `plugins.engine.engine.Loader`."""

    def resolve(self, engine: Engine) -> Resolved:
        """Raises ConfigError: no such device."""
        from plugins.engine.start import resolved

        device, dtype, cache = resolved(engine)
        fastest = ""
        if device.platform in backends.MEASURED and (ops := engine.ops.that_take(backends.FASTEST)):
            chosen, modules = backends.measured(device.device_kind, ops)
            fastest = identity([chosen, dict(reach(modules).code)])
        return Resolved(f"{device.platform} ({device.device_kind})", dtype, cache, fastest)

    def join(self, engine: Engine, rank: int, address: str, *, alone: bool) -> None:
        """See `plugins.engine.engine.Loader`."""
        from plugins.mesh.processes import join

        join(engine.mesh, rank, address, engine.platform, alone=alone)

    def observe(self, engine: Engine, checkpoint: Checkpoint, rows: Any, batch: int, folder: Path, **kept: Any) -> None:
        """See `pipeline.engine.EngineHooks.observe`."""
        if "rounded" in kept:
            from plugins.engine.successive import successive

            return successive(engine, checkpoint, rows, batch, folder, **kept)
        from plugins.engine.observe import observe

        return observe(engine, checkpoint, rows, batch, folder, **kept)

    def load(self, engine: Engine, checkpoint: Checkpoint) -> "Model":
        """See `Engine.load`."""
        from plugins.engine.start import start

        return start(engine, checkpoint)
