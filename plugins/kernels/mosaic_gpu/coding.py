"""Which packed weights are decoded by bits (`by_bits.py`), and how what belongs to them lies in shared memory."""

from dataclasses import dataclass, replace
from typing import Any, Final

import jax.numpy as jnp

from pipeline.tensors.scheme import Scheme
from plugins.kernels.mosaic_gpu.elements import ELEMENTS, Element
from plugins.kernels.mosaic_gpu.factors import NBYTES
from plugins.kernels.mosaic_gpu.products import HIGH

STEP: Final = 64  # bytes of a row of codes in a step
MOST_SHARED: Final = 32 << 10  # bytes of what blocks of 64 rows share, up to which shared memory has all of it
PART: Final = 16  # bytes of a row's, of what is copied step by step instead: the least that a copy takes


@dataclass(frozen=True)
class Coding:
    """How codes become values.

    Attributes:
        element: a key of `ELEMENTS`.
        scale: kind of the scales that codes are multiplied by; None: products are, afterwards, or nothing is.
        zero: whether there are zero points.
        held: columns that share a scale and a zero point, of which a row has `blocks`; both 0 where there are none.
        by_step: whether scales and zero points are copied with the codes of a step; those of all steps before.
    """

    element: str
    scale: str | None
    zero: bool
    held: int
    blocks: int
    by_step: bool = False

    @property
    def of(self) -> Element:
        return ELEMENTS[self.element]

    @property
    def columns(self) -> int:
        """Of a step."""
        return 8 * STEP // self.of.bits

    @property
    def shared(self) -> dict[str, int]:
        """Bytes of what a block of columns has, by name."""
        scales = {} if self.scale is None else {"scales": NBYTES[self.scale]}
        return {**scales, "zeros": 1} if self.zero else scales

    @property
    def row_nbytes(self) -> int:
        """Of what blocks share."""
        return self.blocks * sum(self.shared.values())

    def across(self, name: str) -> int:
        """Of how many blocks of a row shared memory has what they share."""
        return PART // self.shared[name] if self.by_step else self.blocks


def coding_of(scheme: Scheme, dtype: Any, out: int, n_in: int) -> Coding | None:
    """That of weights `[…, out, n_in]`, for x of `dtype`; None where they are not decoded by bits."""
    if scheme.element not in ELEMENTS or jnp.dtype(dtype) != jnp.bfloat16:
        return None
    if scheme.zero == "min_f16" or scheme.scale not in NBYTES or (scheme.scale == "e4m3" and scheme.element != "e2m1"):
        return None
    of, held = ELEMENTS[scheme.element], scheme.block_elems
    # Copies begin at multiples of 16 bytes of a row of codes, and what 64 rows share at multiples of 128.
    if out % HIGH or n_in * of.bits % 128:
        return None
    if held in (0, n_in) and scheme.scale in ("bf16", "f16", "f32") and scheme.zero is None:
        return Coding(scheme.element, None, False, 0, 0)
    if scheme.element == "e5m2" and scheme.scale in ("f16", "f32"):
        return None  # of an infinity times a scale in two parts, of two signs, nothing is left
    if held & (held - 1) or held * of.bits < 32 or n_in % held:
        return None
    coding = Coding(scheme.element, scheme.scale, scheme.zero is not None, held, n_in // held)
    shared = coding.shared.values()
    if coding.row_nbytes * HIGH <= MOST_SHARED and not any(coding.blocks * nbytes % 2 for nbytes in shared):
        return coding
    of_step = max(1, coding.columns // held)
    if any(coding.blocks * nbytes % PART or of_step * nbytes > PART for nbytes in shared):
        return None
    return replace(coding, by_step=True)
