"""One arena of glibc's for all threads of a conversion.

Each thread has one of its own otherwise, which keeps what was given back in it: whether that is so of two threads'
largest buffers when a third is wanted is chance, which no plan of memory can know. Pieces that are asked for are few
and large, so threads do not wait for each other. Only commands that convert do so: memory of another program is not
ours to arrange.

Source: GNU libc manual, "Malloc Tunable Parameters".
"""

import ctypes
from typing import Final

ARENA_MAX: Final = -8  # M_ARENA_MAX of malloc.h


def one_for_all() -> None:
    """To be called before there are threads; does nothing where another C library is, which has no `mallopt`."""
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(ARENA_MAX, 1)
