"""A tracker is told of a run: what stands in the run's folder, as it comes to stand there.

One thread of the process that the command started reads the metrics that any process of the run writes, and hands them
on, so that nothing that computes ever waits for a tracker. What it was told, `tracker.json` in the folder keeps: a run
that goes on is the same run there, and what an earlier try told is not told again, though a training does some of its
updates once more. A run that is told to one place and then to another has a record of each, and goes on in both.
"""

import json
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from pipeline.errors import SourceError, StageError, WeightmillError
from pipeline.files import read_whole, write_json
from pipeline.records.run import read
from pipeline.redact import hide
from pipeline.running.journal import Busy, locked
from pipeline.running.point_reader import AT_ONCE, PointReader
from pipeline.tracker import Point, State, Tracked, Tracker

FILE = "tracker.json"
EVERY_S = 1.0  # between two looks at what was written
PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0  # after the tracker failed, doubled each time
AGAIN_S = 1.0  # so long it is not asked again, even at the end of a run
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
        points, params, files: how many it was told.
        token: see `Tracked.token`.
        elsewhere: what other places were told of the same folder, which the last run of it did not ask for.
    """

    place: str
    run: str
    tracked: str = ""
    state: str = "running"
    steps: dict[str, int] = field(default_factory=dict)
    telling: bool = False
    points: int = 0
    params: int = 0
    files: int = 0
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    elsewhere: list["Told"] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """How much it was told, for people."""
        return counted(self.points, self.params, self.files)

    def of(self, place: str) -> "Told | None":
        """What that place was told."""
        return next((one for one in (self, *self.elsewhere) if one.place == place), None)

    def keep(self, folder: Path) -> None:
        """Raises OSError: it cannot be written."""
        write_json(folder / FILE, asdict(self))


@dataclass
class Answers:
    """Whether a tracker answers, which all know that tell it something: a sweep and its jobs.

    Attributes:
        problem: why it does not; empty: it does.
        failed: when it last did not, by the monotonic clock.
        left_s: how long runs still wait for it.
    """

    left_s: float
    problem: str = ""
    failed: float = -math.inf

    @property
    def just_failed(self) -> bool:
        return bool(self.problem) and time.monotonic() < self.failed + AGAIN_S


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
            parent: of the sweep that it is of, with the same tracker.
        """
        self.tracker, self.run, self.problem = tracker, run, ""
        self._say, self._parent, self._ended = say, parent, False
        self._answers: Answers = Answers(tracker.patience_s) if parent is None else parent._answers
        self._told = Told(tracker.place, run.id)
        self._left_here = ""  # a run that was here, was killed, and is made again as another
        if (before := told_of(run.folder)) is not None:
            self._told = self._followed(before, again=again)
        self._points = PointReader(run.folder)
        self._before = dict(self._told.steps)
        self._figures = self._files = 0  # that it is to be told in the end
        self._pause, self._not_before = PAUSE_S, 0.0
        self._begun, self._asked_tracker = threading.Event(), False
        self._asked: queue.SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {run.name}", daemon=True)
        self._thread.start()
        if tracker.required:
            self._wait_for(self._begun)
            self._stop_if_required()

    def _followed(self, before: Told, *, again: bool) -> Told:
        """What this place was told of the run, if it was any; other places keep what they were told."""
        here = before.of(self.tracker.place)
        elsewhere = [one for one in (before, *before.elsewhere) if one is not here and one.tracked]
        if here is None or here.run != self.run.id or again:
            self._left_here = here.tracked if here is not None and self._left(here) else ""
            here = Told(self.tracker.place, self.run.id)
        return replace(here, elsewhere=[replace(one, elsewhere=[]) for one in elsewhere])

    @property
    def known(self) -> str:
        """What the tracker calls the run, once it has heard of it; waits for that, and has it try again."""
        self._begun.wait(self.tracker.patience_s)
        if not self._told.tracked:
            done = threading.Event()
            self._asked.put((lambda: None, done))
            done.wait(self.tracker.patience_s)
        return self._told.tracked

    @property
    def record(self) -> dict[str, str]:
        """For the manifest: the place, the run there, and what went wrong."""
        found = {"place": hide(self.tracker.place), "run": self._told.tracked, "problem": self.problem}
        return {name: text for name, text in found.items() if text}

    @property
    def shown(self) -> dict[str, str]:
        """For people: how much was told, and how much was not."""
        if not self.problem:
            return {"told": self._told.shown}
        params = 0 if self._told.params else len(read(self.run.folder).config)
        missing = counted(self._points.left + self._figures, params, self._files)
        return {"told": self._told.shown, "missing": missing or "how it ended"}

    def catch_up(self) -> None:
        """Tell all that was written; waits, as long as the tracker has patience.

        Raises:
            StageError: it is required, and was not told.
        """
        self._do(self._look)
        self._stop_if_required()

    def end(self, state: State, figures: Sequence[Point] = (), files: Mapping[str, Path] | None = None) -> None:
        """Tell what is still to be told, figures of the whole run, files by what they are called there, and how it
        ended; waits as `catch_up`, less what that has waited in vain.

        Raises:
            StageError: it is required, and was not told.
        """
        self._figures, self._files = len(figures), len(files or {})

        def told() -> None:
            self._look()
            self._log(figures)
            self._figures, told = 0, self._told
            self.tracker.files(told.tracked, files or {})
            self._files, told.files = 0, len(files or {})
            self.tracker.end(told.tracked, state)
            told.state, told.points = state, self._points.taken + len(figures)
            self._keep()

        self._ended = True
        self._do(told, KILLED_PATIENCE_S if state == "killed" else None)
        self._asked.put(None)
        if state == "complete":
            self._stop_if_required()

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        """A run that has not said how it ended has failed, or whoever started it ended it."""
        if not self._ended:
            self.end("killed" if kind is not None and not issubclass(kind, Exception) else "failed")

    def _stop_if_required(self) -> None:
        if self.tracker.required and self.problem:
            raise StageError(f"tracker.required=true, and it was not told: {self.problem}")

    def _do(self, what: Callable[[], None], most_s: float | None = None) -> None:
        """Have the thread do it, and wait."""
        done = threading.Event()
        self._asked.put((what, done))
        self._wait_for(done, most_s)

    def _wait_for(self, done: threading.Event, most_s: float | None = None) -> None:
        """Wait as long as the tracker has patience: what is waited in vain is waited once, by all jobs of a sweep."""
        most_s, began = self.tracker.patience_s if most_s is None else most_s, time.monotonic()
        if not done.wait(min(most_s, self._answers.left_s)):
            self._failed(f"it has not answered for {most_s:g} s")
        if self.problem:
            self._answers.left_s = max(0.0, self._answers.left_s - (time.monotonic() - began))

    def _failed(self, why: Exception | str) -> None:
        said = why if isinstance(why, str) else _said(why)
        if not self.problem and not self._answers.problem:
            then = "" if self.tracker.required else "; the run goes on, and its folder has everything"
            self._say(f"tracker: {hide(self.tracker.place)}: {said}{then}")
        self.problem = self._answers.problem = said
        self._answers.failed = time.monotonic()
        self._not_before, self._pause = time.monotonic() + self._pause, min(2 * self._pause, LONGEST_PAUSE_S)

    def _answered(self) -> None:
        self.problem = self._answers.problem = ""
        self._answers.left_s = self.tracker.patience_s
        self._pause, self._not_before = PAUSE_S, 0.0

    def _work(self) -> None:
        """The thread: looks again and again, until it is asked to end."""
        while True:
            what, done = self._look, None
            with suppress(queue.Empty):
                asked = self._asked.get(self._begun.is_set(), EVERY_S)
                if asked is None:
                    return
                what, done = asked
            if done is not None and self._answers.just_failed:
                self.problem = self._answers.problem
            elif done is not None or time.monotonic() >= self._not_before:
                try:
                    self._begin()
                    what()
                    self._answered()
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
            if self._parent is not None:
                run = replace(run, parent=self._parent.known)
                if not run.parent:
                    raise StageError(self._answers.problem or "it has not heard of the sweep yet")
            self._keep()  # before it is begun: whoever is killed now, finds it by its token
            tracked = self.tracker.begin(replace(run, token=told.token), told.tracked)
            if tracked != told.tracked:  # or what it had is gone there
                self._told = told = Told(told.place, told.run, tracked, token=told.token, elsewhere=told.elsewhere)
                self._before = {}
                self._points.forget()
            told.state, told.params, self._asked_tracker = "running", len(run.config), True
            self._keep()
            self._mend()
        if told.telling:
            told.steps = dict(self.tracker.last(told.tracked, [*told.steps]))
            told.telling, self._before = False, dict(told.steps)
            self._points.forget()

    def _mend(self) -> None:
        """Say of runs beside this one that were killed, and could not say it themselves, that they are; and of the one
        that was in this folder."""
        if self._left_here:
            self._killed(self._left_here, self.run.name)
        for file in self.run.folder.parent.glob(f"*/{FILE}"):
            if file.parent == self.run.folder or self._left_in(file.parent) is None:
                continue
            with suppress(Busy):
                with locked(file.parent / ".lock", ""):  # no longer than for this: it may be about to go on
                    if (found := self._left_in(file.parent)) is None:  # it has ended since
                        continue
                    whole, other = found
                    other.state = "killed"
                    whole.keep(file.parent)
                self._killed(other.tracked, file.parent.name)

    def _killed(self, tracked: str, name: str) -> None:
        try:
            self.tracker.end(tracked, "killed")
        except Exception as why:  # of another run, which may be gone there
            self._say(f"tracker: it was not told that {name} was killed: {_said(why)}")

    def _left_in(self, folder: Path) -> tuple[Told, Told] | None:
        """What a run's folder says, and of this place, where it was begun with this tracker and not ended."""
        whole = told_of(folder)
        here = whole.of(self.tracker.place) if whole is not None else None
        return (whole, here) if whole is not None and here is not None and self._left(here) else None

    def _left(self, here: Told) -> bool:
        return bool(here.tracked) and here.state == "running"

    def _look(self) -> None:
        """Tell what was written since the last look."""
        self._points.read(self._log, self._cut)

    def _cut(self) -> None:
        self._before = dict(self._told.steps)

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
            told.telling, told.points = False, told.points + len(some)
        if new:
            self._keep()

    def _keep(self) -> None:
        self._told.keep(self.run.folder)


def told_of(folder: Path) -> Told | None:
    """What the file in a run's folder says; None: there is none, or none of ours."""
    try:
        found = json.loads(read_whole(folder / FILE))
        return _typed(found | {"elsewhere": [_typed(one) for one in found.get("elsewhere", ())]})
    except (SourceError, ValueError, TypeError, AttributeError):
        return None


def _typed(found: Any) -> Told:
    """Raises TypeError: it is no record of a place."""
    told = Told(**found)
    if any(not isinstance(getattr(told, f.name), type(getattr(EMPTY, f.name))) for f in fields(Told)):
        raise TypeError
    return told


EMPTY = Told("", "")


def _said(why: Exception) -> str:
    """What went wrong, in a line: what the system says, where a client only passes that on."""
    found: BaseException | None = why
    while found is not None:
        why = found if isinstance(found, OSError) else why
        found = found.__cause__ or found.__context__
    text = (hide(str(why)) or type(why).__name__).splitlines()[0]
    return text if isinstance(why, WeightmillError) else f"{type(why).__name__}: {text}"


def counted(points: int, params: int, files: int) -> str:
    """So many of each, for people; empty: none."""
    found = ((points, "point"), (params, "param"), (files, "artifact"))
    return ", ".join(f"{n:,} {name}{'s' * (n != 1)}" for n, name in found if n)
