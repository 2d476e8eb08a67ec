"""The user's cache folder, as tests have it: nothing in it but the native kernels, compiled once for all tests.

What tests measure is no rate of anybody's machine, and what that has measured is nothing to a test.
"""

from pathlib import Path

NATIVE = Path(__file__).parents[2] / ".pytest_cache" / "native"


def fresh(folder: Path) -> str:
    """Make `folder` one; what XDG_CACHE_HOME is to be."""
    NATIVE.mkdir(parents=True, exist_ok=True)
    (folder / "weightmill").mkdir(parents=True, exist_ok=True)
    (folder / "weightmill/native").symlink_to(NATIVE, target_is_directory=True)
    return str(folder)
