"""Scales by outputs: of each block the scale, of a few near the usual one, under which outputs lose least.

AWQ clips weights so, each block as if all others were exact. Inputs go together, so what one block loses others make
worse or better: here a row's blocks are looked at one after the other, each with the errors that all others have by
then. Of E‖(ŵ-w)x‖² = Σ e_b H_bc e_cᵀ, with H = E[xxᵀ], that is e_b H_bb e_bᵀ + 2 e_b Σ_{c≠b} H_bc e_cᵀ.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pipeline.ops import Call
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.codecs import bits
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.rounding import encode
from plugins.kernels.quantize.numpy import empty, refuse_unstorable
from plugins.kernels.quantize.numpy.scale import Found, candidates, decoded, merged, quotients
from plugins.kernels.quantize.recipe import Recipe
from plugins.quant.blockwise import Blockwise, matrix_scale, searching
from plugins.quant.imatrix import Imatrix, Weighted
from plugins.quant.structs import WeightedStructs

PASSES = 2  # over the blocks of a row; the third changes next to nothing
TILE = 1 << 20  # weights that are looked at together, for memory's sake


@dataclass(frozen=True)
class ByOutputs(Weighted):
    """A method whose search looks at what a matrix gives; without XᵀX it weighs columns, as `imatrix`."""

    needs_statistics: ClassVar[str] = "hessian"

    @cached_property
    def steps(self) -> Mapping[str, Blockwise]:
        """See `pipeline.method.MethodHooks`."""
        return {"nearest": super().steps["nearest"], "clip": self}

    def encode(
        self, x: Any, *, statistics: Any = None, measure: bool = False, observed: Any = None, **more: Any
    ) -> Any:
        """See `Blockwise.encode`.

        Args:
            x: whole matrices.
            statistics: the `pipeline.calibration.LinearStatistics` of `x`; None: all columns count the same.
        """
        # What is not finite is refused there.
        if statistics is None or statistics.hessian is None or not np.isfinite(x).all():
            return super().encode(x, statistics=statistics, measure=measure, observed=observed, **more)
        q = empty(x.shape, self.scheme)
        for lead in np.ndindex(*x.shape[:-2]):
            second = matrix_scale(x, lead, self.scheme, observed)
            if q.second is not None:
                q.second[lead] = second
            matrix, hessian = np.asarray(x[lead], np.float32), np.asarray(statistics.hessian(*lead), np.float32)
            height = max(1, TILE // matrix.shape[1])
            for start in range(0, len(matrix), height):
                rows = (*lead, slice(start, start + height))
                _search(matrix[rows[-1]], hessian, self.scheme, self.recipe, second, q, rows)
        return q

    def scratch(self, shape: tuple[int, ...]) -> int:
        """Bytes that `encode` takes of a tensor of `shape` `[..., out, in]`: a matrix, its XᵀX, and a tile's work."""
        rows, n = shape[-2:]
        return 4 * (rows * n + n * n + 8 * TILE)

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """As of `Blockwise`, but codes are made here and by no backend of `quantize`."""
        return (call for call in super().calls(name, spec) if call.kernel is not self.quantize)


def _search(matrix: Any, hessian: Any, scheme: Scheme, recipe: Recipe, second: Any, q: QTensor, at: Any) -> None:
    """Write codes of some rows, fp32 [rows, in], to where `at` says.

    Args:
        hessian: fp32 [in, in].
        second: the stored second-level scale, or None.
    """
    rows, n = matrix.shape
    size, e = scheme.block_elems or n, element(scheme.element)
    blocks = np.ascontiguousarray(matrix).reshape(rows, 1, n // size, size)
    ends = blocks.min(axis=(1, 3), keepdims=True), blocks.max(axis=(1, 3), keepdims=True)

    def rounded(values: Any, found: Found) -> tuple[Any, Any]:
        """Codes, and what they decode to less what they stand for."""
        v = quotients(values.copy(), found, scheme, recipe)
        codes = encode(e, v, recipe.ties, recipe.zero, recipe.is_narrow).copy()
        return codes, decoded(codes, found.total, found.zeros, scheme) - values

    with np.errstate(invalid="ignore", over="ignore", divide="ignore", under="ignore"):
        tried = candidates(blocks, ends, scheme, recipe, second)
        refuse_unstorable(tried[0], np.maximum(*map(np.abs, ends)), scheme)
        codes, off = rounded(blocks, tried[0])
        errors = off.reshape(rows, n)
        taken = [_part(tried[0], b) for b in range(n // size)]
        for b in [*range(n // size)] * PASSES:
            own = slice(b * size, (b + 1) * size)
            within = hessian[own, own]
            others = 2 * (errors @ hessian[:, own] - errors[:, own] @ within)
            least = None
            for option in tried:
                part = _part(option, b)
                code, off = rounded(blocks[:, :, b : b + 1], part)
                flat = off.reshape(rows, size)
                loss = np.einsum("ij,ij->i", flat, flat @ within + others)
                if least is None:
                    least, taken[b] = loss, part
                    codes[:, :, b : b + 1], errors[:, own] = code, flat
                    continue
                better = loss < least
                least = np.where(better, loss, least)
                taken[b] = merged(better.reshape(rows, 1, 1, 1), part, taken[b])
                codes[better, :, b], errors[better, own] = code[better, :, 0], flat[better]
    q.codes[at] = bits.pack(codes.reshape(rows, n), e.bits)
    for b, found in enumerate(taken):
        q.scales[at][:, b] = found.stored[:, 0, 0, 0]
        if q.zeros is not None:
            q.zeros[at][:, b] = found.zeros[:, 0, 0, 0]


def _part(found: Found, block: int) -> Found:
    """The scales of one block of every row."""
    arrays = {k: getattr(found, k) for k in ("stored", "total", "divisor", "zeros", "minimum")}
    return Found(**{k: None if a is None else a[:, :, block : block + 1] for k, a in arrays.items()})


@dataclass(frozen=True)
class Clip(Imatrix):
    """As `Imatrix`, but of outputs. Symmetric integers then use all their codes (`half_range`), where nothing says how
    scales are made."""

    needs_hessian: ClassVar[bool] = True
    called: ClassVar[str] = "awq"

    def calibrated(self, method: Any) -> Weighted | WeightedStructs:
        """
        Raises:
            ConfigError: the method cannot search for scales; says why.
        """
        weighted = super().calibrated(method)
        if isinstance(weighted, WeightedStructs):
            return weighted
        s = method.scheme
        if s.block_rows != 1 or s.second not in (None, "f32", "inverse_f32") or method.zero == "minus":
            return weighted
        found = searching(method, self.grid, self.steps)
        return ByOutputs(**{f.name: getattr(found, f.name) for f in fields(Blockwise)})
