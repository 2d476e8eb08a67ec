"""Documents of files: plain text, JSON Lines and Parquet, as parts of a text that come one after another.

A document is not held as a whole: what is long comes in several parts, of which only the last says that it ends.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pipeline.errors import SourceError, did_you_mean
from pipeline.strictjson import parse_object
from plugins.data.faults import Faults
from plugins.data.sources import CHECKED, Stream, last_line, lines, objects, streamed

Format = Literal["auto", "text", "jsonl", "parquet"]
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
BLOCK_NBYTES = 1 << 20
CHATS = ("messages",), ("prompt", "completion")  # fields of an object that is a chat
INSTALL = "the package pyarrow, which reads Parquet, is not installed; pip install 'weightmill[data]' installs it"


class Part(NamedTuple):
    """Some of a document.

    Attributes:
        line: where it begins, in its file.
        text: the next of it.
        last: it ends the document.
        at: bytes of the file that have been read.
    """

    line: int
    text: str
    last: bool
    at: int


def format_of(path: Path, given: Format) -> str:
    """One of `Format` without `auto`: by the end of the name."""
    if given != "auto":
        return given
    name = path.with_suffix("") if path.suffix == ".gz" else path
    return SUFFIXES.get(name.suffix.lower(), "text")


def parts(
    path: Path, form: Format, field: str, separator: str | None, faults: Faults, most: int | None = None
) -> Iterator[Part]:
    """The documents of a file.

    Args:
        field: of JSON Lines and Parquet, which holds the text.
        separator: of plain text: the line that stands between documents; None: the file is one document.
        faults: takes what is wrong, with lines.
        most: bytes to read, about; None: all.

    Raises:
        SourceError: the file cannot be read.
    """
    assert form in get_args(Format)
    kind = format_of(path, form)
    if kind == "parquet":
        yield from _parquet(path, field, faults, most)
        return
    with streamed(path) as stream:
        if kind == "text":
            yield from _plain(stream, separator, faults, most)
            return
        for line, found in objects(stream, faults, most):
            if (text := text_of(found, field, path, line, faults)) is not None:
                yield Part(line, text, True, stream.at)


def check(path: Path, form: Format, field: str, separator: str | None, faults: Faults) -> int:
    """Look for what is wrong with a file, without reading more of a large one than its beginning and its end.

    Returns:
        How many documents that has shown.
    """
    before, count, blank = len(faults.problems), 0, True
    for part in parts(path, form, field, separator, faults, CHECKED):
        count, blank = count + part.last, blank and not part.text.strip()
    if blank and len(faults.problems) == before:
        faults.add(path, "has no text in it")
    if format_of(path, form) == "jsonl":
        check_end(path, faults)
    return count


def check_end(path: Path, faults: Faults) -> None:
    """Whether the last line of JSON Lines is whole, where `objects` has not come so far."""
    if path.stat().st_size > CHECKED and (end := last_line(path)) is not None:
        try:
            parse_object(end, "")
        except SourceError as why:
            faults.add(path, f"its last line{why}; the file seems to be cut off")


def text_of(found: dict[str, Any], field: str, path: Path, line: int, faults: Faults, unit: str = "line") -> str | None:
    """The text in a field of an object; None where there is none, which goes to `faults`.

    Args:
        unit: what `line` counts.
    """
    text = found.get(field)
    if isinstance(text, str) and text:
        return text
    if field not in found:
        chats = any(all(name in found for name in names) for names in CHATS)
        other = "data=chat is for chats" if chats else f"data.field=NAME names another{did_you_mean(field, found)}"
        faults.add(path, f"has no field {field!r}; {other}", line, unit)
    else:
        what = "is empty" if text == "" else f"is {text!r:.60}; a text is expected"
        faults.add(path, f"the field {field!r} {what}", line, unit)
    return None


def _plain(stream: Stream, separator: str | None, faults: Faults, most: int | None) -> Iterator[Part]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    held: list[str] = []
    size, first, number, goes_on = 0, 1, 1, False
    for number, raw in lines(stream, BLOCK_NBYTES):
        try:
            line = decoder.decode(raw)
        except UnicodeDecodeError as why:
            byte = why.object[why.start]
            faults.add(stream.path, f"is no UTF-8: byte 0x{byte:02x}; data.format= says which format it has", number)
            return
        begun, goes_on = goes_on, not raw.endswith(b"\n")  # the end of a long line may look like one of its own
        if separator is not None and not begun and line.rstrip("\r\n") == separator:
            if size or number > first:
                yield Part(first, "".join(held), True, stream.at)
            held, size, first = [], 0, number + 1
            continue
        held.append(line)
        size += len(line)
        if size >= BLOCK_NBYTES:
            yield Part(first, "".join(held), False, stream.at)
            held, size = [], 0
        if most is not None and stream.at > most:
            break
    else:
        try:
            held.append(decoder.decode(b"", final=True))
        except UnicodeDecodeError:
            faults.add(stream.path, "is no UTF-8: it ends within a character", number)
            return
    yield Part(first, "".join(held), True, stream.at)


def _parquet(path: Path, field: str, faults: Faults, most: int | None) -> Iterator[Part]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SourceError(f"{path}: {INSTALL}") from None
    try:
        with pyarrow.parquet.ParquetFile(path, memory_map=True) as file:
            names = file.schema_arrow.names
            if field not in names:
                faults.add(path, f"has no column {field!r}; data.field=NAME names another{did_you_mean(field, names)}")
                return
            row, rows, nbytes = 0, max(1, file.metadata.num_rows), path.stat().st_size
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for value in batch.column(0):
                    row += 1
                    at = nbytes * row // rows
                    if (text := text_of({field: value.as_py()}, field, path, row, faults, "row")) is not None:
                        yield Part(row, text, True, at)
                if most is not None and at > most:
                    return
    except (pyarrow.ArrowException, OSError) as why:
        raise SourceError(f"{path}: cannot be read as Parquet: {str(why).splitlines()[0]}") from None
