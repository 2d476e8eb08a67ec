"""Paths on disk: whether something can be made there, what lies in what, and what else lies in a folder of ours."""

import ctypes
import os
from collections.abc import Callable, Collection
from functools import cache
from pathlib import Path
from typing import Any, Final

SYNC_FILE_RANGE_WRITE: Final = 2  # include/uapi/linux/fs.h


def reason(why: OSError) -> str:
    """What the system said; what `shutil` says by itself has no number."""
    return why.strerror or str(why)


def hindrance(path: Path) -> str | None:
    """Why nothing can be made at `path`, whose parents need not be there yet; None where something can."""
    try:
        nbytes = len(os.fsencode(path))
        there = nearest_folder(path)
        if not there.is_dir():
            return f"{there} is {'not a folder' if there.exists() else 'a link that leads nowhere'}"
        if not os.access(there, os.W_OK | os.X_OK):
            return f"{there} is not writable"
        if "\0" in str(path):
            return "no name can hold a zero byte"
        most = os.pathconf(there, "PC_NAME_MAX")
        if long := [part for part in path.relative_to(there).parts if len(os.fsencode(part)) > most]:
            return f"{long[0]:.60}…: {len(os.fsencode(long[0]))} bytes; a name in {there} has at most {most}"
        if nbytes >= (most := os.pathconf(there, "PC_PATH_MAX")):
            return f"{nbytes} bytes; a path has at most {most - 1}"
    except OSError as why:
        return reason(why)
    except UnicodeEncodeError:
        return "it cannot be a name on disk"
    return None


def nearest_folder(path: Path) -> Path:
    """The nearest parent of `path` that is there; a folder, unless something else is in the way."""
    there = path.parent
    while not os.path.lexists(there):  # False for names that are too long, too
        there = there.parent
    return there


def within(inner: Path, outer: Path) -> bool:
    """Whether `inner` is `outer` or lies in it, whatever links, dots, mounts and capitals lead to either."""
    real, holder = Path(os.path.realpath(inner)), Path(os.path.realpath(outer))
    if real.is_relative_to(holder):
        return True
    try:
        there = os.stat(holder)
    except OSError:
        return False
    return any(os.path.exists(p) and os.path.samestat(os.stat(p), there) for p in (real, *real.parents))


def unlisted(folder: Path, files: Collection[str]) -> list[str]:
    """What lies in `folder` beside `files` (relative, with slashes) and the folders that these are in.

    A folder is named once, with a slash; links are not followed, and one to a folder is never ours.

    Raises:
        OSError: it cannot be looked at.
    """

    def fail(why: OSError) -> None:
        raise why

    known = set(files)
    folders = {parent.as_posix() for name in known for parent in Path(name).parents}
    found = []
    for base, inner, names in os.walk(folder, onerror=fail):
        here = Path(base).relative_to(folder)
        links = [d for d in inner if (Path(base) / d).is_symlink()]
        strange = [d for d in inner if d not in links and (here / d).as_posix() not in folders]
        found += [name for n in names if (name := (here / n).as_posix()) not in known]
        found += [f"{(here / d).as_posix()}/" for d in (*links, *strange)]
        inner[:] = [d for d in inner if d not in links and d not in strange]
    return sorted(found)


def nbytes_on_disk(folder: Path) -> int:
    """Blocks that the files in `folder` take; 0 when it is not there."""
    return sum((Path(base) / n).lstat().st_blocks * 512 for base, _, names in os.walk(folder) for n in names)


def sync(path: Path) -> None:
    """Make a file durable, or what a folder lists."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_back(fd: int) -> None:
    """Have the disk begin with what was written to a file, so that `sync` later finds little left to wait for.

    It makes nothing durable by itself, so that nothing is said when it cannot be done. A disk that is behind makes the
    caller wait until it takes more.
    """
    if (begin := _sync_file_range()) is not None:
        begin(fd, 0, 0, SYNC_FILE_RANGE_WRITE)  # all of the file that nobody writes back yet


@cache
def _sync_file_range() -> Callable[[int, int, int, int], Any] | None:
    """Of the C library, which has it on Linux."""
    if (found := getattr(ctypes.CDLL(None), "sync_file_range", None)) is not None:
        found.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return found
