"""Dtypes of weights as torch, and so config.json, spells them."""

from typing import Final

TORCH: Final = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
FROM_TORCH: Final = {name: dtype for dtype, name in TORCH.items()}
DEFAULT: Final = TORCH["BF16"]  # of a checkpoint that states none
SCALES: Final = {"BF16": "bf16", "F16": "f16", "F32": "f32"}  # of a leaf → what a `Scheme` calls scales of it
