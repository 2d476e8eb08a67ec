"""Histogram: how the values of a few tensors are distributed, before and after they were quantized, and their error."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ConfigError, did_you_mean, some
from pipeline.figures import Cell, Figure
from pipeline.ops import Kernel
from pipeline.reporting.plots import MATPLOTLIB_NBYTES, Spread, distributions
from pipeline.running.progress import Progress
from pipeline.stage import Checkpoint, Context, Footprint, Prediction, Table
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.stats import ErrorStats
from pipeline.tensors.store import Index, TensorStore
from stages.alone import apart

BINS = 120
STEP_NBYTES = 64 << 20  # of float32 values at once, as far as rows divide a tensor
MOST = 8  # tensors in a picture
WIDEST_CODE = 8  # bits of a code that are counted one by one
COUNTED = 1 << 18  # bytes, for each bit of a code, at once


@dataclass(frozen=True)
class Distributed:
    """What was found.

    Attributes:
        tensors: name → encoding, values, largest magnitude before and after, max_abs, rmse and sqnr_db of the error,
            and `bins`: how many values, of equal bins between both `edges`, were there `before` and `after`; how many
            differences between both ends of `near`, as `error`; and, of what is packed, how often each code and each
            power of two of a scale is there, as `codes` and `scales`.
        plot: the picture: a file in the run's folder.
        tables: for people.
    """

    tensors: Mapping[str, Mapping[str, Any]]
    plot: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Histogram:
    """Draw tensors of the checkpoint beside those of the one that `decode` gave: the same, not quantized.

    Attributes:
        tensors: names, and shell patterns of them; of what a pattern matches those that were quantized, if any was. 8
            at most.
        unpack: decodes packed values.
        cast: widens plain ones.
    """

    tensors: tuple[str, ...]
    unpack: Kernel
    cast: Kernel

    writes: ClassVar[tuple[str, ...]] = ("histogram.png",)

    def plan(self, checkpoint: Checkpoint, decode: Checkpoint) -> Prediction:
        apart(checkpoint, "histogram")
        these = [checkpoint.store.specs[n] for n in self._chosen(checkpoint, decode)]
        host = max(4 * _step(s) * prod(s.shape[1:]) for s in these) * 6  # both sides, the error, and counting them
        host += MATPLOTLIB_NBYTES
        return Prediction(None, Footprint(host_nbytes=host, moved_nbytes=sum(4 * s.size for s in these)))

    def run(self, ctx: Context, checkpoint: Checkpoint, decode: Checkpoint) -> Distributed:
        """
        Raises:
            ConfigError: no tensor is called so, or too many are.
        """
        found: dict[str, dict[str, Any]] = {}
        spreads = []
        for name in self._chosen(checkpoint, decode):
            spec = checkpoint.store.specs[name]
            going = Progress(name, 4 * spec.size, "values")
            stats, largest = ErrorStats(), [0.0, 0.0, 0.0]
            packed = _Packed()
            for x, y in self._pairs(decode, checkpoint, name, going, packed):
                stats = stats + ErrorStats.between(x, y)
                here = (float(np.abs(part).max(initial=0)) for part in (x, y, y - x))
                largest = [max(a, b) for a, b in zip(largest, here, strict=True)]
            edges, near = (np.linspace(-m or -1.0, m or 1.0, BINS + 1) for m in (max(largest[:2]), largest[2]))
            before, after, off = (np.zeros(BINS) for _ in range(3))
            for x, y in self._pairs(decode, checkpoint, name, going):
                before += np.histogram(x, edges)[0]
                after += np.histogram(y, edges)[0]
                off += np.histogram(y - x, near)[0]
            spreads.append(Spread(name, spec.encoding, edges, before, after, near, off))
            found[name] = {
                "encoding": spec.encoding, "values": spec.size, "largest_before": largest[0],
                "largest_after": largest[1],
                "max_abs": stats.max_abs, "rmse": stats.rmse, "sqnr_db": stats.sqnr_db,
                "bins": {
                    "edges": [float(edges[0]), float(edges[-1])], "before": _counts(before), "after": _counts(after),
                    "near": [float(near[0]), float(near[-1])], "error": _counts(off), **packed.found,
                },
            }  # fmt: skip
        distributions(ctx.run_dir / self.writes[0], "Before and after quantizing", spreads)
        return Distributed(found, self.writes[0], (_table(found),))

    def _chosen(self, checkpoint: Checkpoint, decode: Checkpoint) -> list[str]:
        specs, before = checkpoint.store.specs, decode.store.specs
        names = list(specs)
        found: dict[str, None] = {}
        for pattern in self.tensors:
            here = [n for n in names if fnmatchcase(n, pattern) and specs[n].size]
            if not here:
                raise ConfigError(f"histogram.tensors: {pattern!r} matches no tensor{did_you_mean(pattern, names)}")
            quantized = [n for n in here if n == pattern or specs[n].encoding != before[n].encoding]
            found |= dict.fromkeys(quantized or here)
        if len(found) > MOST:
            raise ConfigError(
                f"histogram.tensors: {', '.join(self.tensors)}: {len(found)} tensors ({some([*found])}); "
                f"{MOST} at most can be seen in a picture, as of {_narrower([*found])!r}"
            )
        return list(found)

    def _pairs(
        self, decode: Checkpoint, checkpoint: Checkpoint, name: str, going: Progress, packed: "_Packed | None" = None
    ) -> Iterator[Any]:
        """The values before and after, some rows at a time; what is packed is counted on its way."""
        for x, y in zip(self._parts(decode.store, name), self._parts(checkpoint.store, name, packed), strict=True):
            going.add(x.size + y.size)
            yield x, y

    def _parts(self, store: TensorStore, name: str, packed: "_Packed | None" = None) -> Iterator[Any]:
        """A tensor's values as float32, some rows at a time."""
        spec = store.specs[name]
        step = _step(spec)
        for start in range(0, spec.shape[0] if spec.shape else 1, step):
            index: Index = (slice(start, min(start + step, spec.shape[0])),) if spec.shape else ()
            value = store.read(name, index)
            if packed is not None and isinstance(value, QTensor):
                packed.count(value)
            yield self.unpack(value, "F32") if isinstance(value, QTensor) else self.cast(value, "F32")


class _Packed:
    """How often each code and each scale is there. Attributes: found: `codes` and `scales`, by number, as text."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, int]] = {}

    def count(self, value: QTensor) -> None:
        if value.scheme.is_struct:  # neither codes nor scales lie there as numbers
            return
        bits = value.scheme.element_bits
        if bits <= WIDEST_CODE:
            flat = np.ascontiguousarray(value.codes).view(np.uint8).reshape(-1)
            for start in range(0, flat.size, bits * COUNTED):
                self._add("codes", np.bincount(_codes(flat[start : start + bits * COUNTED], bits)))
        if value.scheme.scale == "dynamic8":  # which are codes themselves
            return
        given = value.scales.view(numpy_dtype("F8_E8M0")) if value.scheme.scale == "e8m0" else value.scales
        scales = np.asarray(given).astype(np.float32)
        sizes = np.frexp(np.abs(scales[np.isfinite(scales) & (scales != 0)]))[1] - 1  # the power of two below
        for power, times in zip(*np.unique(sizes, return_counts=True), strict=True):
            here = self.found.setdefault("scales", {})
            here[str(power)] = here.get(str(power), 0) + int(times)

    def _add(self, what: str, counts: Any) -> None:
        here = self.found.setdefault(what, {})
        for code in np.flatnonzero(counts):
            here[str(code)] = here.get(str(code), 0) + int(counts[code])


def _codes(packed: Any, bits: int) -> Any:
    """Codes as whole numbers: of bytes that are a little-endian stream of bits."""
    if bits == 8:
        return packed
    if bits == 4:
        return np.concatenate([packed & 15, packed >> 4])
    return np.unpackbits(packed, bitorder="little").reshape(-1, bits) @ (1 << np.arange(bits))


def _counts(found: Any) -> list[int]:
    return [int(n) for n in found]


def _narrower(names: Sequence[str]) -> str:
    """The pattern of a module, the largest around the first of `names`, that has few enough of them."""
    parts = names[0].split(".")
    wider = (".".join([*parts[:n], "*"]) for n in range(1, len(parts)))
    return next((p for p in wider if sum(fnmatchcase(n, p) for n in names) <= MOST), names[0])


def _step(spec: TensorSpec) -> int:
    """Rows at a time. Of a matrix all, where a scale may need that."""
    if len(spec.shape) < 3:
        return max(1, spec.shape[0] if spec.shape else 1)
    return max(1, STEP_NBYTES // (4 * prod(spec.shape[1:])))


def _table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    rows: Sequence[tuple[Cell, ...]] = [
        (
            name, r["encoding"], Figure(r["largest_before"], form=".3g"), Figure(r["largest_after"], form=".3g"),
            Figure(r["sqnr_db"], "dB", ".2f", "higher"),
        )
        for name, r in found.items()
    ]  # fmt: skip
    columns = ("tensor", "as", "largest before", "after", "SQNR")
    return Table("Values", columns, tuple(rows))
