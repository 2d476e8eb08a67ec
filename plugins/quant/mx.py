"""OCP Microscaling weights: which element, and by which of the many rules in use its codes are made."""

from dataclasses import dataclass

from plugins.kernels.quantize import ScaleRule, Ties, Tiny, Zero
from plugins.quant.blockwise import Blockwise


@dataclass(frozen=True)
class MX(Blockwise):
    """`Blockwise` whose defaults are MXFP4 as OCP MX v1.0 describes it: blocks of 32, E8M0 scales.

    Attributes:
        element: e2m1, e2m3, e3m2, e4m3, e5m2 or mxint8.
        scale_rule, ties, zero, tiny: as in `Blockwise`; see plugins/kernels/quantize.
    """

    element: str = "e2m1"
    block_elems: int = 32
    scale: str = "e8m0"
    scale_rule: ScaleRule | None = None
    ties: Ties | None = None
    zero: Zero | None = None
    tiny: Tiny | None = None
