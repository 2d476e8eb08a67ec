"""A checkpoint's outline, for `plan`: the headers of its safetensors files, without the gigabytes behind them.

Files of the right size with their headers in place and holes behind them, so that containers open them as they open
any file. Nothing may read values out of it: `Fetched.whole` is false, and it goes when the process ends.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pipeline.errors import SourceError
from plugins.formats.safetensors.header import LENGTH_NBYTES, MAX_HEADER_NBYTES

FIRST_NBYTES = 256 << 10  # most headers are shorter, so that one request does


def outline(settings: Mapping[str, Path], weights: Mapping[str, int], head: Callable[[str, int], bytes]) -> Path:
    """A folder that looks like the whole repository.

    Args:
        settings: name in the repository → the file itself.
        weights: names of safetensors files → bytes.
        head: gives the first bytes of a file: `head(name, count)`.

    Raises:
        SourceError: a file that is no safetensors file.
    """
    folder = Path(tempfile.mkdtemp(prefix="weightmill-plan-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, path in settings.items():
        _made(folder, [name])
        (folder / name).symlink_to(path.absolute())
    _made(folder, weights)
    for name, nbytes in weights.items():
        start = head(name, min(nbytes, FIRST_NBYTES))
        needed = LENGTH_NBYTES + int.from_bytes(start[:LENGTH_NBYTES], "little")
        if len(start) < LENGTH_NBYTES or needed > min(nbytes, LENGTH_NBYTES + MAX_HEADER_NBYTES):
            raise SourceError(f"{name}: begins with no header of a safetensors file of {nbytes:,} bytes")
        if needed > len(start):
            start = head(name, needed)
        with (folder / name).open("wb") as file:
            file.write(start[:needed])
            file.truncate(nbytes)
    return folder


def _made(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
