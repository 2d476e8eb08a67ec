"""quantize into ggml's structs: what all backends have in common, and NumPy's way, which is the definition.

A matrix is encoded in bands of whole rows. How a band is encoded is `plugins.kernels.codecs.superblocks`' business, or
that of C++ which gives the same bytes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import STRUCTS, Scheme
from pipeline.tensors.stats import ErrorStats
from plugins.facts import ggml_blocks
from plugins.kernels.codecs.ggml_bytes import blocks_of
from plugins.kernels.codecs.superblocks import encode
from plugins.kernels.quantize.mxfp4.errors import compared

BAND = 1 << 20  # elements: what is made float32 at once

Encode = Callable[[str, Any, Any, int, Any], None]
"""`(kind, rows [r, n], importance [n] or None, flat index of the first value, out uint8 [r, bytes])`: fills `out`."""


def of_numpy(kind: str, rows: Any, importance: Any, first: int, out: Any) -> None:
    """See `Encode`."""
    out[...] = blocks_of(kind, encode(kind, rows, importance, first)).reshape(out.shape)


def quantize(x: Any, scheme: Scheme, *, measure: bool, importance: Any, encode: Encode = of_numpy) -> Any:
    """See the op's docstring.

    Raises:
        ConfigError: importance is not of the columns of `x`.
        ValueRangeError: a NaN or an infinity, or a factor past fp16.
    """
    kind, n = scheme.element.upper(), x.shape[-1]
    if importance is not None and (wanted := (*x.shape[:-2], n)) != tuple(importance.shape):
        raise ConfigError(f"quantize importance: of shape {[*importance.shape]}, where columns have {[*wanted]}")
    codes = np.empty(scheme.components(x.shape)["codes"], np.uint8)
    whole, out = x.reshape(-1, n), codes.reshape(-1, codes.shape[-1])
    known = None if importance is None else np.ascontiguousarray(importance, np.float32).reshape(-1, n)
    rows = x.shape[-2] if x.ndim > 1 else 1
    step, stats = max(1, BAND // max(1, n)), ErrorStats()
    for matrix in range(len(whole) // max(1, rows)):
        for at in range(matrix * rows, (matrix + 1) * rows, step):
            band = slice(at, min(at + step, (matrix + 1) * rows))
            encode(kind, whole[band], None if known is None else known[matrix], at * n, out[band])
            if measure:
                values = ggml_blocks.decode(kind, out[band], *STRUCTS[scheme.element])
                stats += compared(whole[band].astype(np.float32).reshape(-1), values.reshape(-1))
    q = QTensor(codes, scheme=scheme)
    return (q, stats) if measure else q
