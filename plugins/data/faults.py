"""What is wrong with data, collected with file and line, so that all of it is said at once and in bounded room."""

from collections import Counter
from pathlib import Path

from pipeline.errors import PlanError, Problem, SourceError
from pipeline.files import spoken

MOST = 20  # of a file; the rest is counted


class Faults:
    """Problems in the order in which they were found: of each file the first, and how many more there are."""

    def __init__(self) -> None:
        self._found: list[tuple[str, str, str]] = []  # a file, where in it, what
        self._counts: Counter[str] = Counter()

    def add(self, file: Path | str, message: str, line: int | None = None, unit: str = "line") -> None:
        """Note what is wrong with a file, or an option; `unit`: what `line` counts."""
        where = spoken(file)
        self._counts[where] += 1
        if self._counts[where] <= MOST:
            self._found.append((where, "" if line is None else f", {unit} {line:,}", message))

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def problems(self) -> tuple[Problem, ...]:
        more = ((w, "", f"and {n - MOST:,} more problems in this file") for w, n in self._counts.items() if n > MOST)
        names = Counter(Path(where).name for where in self._counts)
        found, said = [], set[str]()
        for where, place, message in (*self._found, *more):
            name = Path(where).name
            short = where in said and names[name] == 1  # its path was said, and no other file is called so
            found.append(Problem(f"{name if short else where}{place}", message))
            said.add(where)
        return tuple(found)

    def check(self) -> None:
        """Raises PlanError with all of them, where there are any."""
        if self._found:
            raise PlanError(self.problems, exit_code=SourceError.exit_code)
