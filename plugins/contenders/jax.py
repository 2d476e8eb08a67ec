"""Our own engine, with any choice of kernels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pipeline.contender import Form
from pipeline.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Jax:
    """See `pipeline.contender.Contender`.

    Attributes:
        kernels: an option of `kernels`.
        dtype: of activations.
        export: what it reads; `auto`: whatever holds the weights packed.
        programs: folder where compiled programs are kept; None: nowhere.
    """

    kernels: str = "auto"
    dtype: Literal["auto", "bf16", "f32"] = "auto"
    export: str = "auto"
    programs: str | None = None

    def __post_init__(self) -> None:
        from pipeline.config.options import options

        for group, given in (("kernels", self.kernels), ("export", self.export)):
            if given not in (known := options(group)):
                raise ConfigError(f"{group}={given!r}: an option of {group} is needed{did_you_mean(given, known)}")

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        return Form(quant, self.export)

    def load(self, place: Path, threads: int) -> "LoadedJax":
        import pipeline
        from pipeline.config.overrides import quoted

        programs = "null" if self.programs is None else quoted(str(Path(self.programs).absolute()))
        chosen = [f"kernels={self.kernels}", f"engine.dtype={self.dtype}", f"engine.programs={programs}"]
        return LoadedJax(pipeline.load_model(place, overrides=[*chosen, "stages.decode.dtype=keep"]).runtime)

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("jax", "jaxlib")}


class LoadedJax:
    """See `pipeline.contender.Loaded`."""

    def __init__(self, runtime: Any):
        self._runtime = runtime

    @property
    def device_nbytes(self) -> int:
        return int(self._runtime.device_nbytes)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.decode(prompts, 1, lambda: None)

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        from plugins.engine.generate import generate
        from plugins.engine.options import Sampling
        from plugins.engine.sizes import bucket

        parts = [0]  # of a long prompt, after each but the last of which `wanted` is asked too
        while sum(parts) < len(prompts[0]):
            parts.append(bucket(len(prompts[0]) - sum(parts)))
        unseen = iter(range(len(parts) - 2))

        def wanted() -> bool:
            if next(unseen, None) is None:
                seen()
            return True

        found, _ = generate(self._runtime, prompts, Sampling(max_tokens=new), wanted=wanted)
        return [completion.tokens for completion in found]

    def score(self, ids: Sequence[int]) -> Any:
        import numpy as np

        tokens = np.asarray([ids], np.int32)
        positions = np.arange(len(ids), dtype=np.int32)[None]
        return np.asarray(self._runtime.forward(tokens, positions), np.float32)[0]
