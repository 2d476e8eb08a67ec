"""A tracker is told of a run: what stands in the run's folder, as it comes to stand there.

One thread of the process that the command started reads the metrics that any process of the run writes, and hands them
on, so that nothing that computes ever waits for a tracker. What it was told, `tracker.json` in the folder keeps: a run
that goes on is the same run there, and what an earlier try told is not told again, though a training does some of its
updates once more.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType

from pipeline.errors import SourceError, StageError
from pipeline.files import read_whole, write_json
from pipeline.records import points
from pipeline.records.run import read
from pipeline.redact import hide
from pipeline.running.journal import Busy, locked
from pipeline.tracker import Point, State, Tracked, Tracker

FILE = "tracker.json"
EVERY_S = 1.0  # between two looks at what was written
AT_ONCE = 5000  # points that are handed on together
PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0  # after the tracker failed, doubled each time
KILLED_PATIENCE_S = 5.0  # whoever stops a run does not wait long


@dataclass
class Told:
    """What `tracker.json` says.

    Attributes:
        place: see `Tracker.place`.
        run: see `Tracked.id`.
        tracked: what the tracker calls it; empty: it has not heard of it.
        state: `running`, or how it ended.
        steps: by name of point, the last step that was told.
        telling: some points may or may not have come there: it is at it, was killed, or the tracker failed.
    """

    place: str
    run: str
    tracked: str = ""
    state: str = "running"
    steps: dict[str, int] = field(default_factory=dict)
    telling: bool = False


class Tracking:
    """A run that a tracker is told of. Its methods are called by the run, and wait for nothing unless they say so.

    Attributes:
        problem: why not all was told; empty: it was.
    """

    def __init__(
        self,
        tracker: Tracker,
        run: Tracked,
        say: Callable[[str], None],
        *,
        again: bool = False,
        parent: "Tracking | None" = None,
    ):
        """
        Args:
            say: takes a line for people.
            again: what an earlier try told is of another run.
            parent: of the sweep that it is of.
        """
        self.tracker, self.run, self.problem = tracker, run, ""
        self._say, self._parent, self._ended = say, parent, False
        self._told = Told(tracker.place, run.id)
        before = None if again else told_of(run.folder)
        if before is not None and (before.place, before.run) == (tracker.place, run.id):
            self._told = before
        self._at: dict[Path, points.Position] = {}
        self._before = dict(self._told.steps)
        self._pause, self._not_before = PAUSE_S, 0.0
        self._begun, self._asked_tracker = threading.Event(), False
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {run.name}", daemon=True)
        self._thread.start()
        if tracker.required:
            self._wait_for(self._begun, tracker.patience_s)
            self._stop_if_required()

    @property
    def known(self) -> str:
        """What the tracker calls the run, once it has heard of it; waits for that."""
        self._begun.wait(self.tracker.patience_s)
        return self._told.tracked

    @property
    def record(self) -> dict[str, str]:
        """For the manifest: the place, the run there, and what went wrong."""
        found = {"place": hide(self.tracker.place), "run": self._told.tracked, "problem": self.problem}
        return {name: text for name, text in found.items() if text}

    def catch_up(self) -> None:
        """Tell all that was written; waits, as long as the tracker has patience. No file is looked at after that.

        Raises:
            StageError: it is required, and was not told.
        """
        self._do(self._look, self.tracker.patience_s)
        self._stop_if_required()

    def end(self, state: State, figures: Sequence[Point] = (), files: Mapping[str, Path] | None = None) -> None:
        """Tell figures of the whole run, files by what they are called there, and how it ended; waits as `catch_up`.

        Raises:
            StageError: it is required, and was not told.
        """

        def told() -> None:
            self._log(figures)
            self.tracker.files(self._told.tracked, files or {})
            self.tracker.end(self._told.tracked, state)
            self._told.state = state
            self._keep()

        self._ended = True
        self._do(told, KILLED_PATIENCE_S if state == "killed" else self.tracker.patience_s)
        self._asked.put(None)
        if state == "complete":
            self._stop_if_required()

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """A run that has not said how it ended has failed, or whoever started it ended it."""
        if not self._ended:
            killed = kind is not None and not issubclass(kind, Exception)
            if not killed:
                with suppress(StageError):
                    self.catch_up()
            self.end("killed" if killed else "failed")

    def _stop_if_required(self) -> None:
        if self.tracker.required and self.problem:
            raise StageError(f"tracker.required=true, and it was not told: {self.problem}")

    def _do(self, what: Callable[[], None], patience_s: float) -> None:
        """Have the thread do it, and wait."""
        done = threading.Event()
        self._asked.put((what, done))
        self._wait_for(done, patience_s)

    def _wait_for(self, done: threading.Event, patience_s: float) -> None:
        if not done.wait(patience_s):
            self._failed(f"it has not answered for {patience_s:g} s")

    def _failed(self, why: Exception | str) -> None:
        said = hide(str(why)) or type(why).__name__
        said = said.splitlines()[0] if isinstance(why, str) else f"{type(why).__name__}: {said.splitlines()[0]}"
        if not self.problem:
            then = "" if self.tracker.required else "; the run goes on, and its folder has everything"
            self._say(f"tracker: {hide(self.tracker.place)}: {said}{then}")
        self.problem = said
        self._not_before, self._pause = time.monotonic() + self._pause, min(2 * self._pause, LONGEST_PAUSE_S)

    def _work(self) -> None:
        """The thread: looks again and again, until it is asked to end."""
        looking = True
        while True:
            what, done = self._look, None
            with suppress(queue.Empty):
                asked = self._asked.get(self._begun.is_set(), EVERY_S if looking else None)
                if asked is None:
                    return
                (what, done), looking = asked, False
            if done is not None or (looking and time.monotonic() >= self._not_before):
                try:
                    self._begin()
                    what()
                    self.problem = ""
                except Exception as why:  # whatever a client of somebody else raises
                    self._failed(why)
                self._begun.set()
            if done is not None:
                done.set()

    def _begin(self) -> None:
        """Have the tracker know of the run, once; and know what it has, after it failed, or this did."""
        told, run = self._told, self.run
        if self._asked_tracker and not told.telling:
            return
        if not self._asked_tracker:
            run = run if run.sweep else replace(run, config=read(run.folder).config)
            run = run if self._parent is None else replace(run, parent=self._parent.known)
            told.tracked = self.tracker.begin(run, told.tracked)
            told.state, self._asked_tracker = "running", True
            self._keep()
            self._mend()
        if told.telling:
            told.steps = dict(self.tracker.last(told.tracked, [*told.steps]))
            told.telling, self._before, self._at = False, dict(told.steps), {}

    def _mend(self) -> None:
        """Say of runs beside this one that were killed, and could not say it themselves, that they are."""
        for file in self.run.folder.parent.glob(f"*/{FILE}"):
            if file.parent == self.run.folder or not self._left(told_of(file.parent)):
                continue
            with suppress(Busy):
                with locked(file.parent / ".lock", ""):  # no longer than for this: it may be about to go on
                    other = told_of(file.parent)
                    if other is None or not self._left(other):  # it has ended since
                        continue
                    other.state = "killed"
                    write_json(file, vars(other))
                self.tracker.end(other.tracked, "killed")

    def _left(self, other: Told | None) -> bool:
        """Whether a run was begun with this tracker, and not ended."""
        return (
            other is not None and bool(other.tracked) and (other.state, other.place) == ("running", self.tracker.place)
        )

    def _look(self) -> None:
        """Tell what was written since the last look."""
        for file in points.files(self.run.folder):
            at = deepcopy(self._at.get(file, points.Position()))
            if not at.holds(file):  # a training goes on from a saved state: it was cut
                at, self._before = points.Position(), dict(self._told.steps)
            found = of_run(points.points(file, at))
            while some := list(islice(found, AT_ONCE)):
                self._log(some)
            self._at[file] = at

    def _log(self, found: Sequence[Point]) -> None:
        """Tell those that no earlier try has told."""
        told = self._told
        new = [p for p in found if p.step is None or p.step > self._before.get(p.name, -1)]
        for at in range(0, len(new), AT_ONCE):
            some = new[at : at + AT_ONCE]
            told.steps |= {p.name: p.step for p in some if p.step is not None}
            told.telling = True
            self._keep()
            self.tracker.log(told.tracked, some)
            told.telling = False
        if new:
            self._keep()

    def _keep(self) -> None:
        write_json(self.run.folder / FILE, vars(self._told))


def of_run(found: Iterable[points.Point]) -> Iterator[Point]:
    """Points of its files as trackers are told of them; not figures of the whole run, which are told at its end."""
    for p in found:
        if p.kind != points.FIGURE:
            name = p.name if p.kind == points.POINT else f"{p.kind}/{p.name}"
            name = name if p.member is None else f"{name}/member {p.member}"
            yield Point(name, p.value, p.step, time.time() if p.time is None else p.time, p.unit)


def told_of(folder: Path) -> Told | None:
    """What the file in a run's folder says; None: there is none, or none of ours."""
    try:
        found = Told(**json.loads(read_whole(folder / FILE)))
    except (SourceError, ValueError, TypeError):
        return None
    return found if isinstance(found.steps, dict) else None
