"""Tags and notes: what people say of a run, kept in its folder, so that they go where it goes."""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.records.lines import append, lines

TAGS = "tags.jsonl"
TAG = re.compile(r"\w[\w.:/-]{0,63}")


@dataclass(frozen=True)
class Said:
    """Attributes:
    tags: in the order in which they were given.
    notes: texts, oldest first.
    """

    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def said_of(folder: Path) -> Said:
    """What people say of the run in `folder`; a word that no tag can be is left out.

    Raises:
        SourceError: the file cannot be read.
    """
    tags: dict[str, None] = {}
    notes: list[str] = []
    for line in lines(folder / TAGS):
        for tag in _words(line.get("remove")):
            tags.pop(tag, None)
        tags |= dict.fromkeys(_words(line.get("add")))
        if isinstance(note := line.get("note"), str) and note:
            notes.append(note)
    return Said(tuple(tags), tuple(notes))


def say(folder: Path, add: Sequence[str] = (), remove: Sequence[str] = (), note: str = "") -> Said:
    """Add and take away tags, and what is said of the run then.

    Raises:
        ConfigError: a tag that has no such characters.
        StorageError: it cannot be written.
    """
    for tag in (*add, *remove):
        if not TAG.fullmatch(tag):
            raise ConfigError(f"{tag!r}: a tag has letters, digits and . : / - _, 64 at most, and begins with a letter")
    append(folder / TAGS, {"at": time.time(), "add": [*add], "remove": [*remove], "note": note})
    return said_of(folder)


def _words(value: object) -> list[str]:
    return [tag for tag in value if isinstance(tag, str) and TAG.fullmatch(tag)] if isinstance(value, list) else []
