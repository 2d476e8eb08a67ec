"""The files of a checkpoint that tokenizers are made of, read with errors that name the file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError
from pipeline.files import read_whole, spoken
from pipeline.strictjson import parse_object


@dataclass(frozen=True)
class Companions:
    """`Checkpoint.files`, with `origin` for people."""

    files: Mapping[str, Path | bytes]
    origin: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def match(self, patterns: Iterable[str]) -> list[str]:
        """Names that match, in the order of the patterns."""
        return [n for p in patterns for n in sorted(self.files) if fnmatchcase(n, p)]

    def where(self, name: str) -> str:
        """The file as an error should name it."""
        found = self.files[name]
        return spoken(found) if isinstance(found, Path) else f"{self.origin}: {name}" if self.origin else name

    def read(self, name: str) -> bytes:
        """Raises SourceError if the file is gone, unreadable, too large or no file."""
        found = self.files[name]
        return read_whole(found) if isinstance(found, Path) else found

    def text(self, name: str) -> str:
        """Raises SourceError if it is not UTF-8."""
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as why:
            raise SourceError(f"{self.where(name)}: not UTF-8: {why.reason} at byte {why.start}") from None

    def json(self, name: str) -> dict[str, Any]:
        """A JSON object; empty where there is no such file.

        Raises:
            SourceError: not JSON, or not an object.
        """
        if name not in self.files:
            return {}
        return parse_object(self.read(name), self.where(name))
