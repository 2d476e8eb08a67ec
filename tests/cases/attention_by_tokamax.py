"""`tokamax` where there is no GPU: as it is, with XLA in the place of its kernels."""

from functools import partial

from plugins.kernels.attention import tokamax
from plugins.kernels.attention.declines import tokamax as declines

__all__ = ["attention", "declines"]

attention = partial(tokamax.through, "xla")
