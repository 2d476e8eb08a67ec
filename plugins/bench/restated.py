"""GPTQ and AWQ as their papers have them, and as llm-compressor sets them (W4A16), in plain float64 NumPy.

They share no code with `plugins.quant`, so that a table of our methods has something of others beside it where
llm-compressor is not installed. They are given what ours are given, XᵀX of the unquantized model.

    GPTQ: 4-bit integers, symmetric, groups of 128, one scale a group by its largest value; columns of the largest
    inputs first, groups as they lie (`actorder=static`); damping 0.01 (Frantar et al. 2022, algorithm 1).
    AWQ: 4-bit integers with a zero point, groups of 128; of each set of matrices that share inputs s = rms(x)^α /
    mean|w|^(1-α), α in 20 steps, with the least loss of outputs (Lin et al. 2023, section 3.2). rms(x) stands for the
    mean of |x|, which nobody keeps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.bench.quality import Given, Rounded
from pipeline.errors import StageError
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store_view import StoreView

GROUP, BITS, SCALE_BITS = 128, 4, 16
GRID = 20
DAMPING = 0.01
SHARED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))  # parts of names: the same inputs


@dataclass(frozen=True)
class Published:
    """See `pipeline.bench.quality.Rounder`.

    Attributes:
        method: which of the two.
    """

    method: Literal["gptq", "awq"]

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    @property
    def reads(self) -> str | None:
        return None

    def why_not(self, checkpoint: Checkpoint) -> str:
        known = checkpoint.statistics
        return (
            ""
            if known is not None and getattr(known, "hessians", False)
            else "no XᵀX: bench_quality has calibrate=gptq"
        )

    def rounded(self, checkpoint: Checkpoint, names: Sequence[str], given: Given, place: Path) -> Rounded:
        specs = checkpoint.store.specs
        values: dict[str, Any] = {}
        for shared in _shared(names) if self.method == "awq" else [[name] for name in names]:
            values |= self._of(checkpoint, shared)
        nbytes = {n: sum(_nbytes(specs[n].shape, self.method)) for n in names}
        return Rounded(replace(checkpoint, store=_Values(checkpoint.store, values)), nbytes)

    def _of(self, checkpoint: Checkpoint, shared: Sequence[str]) -> dict[str, Any]:
        assert checkpoint.statistics is not None
        store = checkpoint.store
        whole = {n: np.asarray(store.read(n, tuple(slice(0, d) for d in store.specs[n].shape))) for n in shared}
        known = checkpoint.statistics.of(shared[0])
        if known is None or known.hessian is None:
            raise StageError(f"{shared[0]}: nothing was seen of what it is multiplied by")
        found = {n: np.empty(w.shape, np.float32) for n, w in whole.items()}
        for lead in np.ndindex(*next(iter(whole.values())).shape[:-2]):
            hessian = known.hessian(*lead).astype(np.float64)
            parts = [w[lead].astype(np.float64) for w in whole.values()]
            made = [gptq(parts[0], hessian)] if self.method == "gptq" else awq(parts, hessian)
            for name, one in zip(whole, made, strict=True):
                found[name][lead] = one
        return found


def gptq(w: Any, hessian: Any) -> Any:
    """The values that codes of `w` [out, in] decode to."""
    n = w.shape[1]
    group = group_of(n)
    scales = np.maximum(np.abs(w.reshape(len(w), -1, group)).max(-1) / 7.5, 1e-12).astype(np.float16).astype(np.float64)
    h = np.array(hessian, np.float64)
    h[np.diag_indices(n)] = np.where(np.diag(h) > 0, np.diag(h), 1)  # of inputs that are always 0
    h[np.diag_indices(n)] += DAMPING * np.mean(np.diag(h))
    order = np.argsort(-np.diag(hessian), kind="stable")
    upper = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    rest, out = w[:, order].copy(), np.empty_like(w)
    for k, column in enumerate(order):
        scale = scales[:, column // group]
        out[:, column] = np.clip(np.rint(rest[:, k] / scale), -8, 7) * scale
        rest[:, k + 1 :] -= np.outer((rest[:, k] - out[:, column]) / upper[k, k], upper[k, k + 1 :])
    return out


def awq(parts: Sequence[Any], hessian: Any) -> list[Any]:
    """The values that codes of matrices with the same inputs decode to, inputs and columns scaled."""
    rms = np.sqrt(np.maximum(np.diag(hessian), 1e-12))
    rows = np.concatenate(parts)
    grouped = np.abs(rows).reshape(len(rows), -1, group_of(rows.shape[1]))
    size = (grouped / np.maximum(grouped.max(-1, keepdims=True), 1e-12)).reshape(rows.shape).mean(0)
    best: tuple[float, list[Any]] | None = None
    for step in range(GRID):
        s = np.maximum(rms ** (step / GRID) / (size ** (1 - step / GRID) + 1e-4), 1e-4)
        s = s / np.sqrt(s.max() * s.min())
        made = [_asymmetric(w * s) / s for w in parts]
        lost = sum(float(np.sum((m - w) * ((m - w) @ hessian))) for m, w in zip(made, parts, strict=True))
        if best is None or lost < best[0]:
            best = lost, made
    assert best is not None
    return best[1]


def _asymmetric(w: Any) -> Any:
    blocks = w.reshape(len(w), -1, group_of(w.shape[1]))
    low, high = np.minimum(blocks.min(-1, keepdims=True), 0), np.maximum(blocks.max(-1, keepdims=True), 0)
    scale = np.maximum((high - low) / 15, 1e-8).astype(np.float16).astype(np.float64)
    scale = np.maximum(scale, 6e-8)
    zero = np.clip(np.rint(-low / scale), 0, 15)
    return ((np.clip(np.rint(blocks / scale) + zero, 0, 15) - zero) * scale).reshape(w.shape)


def group_of(n: int, most: int = GROUP) -> int:
    """`most` columns, and fewer in rows of `n` that these do not divide, as ours have."""
    return next(size for size in (most, 64, 32, 16) if size <= most and n % size == 0)


def _nbytes(shape: tuple[int, ...], method: str) -> Iterator[int]:
    """Codes, scales, and zero points."""
    values = int(np.prod(shape))
    groups = values // group_of(shape[-1])
    yield values * BITS // 8
    yield groups * SCALE_BITS // 8
    yield groups * BITS // 8 if method == "awq" else 0


def _shared(names: Sequence[str]) -> list[list[str]]:
    of = {part: "+".join(parts) for parts in SHARED for part in parts}
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(".".join(of.get(part, part) for part in name.split(".")), []).append(name)
    return [*found.values()]


class _Values(StoreView):
    """A store in which some tensors are values that are there already, float32."""

    __slots__ = ("store", "values")

    def __init__(self, store: Any, values: Mapping[str, Any]):
        self.store, self.values = store, values

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {**self.store.specs, **{n: TensorSpec(v.shape, "F32") for n, v in self.values.items()}}

    def read(self, name: str, index: tuple[slice, ...] = ()) -> Any:
        return self.values[name][index] if name in self.values else self.store.read(name, index)
