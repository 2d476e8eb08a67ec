"""Values of ggml's block types that no scheme describes: nothing is kept packed here.

The types of code books (IQ1 to IQ3) and the ternary ones are decoded by the `gguf` package, which has the books.
"""

from typing import Any

import numpy as np

from plugins.facts import ggml_blocks
from plugins.formats.gguf.types import GGML


def decode(kind: str, rows: Any) -> Any:
    """Rows of blocks, uint8 [..., n], as F32 values [..., n / bytes of a block · elements of a block].

    Raises:
        NotImplementedError: a type that neither `ggml_blocks` nor the `gguf` package decodes.
    """
    t = GGML[kind]
    if kind in ggml_blocks.DECODERS:
        return ggml_blocks.decode(kind, rows, t.block, t.nbytes)
    from gguf import GGMLQuantizationType, dequantize

    return dequantize(np.ascontiguousarray(rows), GGMLQuantizationType(t.number))
