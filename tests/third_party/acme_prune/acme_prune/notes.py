"""A tracker: a line of a file for everything that it is told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.tracker import Point, State, Tracked, told


@dataclass(frozen=True)
class Notes:
    """See `pipeline.tracker.Tracker`.

    Attributes:
        file: where the lines go.
    """

    file: str
    required: bool = False
    weights: bool = False
    patience_s: float = 60.0

    @property
    def place(self) -> str:
        return f"notes in {self.file}"

    @property
    def host_nbytes(self) -> int:
        return 1 << 20

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    def begin(self, run: Tracked, known: str = "") -> str:
        there = {tracked: said["token"] for what, tracked, said in self.lines() if what == "begin"}
        begun = next((tracked for tracked, token in there.items() if run.token and token == run.token), "")
        tracked = known if known in there else begun or f"{run.name}-{len(there)}"
        config = {key: told(value) for key, value in run.config.items()}
        said = {"parent": run.parent, "sweep": run.sweep, "config": config, "token": run.token}
        self._add("begin", tracked, said)
        return tracked

    def last(self, tracked: str, names: Sequence[str]) -> Mapping[str, int]:
        points = [p for what, of, given in self.lines() if (what, of) == ("log", tracked) for p in given]
        return {name: step or 0 for name, _, step in sorted(points, key=lambda p: p[2] or 0) if name in names}

    def log(self, tracked: str, points: Sequence[Point]) -> None:
        there = {tuple(p) for what, of, given in self.lines() if (what, of) == ("log", tracked) for p in given}
        found = [(p.name, p.value, p.step) for p in points]
        self._add("log", tracked, [p for p in found if p not in there])

    def files(self, tracked: str, files: Mapping[str, Path]) -> None:
        self._add("files", tracked, {name: path.read_bytes().hex() for name, path in files.items()})

    def end(self, tracked: str, state: State) -> None:
        self._add("end", tracked, state)

    def lines(self) -> list[list[Any]]:
        """What, of which run, and what was said of it."""
        path = Path(self.file)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _add(self, *line: Any) -> None:
        Path(self.file).parent.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a") as file:
            file.write(json.dumps(line) + "\n")
