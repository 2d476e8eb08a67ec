"""What all benchmarks have in common: how often, on how many cores, and what their figures are held against."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.bench import against, history, trend_picture
from pipeline.bench.turns import NOTES
from pipeline.bounds import outside
from pipeline.errors import ConfigError, StageError
from pipeline.figures import Figure
from pipeline.planning.rates import cores, machine
from pipeline.records import schemas
from pipeline.records.run import DESCRIPTION
from pipeline.stage import Table

Rows = Sequence[Mapping[str, Any]]
MOST_ROUNDS = 1000  # of processes; medians of 20 lie no nearer to each other than machines let them
WRITES = (NOTES, against.NAME, trend_picture.NAME)  # what every benchmark leaves in its run's folder


@dataclass(frozen=True)
class Benched:
    """What a benchmark found.

    Attributes:
        rows: as bench.json has them.
        machine: on which kind.
        regressions: against the baseline, in words.
        figures: for comparisons.
        tables: for people.
        summary: in a line.
        exit_code: 9 with regressions, 6 when something that was to be measured failed.
    """

    rows: tuple[Mapping[str, Any], ...]
    machine: str
    regressions: tuple[str, ...]
    figures: Mapping[str, Figure]
    tables: tuple[Table, ...]
    summary: str
    exit_code: int


@dataclass(frozen=True)
class Measuring:
    """Attributes:
    rounds: processes of each thing that is measured, in turn.
    threads: cores that each has; None: all that this process may use.
    against: an earlier benchmark, by folder or name; None: none.
    tolerance: how much worse than that something may be, in percent.
    folder: of the run, which no other benchmark has: a figure is measured, and not found again.
    outputs: where a baseline lies that is named.
    """

    rounds: int
    threads: int | None
    against: str | None
    tolerance: str
    folder: str
    outputs: str

    def __post_init__(self) -> None:
        if why := outside(self.rounds, 1, MOST_ROUNDS):
            raise ConfigError(f"bench.rounds={self.rounds}: {why}")
        if self.threads is not None and not 1 <= self.threads <= cores():
            raise ConfigError(f"bench.threads={self.threads}: from 1 to {cores()}, the cores that this process may use")
        against.tolerance(self.tolerance)

    @property
    def cores(self) -> int:
        return self.threads or cores()

    def baseline(
        self, benchmark: str, workload: Mapping[str, Any] | None = None, run: Path | None = None
    ) -> dict[str, Any] | None:
        """What the earlier one wrote; None: there is none to be held against.

        Args:
            workload: what this one asks, which that one has to have asked too; None: cells say what they are of.
            run: folder of the run, whose command says which weights; None: not begun yet, and not compared.

        Raises:
            ConfigError: it is of another kind of machine, of another benchmark, or asked something else.
            SourceError: there is no such run, or it is no benchmark.
        """
        if self.against is None:
            return None
        found = against.baseline(self.against, self._outputs, machine(), benchmark)
        now: dict[str, Any] = {"machine": {"threads": self.cores}, "workload": workload or {}}
        if run is not None:
            now["command"] = schemas.read("run", run / DESCRIPTION)["command"]
        if other := history.differing(now, found):
            raise ConfigError(
                f"bench.against={self.against}: asked something else; here is {'; '.join(other)}. Ask the same, or "
                "measure without --against"
            )
        return found

    def record(
        self,
        run: Path,
        benchmark: str,
        rows: Rows,
        shown: Callable[[Rows, Sequence[str], str | None], tuple[Table, ...]],
        figures: Mapping[str, Figure],
        **more: Any,
    ) -> Benched:
        """Hold rows against the baseline, draw how they went, and write bench.json.

        Args:
            run: the run's folder.
            benchmark: which one.
            rows: each with `engine`, `quant`, `state`, `why`, `wrong`, `metrics` and `busy`.
            shown: the tables of rows, of what got worse and than what.
            more: of the record: `seconds`, `workload`, …

        Raises:
            StorageError: it cannot be written.
        """
        before = self.baseline(benchmark)
        worse = against.regressions(rows, before["rows"], against.tolerance(self.tolerance)) if before else []
        record = {
            "benchmark": benchmark, "machine": self._machine, "rows": rows, "regressions": worse,
            "against": self.against, "rounds": self.rounds,
            "when": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "command": schemas.read("run", run / DESCRIPTION)["command"], **more,
        }  # fmt: skip
        schemas.write("benchmark", run / against.NAME, record)
        trend = self._trend(run, schemas.read("benchmark", run / against.NAME), before) if before else ()
        failed = any(row["state"] == "failed" for row in rows)
        return Benched(
            rows=tuple(rows), machine=machine(), regressions=tuple(worse), figures=figures,
            tables=(*shown(rows, worse, self.against), *trend), summary=self._summary(rows, worse),
            exit_code=against.CODE if worse else StageError.exit_code if failed else 0,
        )  # fmt: skip

    def _trend(self, run: Path, record: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[Table, ...]:
        """How every figure that is compared went, as a table, and drawn in the run's folder; nothing where none is."""
        assert self.against is not None
        before = history.earlier(self._outputs, run, record)
        found = history.trends(record["rows"], base["rows"], before)
        if not found:
            return ()
        trend_picture.draw(run / trend_picture.NAME, found, before, history.Earlier(self.against, base))
        return (history.table(found, before, self.against),)

    @property
    def _outputs(self) -> Path:
        return Path(os.path.expanduser(self.outputs)).absolute()

    @property
    def _machine(self) -> dict[str, Any]:
        return {
            "kind": machine(), "threads": self.cores, "system": f"{platform.system()} {platform.release()}",
            "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "python": platform.python_version(),
            "load": os.getloadavg()[0],
        }  # fmt: skip

    def _summary(self, rows: Rows, worse: Sequence[str]) -> str:
        measured = [row for row in rows if row["state"] == "measured"]
        rounds = f"{self.rounds} rounds in turn" if self.rounds > 1 else "one round"
        said = f"{len(measured)} of {len(rows)} cells measured, {rounds}"
        wrong = [f"{row['engine']} {row['quant']}" for row in measured if row["wrong"]]
        said += f"; ✗ wrong: {', '.join(wrong)}" if wrong else ""
        if self.against is not None:
            said += f"; {len(worse)} worse than {self.against}" if worse else f"; nothing worse than {self.against}"
        return said
