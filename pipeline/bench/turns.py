"""Jobs of a benchmark, each in a process of its own: once, or in rounds in which every one has its turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline import meter
from pipeline.bench.cell import Job
from pipeline.bench.notes import Notes
from pipeline.bench.process import done
from pipeline.places import nbytes_on_disk
from pipeline.running import text_stream

NOTES, LOGS = "rounds.jsonl", "logs"


@dataclass(frozen=True)
class Turns:
    """A busy machine slows all alike, as nobody's rounds follow each other. What a process measured is noted when it
    ends, and measured once: a benchmark that was killed goes on.

    Attributes:
        folder: of the run.
        key: of the benchmark; what another one noted there does not count.
        threads: cores that each process has.
        failed: what failed, and why; it is not tried again in this run.
        begun: when, by the clock of `time.perf_counter`.
        inside: seconds of every process.
    """

    folder: Path
    key: str
    threads: int
    failed: dict[str, str] = field(default_factory=dict)
    notes: Notes = field(init=False)
    begun: float = field(default_factory=time.perf_counter)
    inside: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / LOGS).mkdir(parents=True, exist_ok=True)
        object.__setattr__(self, "notes", Notes(self.folder / NOTES, self.key))
        if self.notes.some:
            meter.took()

    def rounds(self, jobs: Mapping[str, Job], count: int, told: Callable[[Mapping[str, Any]], str]) -> None:
        """Do every job `count` times, in turn. One that fails has no more turns.

        Args:
            told: what is shown of what a process measured.
        """
        for round_ in range(count):
            for name, job in jobs.items():
                if name not in self.failed and not self.notes.has(name, round_):
                    found = self.once(name, job, round_)
                    said = self.failed[name] if found is None else told(found)
                    text_stream.write(f"round {round_ + 1} of {count}, {name}: {said}\n")

    def once(self, name: str, job: Job, round_: int = 0) -> Mapping[str, Any] | None:
        """What a job measured; None: it failed."""
        found = done(job, self.threads, self.folder / LOGS / f"{name.replace(' ', '-').replace('/', '-')}.txt")
        self.inside.append(found.seconds)
        meter.in_processes(max(found.nbytes, int(found.found.get("peak", 0))))
        meter.on_disk(nbytes_on_disk(self.folder) + int(found.found.get("written", 0)))
        if found.failed:
            self.failed[name] = found.failed
            return None
        self.notes.add(name, round_, found.found, found.others)
        return found.found

    @property
    def took(self) -> dict[str, float]:
        """`seconds` so far, of this try, and `own_seconds`: those of them in which no process measured."""
        seconds = time.perf_counter() - self.begun
        return {"seconds": seconds, "own_seconds": seconds - sum(self.inside)}

    def found(self, name: str) -> Sequence[Mapping[str, Any]]:
        """What its rounds measured."""
        return [note["found"] for note in self.notes.of(name)]

    def others(self, name: str) -> float:
        """Cores that others took, at their most."""
        return max((note["others"] for note in self.notes.of(name)), default=0.0)
