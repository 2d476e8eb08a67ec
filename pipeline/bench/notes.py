"""What finished processes of a benchmark measured, a line each: whoever goes on does not measure it again."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.records.lines import append, lines


class Notes:
    """Lines of one benchmark."""

    def __init__(self, path: Path, key: str):
        """
        Args:
            key: of the benchmark; lines of another one do not count.
        """
        self._path, self._key = path, key
        self._found: dict[str, dict[int, dict[str, Any]]] = {}
        for line in lines(path):
            if line.get("key") == key and {"what", "round", "found", "others"} <= line.keys():
                self._found.setdefault(line["what"], {})[line["round"]] = line

    @property
    def some(self) -> bool:
        """Whether anything was measured already."""
        return bool(self._found)

    def has(self, what: str, round_: int) -> bool:
        return round_ in self._found.get(what, {})

    def of(self, what: str) -> list[dict[str, Any]]:
        """Its lines by round: `found`, what was measured, and `others`, cores that other processes took meanwhile."""
        return [line for _, line in sorted(self._found.get(what, {}).items())]

    def add(self, what: str, round_: int, found: Mapping[str, Any], others: float) -> None:
        """
        Raises:
            StorageError: it cannot be written.
        """
        line = {"key": self._key, "what": what, "round": round_, "found": dict(found), "others": others}
        append(self._path, line)
        self._found.setdefault(what, {})[round_] = line
