"""The conversion of a checkpoint, over its bytes."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import StageError
from pipeline.units import decimal, parse_bytes
from plugins.scales import overrides, sizes, synthetic

MOST = 1.1  # of the source, what is written beside it: nothing that we export is larger but for headers
PROCESS_NBYTES = 192 << 20  # whatever the size: 84 MiB, two tasks with their chunks, and a fifth
LEAST_NBYTES = 1 << 20  # of logs and records
HIDDEN, INNER, HEADS = 1024, 2816, 16  # of Qwen1.5-0.5B: as many parameters a layer as real models of this size
VOCAB = 512  # few, so that a small one too has its bytes in layers


@dataclass(frozen=True)
class Convert:
    """See `pipeline.growth.Growing`.

    Attributes:
        sizes: of the source.
        expected: exponents, at most.
        shard: bytes of each of its files.
        overrides: of the conversion.
    """

    sizes: tuple[str, ...]
    expected: Mapping[str, float]
    shard: str
    overrides: tuple[str, ...]

    def __post_init__(self) -> None:
        parse_bytes(self.shard, "shard")
        overrides.check(self.overrides)
        self.points  # noqa: B018  raises

    @property
    def label(self) -> str:
        return "GB"

    @property
    def points(self) -> tuple[int, ...]:
        return sizes.ascending([parse_bytes(s, "sizes", bare=1000) for s in self.sizes], self.sizes)

    @property
    def units(self) -> Mapping[str, str]:
        return {}

    def show(self, size: int) -> str:
        return decimal(size)

    def disk_nbytes(self, size: int) -> int:
        return int((1 + MOST) * size) + LEAST_NBYTES

    def host_nbytes(self, size: int) -> int:
        return PROCESS_NBYTES

    def prepare(self, size: int, folder: Path) -> None:
        synthetic.write(_model(size), folder / "source", parse_bytes(self.shard, "shard"), values=True)

    def measure(self, size: int, folder: Path, threads: int) -> Mapping[str, float]:
        import pipeline
        from pipeline.config import extend

        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)  # the round before
        report = pipeline.run(
            ["flow=convert", *overrides.of(folder / "source", out), f"dask.workers={threads}", *self.overrides],
            config_dir=extend.folder(), progress=False,
        )  # fmt: skip
        if not report.outputs:
            raise StageError("nothing was written")
        return {}


def _model(size: int) -> synthetic.Llama:
    """The one whose bytes are nearest; below one layer of the shape above a smaller one."""
    scale = min(1.0, (size / (2 * (4 * HIDDEN**2 + 3 * HIDDEN * INNER))) ** 0.5 / 2)
    hidden = max(HEADS * 2, int(HIDDEN * scale) // (2 * HEADS) * 2 * HEADS)
    inner = max(32, int(INNER * hidden / HIDDEN) // 32 * 32)
    layer = 2 * (4 * hidden**2 + 3 * hidden * inner + 2 * hidden)
    rest = 2 * (2 * VOCAB * hidden + hidden)
    return synthetic.Llama(max(1, round((size - rest) / layer)), hidden, inner, HEADS, VOCAB)
