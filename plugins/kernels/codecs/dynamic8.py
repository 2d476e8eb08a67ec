"""Scales quantized once more, bitsandbytes' way ("double quantization", QLoRA, section 3).

The float32 scales of a tensor, in order, lose their mean (the offset); in flat blocks of 256, what remains is divided
by its largest magnitude and coded with a map of 256 values in [-1, 1] whose exponents are decimal and whose precision
grows toward 1 (`plugins.facts.codebooks`).
"""

from typing import Any

import numpy as np

from pipeline.tensors.scheme import DYNAMIC8_BLOCK
from plugins.facts.codebooks import dynamic8


def encode(scales: Any) -> tuple[Any, Any]:
    """(uint8 codes of `scales`' shape, float32 `[blocks + 1]`: largest magnitudes, then the offset)."""
    flat = scales.reshape(-1).astype(np.float32)
    offset = np.float32(np.mean(flat, dtype=np.float64)) if flat.size else np.float32(0)
    flat = flat - offset
    blocks = -(-flat.size // DYNAMIC8_BLOCK)
    second = np.empty(blocks + 1, np.float32)
    second[-1] = offset
    codes = np.empty(flat.size, np.uint8)
    values = dynamic8().astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    for b in range(blocks):
        part = flat[b * DYNAMIC8_BLOCK : (b + 1) * DYNAMIC8_BLOCK]
        amax = second[b] = np.abs(part).max()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.nan_to_num(part * (np.float32(1) / amax), nan=0.0)
        codes[b * DYNAMIC8_BLOCK : (b + 1) * DYNAMIC8_BLOCK] = np.searchsorted(middles, np.clip(ratio, -1, 1))
    return codes.reshape(scales.shape), second


def decode(codes: Any, second: Any) -> Any:
    """float32 scales of uint8 `codes`, each operation rounded to float32."""
    flat = dynamic8()[np.asarray(codes).reshape(-1)]
    largest = np.repeat(np.asarray(second)[:-1], DYNAMIC8_BLOCK)[: flat.size]
    with np.errstate(over="ignore"):
        return (flat * largest + np.asarray(second)[-1]).reshape(codes.shape)
