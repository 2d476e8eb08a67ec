"""Files that come from outside, opened with care: regular files only, no larger than they may be, errors with names.

A path may lead to a pipe (opening it would wait for ever), to a device (reading it would never end), to a folder, to
nothing, or be no path at all (too long, a zero byte in it). Here each of these is a SourceError, and nothing else.
What we write for programs to read is written here too, whole or not at all.
"""

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from pipeline.errors import SourceError, StorageError
from pipeline.terminal import STEERS

MAX_NBYTES = 100_000_000  # of a file that is read whole; the largest vocabularies and indexes have a third of it
FICLONE = 0x40049409  # include/uapi/linux/fs.h
COPY_NBYTES = 1 << 20
_SHOWN_CHARS = 300  # of a path in an error


def spoken(path: Path | str) -> str:
    """A path as an error says it: the end of one that is very long, and nothing that a terminal would act on."""
    text = str(path)
    text = f"…{text[-_SHOWN_CHARS:]}" if len(text) > _SHOWN_CHARS else text
    return text if text.isprintable() else repr(text)[1:-1]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor for reading a regular file.

    Raises:
        SourceError: missing, not a regular file (a pipe would block, a device would not end), not readable, not a path.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise SourceError(f"{spoken(path)}: cannot be opened: {e.strerror}") from e
    except ValueError as e:  # a zero byte, a lone surrogate
        raise SourceError(f"{spoken(path)}: cannot be opened: {e}") from e
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SourceError(f"{spoken(path)}: not a regular file")
        yield fd
    finally:
        os.close(fd)


def read_whole(path: Path, most: int = MAX_NBYTES, *, grows: bool = False) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Args:
        grows: somebody may add to it: what stands there now, however it grows meanwhile. Else its size may not change.

    Raises:
        SourceError: as `opened`; it is larger, or cannot be read, or has changed.
    """
    with opened(path) as fd:
        nbytes = os.fstat(fd).st_size
        if nbytes > most:
            raise SourceError(f"{spoken(path)}: has {nbytes:,} bytes; at most {most:,} are read")
        try:
            with open(fd, "rb", closefd=False) as file:
                content = file.read(nbytes if grows else nbytes + 1)
        except OSError as e:
            raise SourceError(f"{spoken(path)}: cannot be read: {e.strerror}") from e
    if not grows and len(content) != nbytes:
        raise SourceError(f"{spoken(path)}: changed while it was read")
    return content


def exists(path: Path) -> bool:
    """Whether there is anything, a dangling link included.

    Raises:
        SourceError: that cannot be told: a folder on the way may not be entered, the path is too long or none.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as e:
        raise SourceError(f"{spoken(path)}: {getattr(e, 'strerror', None) or e}") from e
    return True


@contextmanager
def of_source(what: str) -> Iterator[None]:
    """Whatever the file system says while a source is opened is said of the source.

    Raises:
        SourceError: for every OSError.
    """
    try:
        yield
    except OSError as e:
        where = f" ({spoken(os.fsdecode(e.filename))})" if isinstance(e.filename, str | bytes) else ""
        raise SourceError(f"{what}: {e.strerror or e}{where}") from e


@contextmanager
def of_storage(path: Path) -> Iterator[None]:
    """Whatever the file system says while `path` is written is said of it, with the space that is left.

    Raises:
        StorageError: for every OSError.
    """
    try:
        yield
    except OSError as e:
        raise storage_error(f"{spoken(path)}: cannot be written", e, path.parent) from e


def storage_error(what: str, cause: OSError, path: Path) -> StorageError:
    """What was tried, why it failed, and the space left on the file system of `path`."""
    try:
        free = f"{shutil.disk_usage(path).free:,} bytes are free there"
    except OSError:
        free = "free space unknown"
    return StorageError(f"{what}: {cause.strerror or cause} ({free})")


def unwritten(path: Path, cause: OSError, nbytes: int) -> StorageError:
    """Why `nbytes` of a file cannot be written; of a disk that is full, how much room it has."""
    said = f"{spoken(path)}: {cause.strerror or cause}"
    if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(said)
    return StorageError(f"{said} ({nbytes:,} bytes to write, {shutil.disk_usage(path.parent).free:,} bytes free)")


def allocate(fd: int, nbytes: int) -> None:
    """Give the file its size and its blocks; only the size where the file system cannot reserve blocks.

    Raises:
        OSError: there is no room for them.
    """
    try:
        if nbytes:
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, nbytes)


def placed(text: str) -> Path:
    """The absolute path that somebody typed, `~` expanded where somebody's home is meant.

    Raises:
        SourceError: no path: a zero byte in it, a lone surrogate.
    """
    try:
        os.fsencode(text)
        if "\0" in text:
            raise ValueError("a path has no zero byte")
        return Path(os.path.expanduser(text)).absolute()
    except ValueError as e:
        raise SourceError(f"{spoken(text)}: is no path: {e}") from None


def is_inner(name: str) -> bool:
    """Whether a name that a file or a server gives is one of a file inside the folder it is about, links aside."""
    pure = PurePosixPath(name)
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return bool(pure.parts) and not pure.is_absolute() and ".." not in pure.parts and not {*name} & {"\\", "\0"}


def clone(source: Path, target: Path) -> None:
    """Copy a file; where the file system can, both share their blocks until one is written to.

    Raises:
        OSError: one cannot be read, the other cannot be written, or is there.
    """
    with source.open("rb") as reader, target.open("xb") as writer:
        with suppress(OSError):  # no such file system, or two
            fcntl.ioctl(writer, FICLONE, reader.fileno())
            return
        left = os.fstat(reader.fileno()).st_size
        with suppress(OSError):
            while left and (copied := os.copy_file_range(reader.fileno(), writer.fileno(), left)):
                left -= copied
        if left:  # from where that stopped: both files stand there
            shutil.copyfileobj(reader, writer, COPY_NBYTES)


def cache_folder() -> Path:
    """The user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "weightmill"


def is_within(folder: Path, path: Path) -> bool:
    """Whether a path stays in a folder, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def folder_for(path: Path) -> None:
    """Make the folder that a file is to be in.

    Raises:
        StorageError: it cannot be.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as why:
        raise StorageError(f"{spoken(path)}: {why.strerror}") from None


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet: whole or not at all, whenever it is killed.

    Raises:
        StorageError: it is there already, or cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        try:
            partial.write_text(text, encoding="utf-8")
            try:
                os.link(partial, path)  # unlike a rename it replaces nothing
            except OSError as why:
                if why.errno not in (errno.EPERM, errno.ENOTSUP):  # a file system without such links
                    raise
                partial.rename(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as why:
        raise unwritten(path, why, len(text.encode())) from None


def write_over(path: Path, content: bytes) -> None:
    """Write a file in place of one that may be there, in one rename: when it cannot be written, that one stays. Its
    folder is made.

    Raises:
        StorageError: it cannot be.
    """
    target = Path(os.path.realpath(path))
    folder_for(target)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        try:
            if path.exists() and not path.is_file():  # a pipe, /dev/stdout: nothing is put in its place
                path.write_bytes(content)
                return
            partial.write_bytes(content)
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as why:
        raise unwritten(path, why, len(content)) from None


def write_json(path: Path, value: Any) -> None:
    """Write in one rename, so that a reader sees all of it or none."""
    partial = path.with_name(path.name + ".partial")
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    # As JSON's escapes what would steer a terminal that shows the file, and what a name that is no Unicode has.
    text = STEERS.sub(lambda m: f"\\u{ord(m[0]):04x}", text)
    try:
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as why:
        raise unwritten(path, why, len(text.encode())) from None
