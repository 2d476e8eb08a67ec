"""Packed weights as kernels read them: tiles of bytes, decoded in registers, and never written anywhere.

Codes of 4 bits are not put back in order: the low halves of a tile's bytes are one plane and the high halves another,
and activations are taken apart the same way beforehand (`Tiles.planes`), so that a product is the sum of those of the
planes (as in `plugins/kernels/matmul/planes.py`). Arithmetic is in 32-bit integers and floats, which every device has;
code books are chains of selections, as Triton has no look-up.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element
from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.dequantize import traced
from plugins.kernels.pallas.blocks import divisor, padded
from plugins.kernels.pallas.scheme import LEAST

STEP = 64  # columns of bytes that are read at a time, at most, unless a block has more; at least `LEAST`


def values(codes: Any, name: str) -> Any:
    """float32 of int32 codes of element `name`, as `traced.values`, without look-ups and narrow integers."""
    e = element(name)
    if e.family == "table":
        found = jnp.full(codes.shape, np.float32(e.values[0]))
        for code, value in enumerate(e.values[1:], 1):
            found = jnp.where(codes == code, np.float32(value), found)
        return found
    if e.family == "fixed":
        sign = 1 << (e.bits - 1)
        return ((codes ^ sign) - sign).astype(jnp.float32) * np.float32(e.unit)
    return traced.values(codes, name)


def factor(scales: Any, kind: str) -> Any:
    """float32 of scales as `Tiles` holds them; that of E8M0's 0 is twice what it is (see `_applied`)."""
    if kind == "e4m3":
        return traced.values(scales.astype(jnp.int32), "e4m3")
    if kind != "e8m0":
        return scales.astype(jnp.float32)
    byte = scales.astype(jnp.int32)
    power = jax.lax.bitcast_convert_type(jnp.maximum(byte, 1) << 23, jnp.float32)
    return jnp.where(byte == E8M0_NAN, np.float32(np.nan), power)


@dataclass(frozen=True)
class Tiles:
    """A matrix `[out, in]`, or a stack `[E, out, in]`, of weights, as a kernel reads it.

    Attributes:
        arrays: what the kernel is given: a plain array alone; or codes, scales and, where there are some, zeros.
        count: planes.
        step, steps: columns of `arrays[0]` that are read at a time, and how often.
        scheme: of a packed one, as `arrays` are now; None.
        across: scales of a step; 0 where a row has one, or none.
        after: float32 `[out]` or `[E, out]`, to multiply products with; None.
        rescaled: all scales are in `after`, and none in `arrays`.
    """

    arrays: tuple[Any, ...]
    count: int
    step: int
    steps: int
    scheme: Scheme | None = None
    across: int = 0
    after: Any = None
    rescaled: bool = False

    @staticmethod
    def of(w: Any, rows: int) -> "Tiles":
        """Of an array or a QTensor that `decline` has nothing against, with rows made up to a multiple of `rows`."""
        if not isinstance(w, QTensor):
            step = max(LEAST, divisor(w.shape[-1], STEP))
            array = padded(jnp.asarray(w), {-1: step, -2: rows})
            return Tiles((array,), 1, step, array.shape[-1] // step)
        return _of_packed(w, rows)

    def planes(self, x: Any) -> Any:
        """`[count, N, columns]` of `x` `[N, in]`: of every plane what it is multiplied by; more columns are 0."""
        apart = jnp.moveaxis(x.reshape(len(x), -1, self.count), 2, 0)
        return padded(apart, {-1: self.step * self.steps})

    def tile(self, refs: Any, at: tuple[Any, ...], k: Any, dtype: Any) -> list[Any]:
        """Inside a kernel: the planes `[rows, step]` of `dtype` of step `k`.

        Args:
            refs: blocks of `arrays`, which have all columns.
            at: indices before the columns.
        """
        lies = refs[0][(*at, pl.ds(pl.multiple_of(k * self.step, self.step), self.step))]
        if self.scheme is None:
            return [lies.astype(dtype)]
        scheme, bits = self.scheme, self.scheme.element_bits
        codes = lies.astype(jnp.int32)
        parts = [(codes >> p * bits) & ((1 << bits) - 1) if self.count > 1 else codes for p in range(self.count)]
        found = [values(part, scheme.element) for part in parts]
        shared = [self._spread(ref, at, k) for ref in refs[1:]]
        scales = None if self.rescaled else shared.pop(0)
        return [self._applied(v, scales, *shared).astype(dtype) for v in found]

    def _spread(self, ref: Any, at: tuple[Any, ...], k: Any) -> Any:
        """Scales or zeros of step `k` as what meets `[rows, step]`."""
        if not self.across:
            return ref[(*at, pl.ds(0, 1))]
        block = ref[(*at, pl.ds(pl.multiple_of(k * self.across, self.across), self.across))]
        rows = block.shape[0]
        each = jnp.broadcast_to(block[:, :, None], (rows, self.across, self.step // self.across))
        return each.reshape(rows, self.step)

    def _applied(self, v: Any, scales: Any, zeros: Any = None) -> Any:
        assert self.scheme is not None
        if self.scheme.zero == "int":
            v = v - zeros.astype(jnp.float32)
        if scales is None:
            return v
        v = v * factor(scales, self.scheme.scale)
        if self.scheme.scale == "e8m0":  # 2^-127 itself is subnormal
            v = jnp.where(scales.astype(jnp.int32) == 0, v * np.float32(0.5), v)
        return v + zeros.astype(jnp.float32) if self.scheme.zero == "min_f16" else v


def _of_packed(w: QTensor, rows: int) -> Tiles:
    scheme, scales, second = w.scheme, w.scales, w.second
    if scheme.second == "dynamic8":  # coded across the whole tensor; a float32 for 64 elements or so
        scales, second, scheme = traced.factors(w), None, replace(scheme, scale="f32", second=None)
    if scheme.scale == "e4m3":
        scales = jax.lax.bitcast_convert_type(scales, jnp.uint8)
    out = w.codes.shape[-2]
    scales, zeros = (None if a is None else by_row(a, scheme, out) for a in (scales, w.zeros))
    after = None if second is None else seconds(w)
    count, columns = 8 // scheme.element_bits, w.codes.shape[-1]
    held = scheme.block_elems * scheme.element_bits // 8  # bytes of a block
    if not held or held >= columns:
        held = 0  # a row has one scale, which can wait for the product
        if scheme.zero != "min_f16":
            once = factor(scales, scheme.scale)[..., 0]
            after, scales = once if after is None else after * once, None
    step = max(LEAST, held, divisor(columns, STEP))
    arrays = [padded(w.codes, {-1: step, -2: rows})]
    across = step // held if held else 0
    # What rows and columns are made longer with is finite, and meets activations that are 0.
    arrays += [
        padded(a, {-1: max(1, across), -2: rows}, fill) for a, fill in ((scales, 1), (zeros, 0)) if a is not None
    ]
    return Tiles(tuple(arrays), count, step, arrays[0].shape[-1] // step, scheme, across, after, scales is None)


def seconds(w: QTensor) -> Any:
    """float32 `[…, out]` that products are multiplied with: the second-level scale of a matrix, or its inverse."""
    assert w.second is not None
    times = jnp.broadcast_to(w.second[..., 0], w.codes.shape[:-1])
    return 1 / times if w.scheme.second == "inverse_f32" else times


def by_row(shared: Any, scheme: Scheme, out: int) -> Any:
    """`[…, out, across]` of what rows share by `block_rows`."""
    if scheme.block_rows == 1:
        return shared
    return jnp.repeat(shared, scheme.block_rows or out, axis=-2)[..., :out, :]
