"""Digests and identities. Neither may cost more than the disk: xxh3 runs at memory speed on one core."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import xxhash

from pipeline.errors import SourceError

BUFFER_NBYTES = 4 << 20
SMALL_NBYTES = 256 << 20  # the largest tokenizers have 40 MiB; more than this is read for its digest in the run only


@dataclass(frozen=True, slots=True)
class Digested:
    """A file with its whole-content digest (`xxhsum -H2` prints the same)."""

    path: Path
    nbytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that a run reads, and what shows that it is still the same one.

    Attributes:
        path: absolute.
        nbytes: its size.
        mtime_ns: when it was modified.
        xxh3_128: digest of the content of a small file (settings, tokenizers, texts), and then all that counts. None
            for weights, whose digest takes as long as reading them: size, time and inode stand for it.
        inode: its number on disk.
    """

    path: Path
    nbytes: int
    mtime_ns: int
    xxh3_128: str | None = None
    inode: int = 0

    @property
    def identity(self) -> list[str | int]:
        """JSON-able; of the same file with the same content it is the same."""
        return [str(self.path), self.nbytes, *([self.xxh3_128] if self.xxh3_128 else [self.mtime_ns, self.inode])]


def digest_file(path: Path, *, sync: bool = False) -> Digested:
    """Digest of a whole file, read in small buffers; `sync` also makes it durable first.

    Raises:
        SourceError: the file cannot be read.
    """
    hasher = xxhash.xxh3_128()
    nbytes = 0
    buffer = memoryview(bytearray(BUFFER_NBYTES))
    try:
        with path.open("rb", buffering=0) as file:
            if sync:
                os.fsync(file.fileno())
            while got := file.readinto(buffer):
                hasher.update(buffer[:got])
                nbytes += got
    except OSError as why:
        raise SourceError(f"{path}: {why.strerror}") from None
    return Digested(path, nbytes, hasher.hexdigest())


def digest(content: bytes | memoryview) -> str:
    """The digest that a file of this content has."""
    return xxhash.xxh3_128_hexdigest(content)


def stamped(path: Path) -> InputFile:
    """An input that is large: its size and its modification time stand for what it holds.

    Raises:
        SourceError: it is not there.
    """
    try:
        status = path.stat()
    except OSError as why:
        raise SourceError(f"{path}: {why.strerror}") from None
    return InputFile(path, status.st_size, status.st_mtime_ns, inode=status.st_ino)


def small_input(path: Path, content: bytes | None = None) -> InputFile:
    """An input that is known by what it holds: written again without a change it is the same, whatever its time says.

    One that turns out to be large is known by its stamp, so that plans stay quick.

    Args:
        path: absolute.
        content: all of it, where it has been read already.

    Raises:
        SourceError: it cannot be read.
    """
    stamp = stamped(path)
    if content is not None:
        return InputFile(path, len(content), stamp.mtime_ns, digest(content), stamp.inode)
    if stamp.nbytes > SMALL_NBYTES:
        return stamp
    found = digest_file(path)
    return InputFile(path, found.nbytes, stamp.mtime_ns, found.xxh3_128, stamp.inode)


def unchanged(*files: InputFile) -> None:
    """Raises SourceError when a file is not the one that was planned."""
    for file in files:
        try:
            if file.xxh3_128 is None:
                same = stamped(file.path).identity == file.identity
            else:
                same = digest_file(file.path).xxh3_128 == file.xxh3_128
        except SourceError as why:
            raise SourceError(f"{why}; it was there when the run began") from None
        if not same:
            raise SourceError(f"{file.path}: changed while it was being read; the output would mix two versions")


def described(value: Any) -> Any:
    """A plugin node as JSON: its class by its full name, which tells namesakes apart, and its fields."""
    if is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        return {"_target_": f"{cls.__module__}.{cls.__qualname__}"} | {
            f.name: described(getattr(value, f.name)) for f in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(k): described(v) for k, v in value.items()}
    return [described(v) for v in value] if isinstance(value, list | tuple) else value


def identity(value: Any) -> str:
    """xxh3-128 of `value` as canonical JSON: equal values, equal identities, on any machine and any run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8", "surrogatepass"))  # names of files may be no Unicode
