"""The plan of a conversion, over the tensors of the checkpoint, of which there are only headers."""

import gc
import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PlanError
from plugins.scales import overrides, sizes, synthetic

OF_LAYER, OF_REST = 9, 3  # tensors of a Llama
HIDDEN, HEADS, VOCAB = 64, 4, 256  # small: what a plan takes goes by tensors, and these fit where files have holes
PROCESS_NBYTES, TENSOR_NBYTES = 84 << 20, 4 << 10  # as docs/bench.md has measured it
HEADER_NBYTES = 400  # that a tensor takes in headers and index, at most
SHARD_NBYTES = 60 << 20  # of holes: some ten thousand tensors a file


@dataclass(frozen=True)
class Plan:
    """See `pipeline.growth.Growing`.

    Attributes:
        sizes: tensors.
        expected: exponents, at most.
        overrides: of the conversion that is planned.
    """

    sizes: tuple[int, ...]
    expected: Mapping[str, float]
    overrides: tuple[str, ...]

    def __post_init__(self) -> None:
        overrides.check(self.overrides)
        sizes.ascending(self.sizes, self.sizes)

    @property
    def label(self) -> str:
        return "tensors"

    @property
    def points(self) -> tuple[int, ...]:
        return self.sizes

    @property
    def units(self) -> Mapping[str, str]:
        return {}

    def show(self, size: int) -> str:
        return f"{size:,}"

    def disk_nbytes(self, size: int) -> int:
        return HEADER_NBYTES * size + (1 << 20)

    def host_nbytes(self, size: int) -> int:
        return PROCESS_NBYTES + TENSOR_NBYTES * size

    def prepare(self, size: int, folder: Path) -> None:
        layers = max(1, round((size - OF_REST) / OF_LAYER))
        synthetic.write(
            synthetic.Llama(layers, HIDDEN, HIDDEN, HEADS, VOCAB), folder / "source", SHARD_NBYTES, values=False
        )

    def measure(self, size: int, folder: Path, threads: int) -> Mapping[str, float]:
        import pipeline
        from pipeline.config import extend
        from pipeline.reporting import console

        gc.disable()  # as the command does (`pipeline.__main__`)
        try:
            planned = pipeline.plan(
                ["flow=convert", *overrides.of(folder / "source", folder / "out"), *self.overrides],
                config_dir=extend.folder(),
            )  # fmt: skip
            if planned.problems:
                raise PlanError(planned.problems)
            with redirect_stdout(io.StringIO()):  # what people see is part of what they wait for
                console.out(*planned.shown)
        finally:
            gc.enable()
        return {}
