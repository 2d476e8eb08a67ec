"""A model of ours taken apart, for `flow=bench_parts`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pipeline.errors import ConfigError
from pipeline.ops import kernels_of
from pipeline.stage import Checkpoint
from plugins.engine.engine import Engine
from plugins.engine.sizes import BUCKETS


@dataclass(frozen=True)
class Parts:
    """See `pipeline.bench.parts.Apart`.

    Attributes:
        engine: that runs it, on one device.
    """

    engine: Engine

    def __post_init__(self) -> None:
        if self.engine.mesh.size > 1:
            raise ConfigError(f"mesh: a step is taken apart on one device, not on {self.engine.mesh.size}")
        if apart := [kernel.op for kernel in kernels_of(self.engine.ops) if not kernel.traced]:
            raise ConfigError(f"kernels.{apart[0]}: is no part of compiled programs, which are what is taken apart")

    def check(self, prompts: Sequence[int]) -> None:
        """
        Raises:
            ConfigError: prompts of such a length take several programs.
        """
        if strange := [n for n in prompts if n not in BUCKETS]:
            raise ConfigError(f"bench.prompts={strange[0]}: one program reads {', '.join(map(str, BUCKETS))} tokens")

    def parts(
        self, checkpoint: Checkpoint, prompts: Sequence[int], contexts: Sequence[int], seconds: float
    ) -> Mapping[str, Mapping[str, Any]]:
        import numpy as np

        from plugins.engine.parts import decoding, reading

        runtime = self.engine.load(checkpoint).runtime
        ids = np.random.default_rng(0).integers(runtime.vocab, size=max((*prompts, *contexts))).tolist()
        found = {f"a token after {n}": decoding(runtime, ids[:n], seconds) for n in contexts}
        return found | {f"a prompt of {n}": reading(runtime, ids[:n], seconds) for n in prompts}

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("jax", "jaxlib")}
