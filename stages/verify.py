"""Verify: are two checkpoints, of whatever dialects, the same model?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isclose, prod
from typing import Any

import numpy as np

from pipeline import meter
from pipeline.errors import MOST_NAMED, shown
from pipeline.figures import Figure
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Chunk, Context, OutputFile, Table, Work
from pipeline.tensors.blocks import common, grain_of
from pipeline.tensors.chunks import pack
from pipeline.tensors.pieces import Piece
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, dtype_name, group_of
from pipeline.tensors.stats import ErrorStats
from pipeline.tensors.store import TensorStore
from pipeline.terminal import line

EQUAL = "equal"
TASK_SCRATCH_NBYTES = 16 << 20
NEUTRAL = (
    "architectures", "dtype", "torch_dtype", "transformers_version", "quantization_config", "_name_or_path",
    "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "attention_dropout",
    "router_aux_loss_coef", "output_router_logits", "output_attentions", "output_hidden_states",
)  # fmt: skip
"""Settings of config.json that say nothing of what a model computes: of files, of generating, of training."""
CLOSE = 1e-6  # numbers that differ by such a share are one number, in fp32 as GGUF has it and as text
ROUNDED = ("F16", "BF16")  # what values are rounded to where they are stored plainly


@dataclass(frozen=True)
class Verified:
    """What comparing two checkpoints found.

    Attributes:
        same: same tensors, same shapes, every value equal bit for bit, and no setting that both have another one, of
            those that say what a model computes.
        summary: one line that says so.
        structure: tensors that only one side has, or whose shapes differ.
        differing: tensors whose values differ, with the error of the second against the first: values, max_abs, rmse,
            sqnr_db.
        rounded: of these, those whose values on one side are those of the other, rounded to this dtype.
        recoded: tensors with equal values in other encodings.
        config: config.json keys whose values differ.
        tables: for people.
    """

    same: bool
    summary: str
    structure: tuple[str, ...]
    differing: Mapping[str, Mapping[str, float]]
    rounded: Mapping[str, str]
    recoded: tuple[str, ...]
    config: tuple[str, ...]
    tables: tuple[Table, ...]

    @property
    def exit_code(self) -> int:
        return 0 if self.same else 7


@dataclass(frozen=True)
class Verify:
    """Compare checkpoint `b` with checkpoint `a`, tensor by tensor.

    Attributes:
        unpack: turns packed tensors into values, where the encodings differ.
        cast: widens values for the comparison.
    """

    unpack: Kernel
    cast: Kernel

    def run(self, ctx: Context, a: Checkpoint, b: Checkpoint) -> Work[Verified]:
        return VerifyWork(a.store, b.store, a.config, b.config, self.unpack, self.cast, ctx.chunk_nbytes)


@dataclass(frozen=True)
class VerifyWork:
    """One task a chunk; nothing is written."""

    a: TensorStore
    b: TensorStore
    config_a: Mapping[str, Any] = field(repr=False)
    config_b: Mapping[str, Any] = field(repr=False)
    unpack: Kernel
    cast: Kernel
    chunk_nbytes: int

    @cached_property
    def shared(self) -> dict[str, TensorSpec]:
        """Tensors that both have, with equal shapes."""
        theirs = self.b.specs
        return {n: s for n, s in self.a.specs.items() if n in theirs and theirs[n].shape == s.shape}

    @property
    def structure(self) -> tuple[str, ...]:
        a, b = self.a.specs, self.b.specs
        return (
            *(f"only the first has {n}" for n in a if n not in b),
            *(f"only the second has {n}" for n in b if n not in a),
            *(f"{n}: shapes {a[n].shape} and {b[n].shape}" for n in a if n in b and a[n].shape != b[n].shape),
        )

    @property
    def outputs(self) -> Sequence[OutputFile]:
        return ()

    @cached_property
    def chunks(self) -> Sequence[Chunk]:
        theirs = self.b.specs
        grains = {n: common(grain_of(self.a, n), grain_of(self.b, n)) for n in self.shared}
        return tuple(self._chunk(p, theirs) for p in pack(self.shared, self.chunk_nbytes // 4, grains))

    def _chunk(self, pieces: tuple[Piece, ...], theirs: Mapping[str, TensorSpec]) -> Chunk:
        nbytes = peak = 0
        for piece in pieces:
            spec, other = self.shared[piece.tensor], theirs[piece.tensor]
            elems = prod(s.stop - s.start for s in piece.index)
            share = elems / spec.size if spec.size else 0.0
            taken = round((spec.nbytes + other.nbytes) * share)
            nbytes += taken
            peak = max(peak, taken + 20 * elems)  # both sides as float32, their difference and its square
        return Chunk(pieces, nbytes, 0, peak + TASK_SCRATCH_NBYTES)

    def begin(self, *, fresh: bool) -> None:
        pass

    def do(self, chunk: Chunk) -> str:
        for piece in chunk.pieces:
            with meter.stage("verify"):
                self._compare(piece)
        return EQUAL

    def digest(self, chunk: Chunk) -> str:
        return EQUAL  # nothing was written that could have changed

    def _compare(self, piece: Piece) -> None:
        """Note the error of this piece; a piece that is equal bit for bit has none."""
        x, y = (store.read(piece.tensor, piece.index) for store in (self.a, self.b))
        if _same_bits(x, y):
            return
        stored = (x, y)
        x, y = self._values(x), self._values(y)
        if _same_bits(x, y):
            meter.error(piece.tensor, ErrorStats())
            return
        meter.remark(piece.tensor, self._rounded(*stored, x, y))
        meter.error(piece.tensor, ErrorStats.between(x, y))

    def _rounded(self, stored_x: Any, stored_y: Any, x: Any, y: Any) -> str:
        """The dtype of one side that the other's values, rounded to it, are equal in; empty: there is none."""
        for stored, wide in ((stored_y, x), (stored_x, y)):
            dtype = "" if isinstance(stored, QTensor) else dtype_name(stored.dtype)
            if dtype in ROUNDED and _same_bits(self.cast(wide, dtype, overflow="inf"), stored):
                return dtype
        return ""

    def _values(self, value: Any) -> Any:
        if isinstance(value, QTensor):
            return self.unpack(value, "F32")
        return value if value.dtype.kind in "iub" or value.dtype.itemsize == 8 else self.cast(value, "F32")

    def finish(self, records: Sequence[Mapping[str, Any]]) -> Verified:
        errors: dict[str, ErrorStats] = {}
        remarks: dict[str, set[str]] = {}
        for record in records:
            for name, said in record.get("remarks", {}).items():
                remarks.setdefault(name, set()).update(said)
            for name, sums in record["errors"].items():
                errors[name] = errors.get(name, ErrorStats()) + ErrorStats.from_json(sums)
        differing = {
            n: {"values": e.count, "max_abs": e.max_abs, "rmse": e.rmse, "sqnr_db": round(e.sqnr_db, 2)}
            for n, e in errors.items()
            if e.count
        }
        recoded = tuple(n for n, e in errors.items() if not e.count)
        rounded = {n: dtype for n, said in remarks.items() for dtype in said if len(said) == 1 and dtype}
        structure = self.structure
        config = tuple(
            sorted(k for k in {*self.config_a, *self.config_b} if self.config_a.get(k) != self.config_b.get(k))
        )
        both = [
            k for k in config
            if k in self.config_a and k in self.config_b and k not in NEUTRAL
            and not _alike(self.config_a[k], self.config_b[k])
        ]  # fmt: skip
        settings = f"; but config.json has another {', '.join(shown(both))}" if both else ""
        same = not structure and not differing and not both
        verdict = "the same model" if same else "not the same model"
        if not structure and not differing:
            how = f", {len(recoded)} of them in another encoding" if recoded else ", encodings and all"
            summary = f"{verdict}: all {len(self.shared)} tensors equal bit for bit{how}{settings}"
        else:
            count = "all" if len(rounded) == len(differing) else len(rounded)
            to = " or ".join(sorted({*rounded.values()}))
            why = f" ({count} equal once rounded to {to}, as one side has them)" if rounded else ""
            summary = (
                f"{verdict}: of {len(self.shared)} shared tensors {len(differing)} differ in value{why}, "
                f"{len(structure)} differences in structure{settings}"
            )
        a, b = self.a.specs, self.b.specs
        equal = len(self.shared) - len(errors)
        found = {
            "only in the first": [n for n in a if n not in b],
            "only in the second": [n for n in b if n not in a],
            "of another shape": [n for n in a if n in b and n not in self.shared],
            "other values": [n for n in differing if n not in rounded],
            **{f"equal once rounded to {d}": [n for n in rounded if rounded[n] == d] for d in ROUNDED},
            "the same values in another encoding": recoded,
            "other settings in config.json": config,
        }
        rows = [("equal bit for bit", Figure(equal, form=",d"), "")] if equal else []
        rows += [(what, Figure(len(names), form=",d"), _some(names)) for what, names in found.items() if names]
        table = Table("First and second", ("", "count", "which"), tuple(rows))
        return Verified(same, summary, structure, differing, rounded, recoded, config, (table,) if rows else ())


def _alike(x: Any, y: Any) -> bool:
    """Whether settings say one thing: numbers as near as text and fp32 have them."""
    if isinstance(x, Mapping) and isinstance(y, Mapping):
        return x.keys() == y.keys() and all(_alike(x[k], y[k]) for k in x)
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(map(_alike, x, y))
    numbers = [type(v) in (int, float) for v in (x, y)]
    return isclose(x, y, rel_tol=CLOSE) if all(numbers) else bool(x == y)


def _some(names: Sequence[str]) -> str:
    """Tensors and settings as a table has them, the same of many layers once."""
    return "\n".join(shown([line(group) for group in dict.fromkeys(map(group_of, names))], most=MOST_NAMED))


def _same_bits(x: Any, y: Any) -> bool:
    if isinstance(x, QTensor) or isinstance(y, QTensor):
        if not (isinstance(x, QTensor) and isinstance(y, QTensor) and x.scheme == y.scheme):
            return False
        return all(_same_bits(a, y.components[c]) for c, a in x.components.items())
    if x.dtype != y.dtype:
        return False
    bits = np.dtype(f"u{x.dtype.itemsize}") if x.dtype.itemsize in (1, 2, 4, 8) else np.dtype("u8")
    return bool(np.array_equal(np.ascontiguousarray(x).view(bits), np.ascontiguousarray(y).view(bits)))
