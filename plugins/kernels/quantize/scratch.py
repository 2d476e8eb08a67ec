"""What making codes takes beside what goes in and comes out, where values that share a scale must be seen at once.

Backends work in tiles or pieces, whose memory is in every task's allowance. What cannot be cut is a tile of its own,
however large. Measured as the slope of peak memory over rows of 4 and 8 million values (numpy, xla) and of 64 and 256
thousand (reference), with pipeline.testing.peak, and a margin.
"""

from collections.abc import Iterable
from math import prod

from pipeline.tensors.blocks import block_grain
from pipeline.tensors.scheme import Scheme

# Bytes a value. native reads rows twice instead; pallas has small blocks alone.
PLAIN = {"numpy": 6, "xla": 48, "pallas": 0, "native": 0, "reference": 150}
SEARCHING = {**PLAIN, "numpy": 54, "xla": 54}  # the error of every scale that is tried
SMALL_ELEMS = 1 << 16  # a tile's


def scratch_nbytes(
    scheme: Scheme, shape: tuple[int, ...], backends: Iterable[str], *, cuts_rows: bool, searches: bool
) -> int:
    """Bytes for a box of a tensor of `shape`, whichever of `backends` does it.

    Args:
        cuts_rows: rows that share a scale may come in parts.
        searches: several scales are tried.
    """
    table = SEARCHING if searches else PLAIN
    tiled = scheme.block_rows * scheme.block_elems  # NumPy cuts doubly quantized tensors too, others see them whole
    whole = prod(min(g, n) for g, n in zip(block_grain(scheme, shape), shape, strict=True))
    if scheme.block_elems == 0 and scheme.block_rows and not cuts_rows and shape:
        tiled = whole = min(scheme.block_rows, prod(shape[-2:-1])) * shape[-1]
    least = {b: tiled if b == "numpy" else whole for b in backends}
    return max((table.get(b, 0) * n for b, n in least.items() if n > SMALL_ELEMS), default=0)
