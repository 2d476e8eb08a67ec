"""What `native_int8` needs of C++: what all native backends do, and products of a few rows in bytes."""

from collections.abc import Callable

from plugins.kernels.native import library
from plugins.kernels.native.library import missing as missing


def prepare(say: Callable[[str], None]) -> None:
    """See `library.prepare`."""
    library.prepare(say, ("rounded",))
