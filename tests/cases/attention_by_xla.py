"""`cudnn` where there is no GPU: as it is, with XLA's attention of `jax.nn` in the place of cuDNN's."""

from functools import partial

from plugins.kernels.attention import cudnn
from plugins.kernels.attention.declines import cudnn as declines

__all__ = ["attention", "declines"]

attention = partial(cudnn.through, "xla")
