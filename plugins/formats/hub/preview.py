"""A checkpoint's outline, for `plan`: the headers of its safetensors files, without the gigabytes behind them.

Files of the right size with their headers in place and holes behind them, so that containers open them as they open
any file. Nothing may read values out of it: `Fetched.whole` is false. It goes when the process ends; that of one
that was killed, when another makes its own.
"""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.errors import SourceError
from plugins.formats.safetensors.header import LENGTH_NBYTES, MAX_HEADER_NBYTES

PREFIX = "weightmill-plan-"
LEFT_S = 600.0  # a folder that is younger may be about to be held
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
    folder = _own_folder()
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


def _own_folder() -> Path:
    """A new folder, held by this process: its lock ends with it, and those that nobody holds any more are removed."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody else's, or gone
            if time.time() - left.lstat().st_mtime > LEFT_S and (held := _held(left)) is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _held(folder)
    return folder


def _held(folder: Path) -> int | None:
    """A descriptor that holds `folder` until it is closed, or this process ends; None where another process holds it.

    Raises:
        OSError: it is not ours.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def _made(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
