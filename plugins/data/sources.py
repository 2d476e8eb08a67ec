"""Files of data by the paths that a config names, and their lines as a stream."""

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.digest import InputFile, small_input
from pipeline.errors import SourceError, did_you_mean, nearest
from pipeline.files import opened, placed, spoken
from pipeline.strictjson import parse
from plugins.data.faults import Faults

LONGEST = 256 << 20  # bytes of a line of JSON; more is taken for another kind of file
CHECKED = 64 << 20  # bytes of a file that a plan reads; the rest is checked when it is read for training
BOM = b"\xef\xbb\xbf"
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "Zstandard", b"\xfd7zXZ\0": "xz", b"BZh9": "bzip2", b"PK\3\4": "ZIP"}
EACH = "of JSON Lines each line is an object"
PARQUET = b"PAR1\x15"  # and how the header of its first page begins, which no text does


def found(files: Sequence[str], option: str, faults: Faults, origin: str | None = None) -> tuple[InputFile, ...]:
    """The files that an option names; what is wrong with the others goes to `faults`.

    Args:
        files: paths as people type them.
        option: the config key.
        origin: where to get them.
    """
    hint = f"; {origin}" if origin else ""
    if not files:
        faults.add(option, f"no file is named; {option}=[FILE] names one, or several{hint}")
    inputs = []
    for name in files:
        try:
            path = placed(name)
            if path.is_dir():
                inside = sorted(p.name for p in path.iterdir() if p.is_file())
                faults.add(
                    option, f"{spoken(name)}: a folder; its files are named one by one{did_you_mean('', inside)}"
                )
            elif not path.exists():
                near = nearest(path.name, os.listdir(path.parent)) if path.parent.is_dir() else []
                like = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
                faults.add(option, f"{spoken(name)}: no such file{like}{hint}")
            elif (file := small_input(path)).nbytes == 0:
                faults.add(path, "is empty")
            else:
                inputs.append(file)
        except (SourceError, OSError) as why:
            faults.add(option, str(why))
    if len({f.path for f in inputs}) < len(inputs):
        faults.add(option, "names a file twice")
    return tuple(inputs)


def check_apart(trained: Sequence[InputFile], held_out: Sequence[InputFile], option: str, faults: Faults) -> None:
    """Files that are trained on and held out are a fault: a loss on them says nothing of what was not seen.

    Args:
        option: the config key of those that are held out.
    """
    for file in held_out:
        same = [f for f in trained if f.path.samefile(file.path) or (f.xxh3_128 and content(f) == content(file))]
        if same:
            other = "" if same[0].path == file.path else f", as {spoken(same[0].path)}"
            faults.add(
                option, f"{spoken(file.path)}: is trained on too{other}; what is held out has to be something else"
            )


def content(file: InputFile) -> list[Any]:
    """What a file holds, as a part of a key: by its digest; one too large for that by what stands for it."""
    return [file.nbytes, file.xxh3_128] if file.xxh3_128 else file.identity[1:]


@dataclass(frozen=True)
class Stream:
    """A file as it is read: its content, decompressed, and how far it is."""

    path: Path
    content: IO[bytes]
    raw: IO[bytes]

    @property
    def at(self) -> int:
        """Bytes of the file that have been read."""
        return self.raw.tell()


@contextmanager
def streamed(path: Path) -> Iterator[Stream]:
    """The bytes of a file, of one that ends in .gz decompressed.

    Raises:
        SourceError: it cannot be read, or what is compressed is damaged.
    """
    try:
        with opened(path) as fd, open(fd, "rb", closefd=False) as raw:
            if path.suffix != ".gz":
                _check_plain(path, raw.peek(8))
                yield Stream(path, raw, raw)
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield Stream(path, io.BufferedReader(unpacked), raw)
    except EOFError:
        raise SourceError(f"{spoken(path)}: cannot be read: what is compressed is cut off") from None
    except (zlib.error, OSError) as why:
        raise SourceError(f"{spoken(path)}: cannot be read: {why}") from None


def _check_plain(path: Path, begins: bytes) -> None:
    """
    Raises:
        SourceError: a file that begins so is no text.
    """
    kind = next((kind for magic, kind in MAGIC.items() if begins.startswith(magic)), None)
    if kind == "gzip":
        raise SourceError(f"{spoken(path)}: is compressed (gzip), and its name does not end in .gz")
    if kind is not None:
        raise SourceError(f"{spoken(path)}: is compressed ({kind}); of what is compressed .gz alone is read")
    if begins.startswith(PARQUET):
        raise SourceError(f"{spoken(path)}: is Parquet; data=text reads that, in files that end in .parquet")


def lines(stream: Stream, most: int = LONGEST) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, their ends included; a longer one comes in pieces of `most` bytes, of one number."""
    number = 1
    while line := stream.content.readline(most):
        yield number, line.removeprefix(BOM) if number == 1 else line
        number += line.endswith(b"\n")


def objects(stream: Stream, faults: Faults, most: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of JSON Lines, with the numbers of their lines; what is none goes to `faults`.

    Args:
        most: bytes of the file to read; None: all.
    """
    for number, line in lines(stream):
        if not line.strip():
            continue
        try:
            found = parse(line, "")
        except SourceError as why:
            cut = "" if line.endswith(b"\n") else "; the file ends within this line, as one does that was cut off"
            if number == 1 and line.strip() in (b"[", b"{", b"[{"):
                faults.add(stream.path, f"is one JSON value over several lines; {EACH}", 1)
                return
            faults.add(stream.path, f"{str(why).removeprefix(': ')}{cut}", number)
        else:
            if isinstance(found, dict):
                yield number, found
            else:
                faults.add(stream.path, f"is {_kind(found)}; {EACH}", number)
        if most is not None and stream.at > most:
            return


def _kind(found: Any) -> str:
    """What a JSON value is, for people."""
    if isinstance(found, list):
        return f"a list of {len(found):,}"
    return f"{json.dumps(found):.60}"


def last_line(path: Path) -> bytes | None:
    """The end of a plain file after its last line break; None where it has none, or is compressed."""
    with streamed(path) as stream:
        if stream.raw is not stream.content:
            return None
        stream.raw.seek(max(0, stream.raw.seek(0, os.SEEK_END) - LONGEST // 64))
        return stream.raw.read().rpartition(b"\n")[2] or None
