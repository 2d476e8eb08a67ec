"""A run as its folder tells it, whether it is complete, at work, or was killed; only what can be read whole counts."""

import socket
from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipeline.config.names import place_name
from pipeline.errors import SourceError
from pipeline.figures import Figure, cell
from pipeline.files import spoken
from pipeline.records import schemas
from pipeline.records.lost import error_figures, total
from pipeline.records.tags import said_of
from pipeline.records.tries import LOCK, held, journaled, last_try
from pipeline.redact import hide

DESCRIPTION, MANIFEST, METRICS, CONFIG = "run.json", "manifest.json", "metrics.jsonl", "config.yaml"

State = Literal["complete", "running", "interrupted", "failed", "elsewhere", "unreadable"]
STATES = ("complete", "running", "interrupted", "failed", "elsewhere", "unreadable")


class Settings(Mapping[str, Any]):
    """The resolved config of a run by dotted key; its file is read when somebody asks."""

    def __init__(self, path: Path, known: Mapping[str, Any] | None = None):
        self._path, self._known = path, known

    def keep(self) -> None:
        """Whoever has read the settings of many runs says so: where there is an index, nobody parses them again."""

    def _all(self) -> Mapping[str, Any]:
        if self._known is None:
            from pipeline.records.configs import read_config

            self._known = read_config(self._path)
        return self._known

    def __getitem__(self, key: str) -> Any:
        return self._all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def items(self) -> ItemsView[str, Any]:
        return self._all().items()


@dataclass(frozen=True)
class Run:
    """Attributes:
    folder: absolute.
    id: from its first try to its last; a copy has the same.
    name: of its folder, within the folder of outputs where that is known.
    state: `complete` with a manifest; without one `running` while a process holds its folder, `failed` when its last
        try said why, `elsewhere` when that was on another host, which may be at work still, and `interrupted`
        otherwise; `unreadable`, when its records are not ours or not whole, which `problems` says.
    started: seconds since the epoch; None: not known.
    seconds: what it took; None while it is not complete.
    command: the overrides that say what is made.
    metrics: what it found last, by name: `perplexity`, `KL`, `bits a weight`, …; while it is not complete, what its
        training has come to.
    config: resolved, by dotted key.
    problems: files that are partial or foreign, and why.
    model, quant: what its command calls them.
    why: its last try failed.
    host, pid: of its last try.
    done: chunks that are journaled, of `total`; of a run that is not complete.
    stages_done: stages that compute and have their results, of `stages`; of a run that is not complete.
    tags, notes: what people say of it.
    sweeps: folders of sweeps that it is a job of, within the folder of outputs.
    letters: of these, as tables show them: of all sweeps there, the one that began first is `a`.
    """

    folder: Path
    id: str
    name: str
    state: State
    started: float | None = None
    seconds: float | None = None
    command: tuple[str, ...] = ()
    metrics: Mapping[str, Figure] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    problems: tuple[str, ...] = ()
    model: str = ""
    quant: str = ""
    why: str = ""
    host: str = ""
    pid: int | None = None
    done: int | None = None
    total: int | None = None
    stages_done: int | None = None
    stages: int | None = None
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sweeps: tuple[str, ...] = ()
    letters: tuple[str, ...] = ()

    @property
    def manifest(self) -> dict[str, Any]:
        """All that stands in `manifest.json`; of a run that is not complete nothing.

        Raises:
            SourceError: it is no record of ours, or not whole.
        """
        return _manifest(self.folder / MANIFEST) if (self.folder / MANIFEST).is_file() else {}

    @property
    def percent(self) -> int | None:
        """How much is done of the chunks, and of the stages that compute, each as much as a chunk; of a run that is not
        complete 99 at most. None: nothing, or nothing is known."""
        done, total = ((a or 0) + (b or 0) for a, b in ((self.done, self.stages_done), (self.total, self.stages)))
        return min(99, 100 * done // total) if done and total and self.state != "complete" else None

    @property
    def reached(self) -> str:
        """What its state comes to, in words: how far it came, why it failed, where it began, what cannot be read."""
        if self.state == "complete":
            return ""
        done = self.done or 0  # not counted, where something cannot be read
        far = f"{done:,} of {self.total:,} chunks" if self.total else f"{done:,} chunks" if done else ""
        if self.stages:
            far = f"{far}, {self.stages_done or 0} of {self.stages} {'other ' * bool(far)}stages".removeprefix(", ")
        said = {
            "failed": self.why,
            "elsewhere": f"began on {self.host}, {far} journaled" if far else f"began on {self.host}",
            "running": f"{far}, process {self.pid}" if self.pid else far,
            "interrupted": far,
            "unreadable": "; ".join(self.problems),
        }
        return said[self.state]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pipeline.tables import table

        rows = [("state", f"{self.state}: {self.reached}" if self.reached else self.state), ("id", self.id)]
        rows += [("command", " ".join(self.command)), ("model", self.model), ("quant", self.quant)]
        rows += [(name, str(figure)) for name, figure in self.metrics.items()]
        rows += [("tags", ", ".join(self.tags)), ("notes", "\n".join(self.notes)), ("folder", str(self.folder))]
        return table(self.name, ("", ""), [row for row in rows if row[1]]).html


def key_of(name: str) -> str:
    """How the name of a metric or setting is typed: `bits a weight` → `bits_a_weight`, `top-1` → `top_1`."""
    return "".join(c if c.isalnum() or c == "." else "_" for c in name.lower())


def is_run(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() or (folder / MANIFEST).is_file()


def read(folder: Path) -> Run:
    """The run in `folder`.

    Raises:
        SourceError: there is none.
    """
    if not is_run(folder):
        raise SourceError(f"{spoken(folder)}: is no folder of a run: it has no {DESCRIPTION}")
    run = settled(as_written(folder), locked=(folder / LOCK).exists())
    return replace(run, config=Settings(folder / CONFIG))


def as_written(folder: Path) -> Run:
    """The run as its files tell it, whoever is at work; of one that is not complete `settled` says what it is."""
    problems: list[str] = []
    found: dict[str, Any] = {}
    readers = {DESCRIPTION: _description, MANIFEST: _manifest}
    for name, reader in readers.items():
        try:
            found[name] = reader(folder / name) if (folder / name).is_file() else {}
        except SourceError as why:
            problems.append(str(why))
    description, manifest = found.get(DESCRIPTION, {}), found.get(MANIFEST, {})
    if problems:
        description, manifest = {}, {}  # nothing of it is half read
    command = tuple(map(str, description.get("command") or manifest.get("command", ())))
    run = Run(folder, str(description.get("id", "")), folder.name, "unreadable" if problems else "interrupted")
    try:
        last, said = last_try(folder), said_of(folder)
        run = replace(run, why=last.why, host=last.host, pid=last.pid, total=last.total, started=last.began)
        run = replace(run, stages=last.stages)
        run = replace(run, tags=said.tags, notes=said.notes)
        if not manifest and not problems:
            run = replace(run, done=journaled(folder), stages_done=len(last.made))
    except SourceError as why:
        problems.append(str(why))
    if problems:
        return replace(run, state="unreadable", problems=tuple(problems))
    run = replace(run, command=command, model=_model(command), quant=_choice(command, "quant") or "keep")
    if not manifest:
        from pipeline.records.latest import latest

        return replace(run, state="failed" if run.why else "interrupted", metrics=latest(folder))
    run = replace(run, total=None, stages=None)
    done = replace(run, state="complete", why="", started=manifest["started"], seconds=manifest["seconds"])
    return replace(done, metrics=_metrics(manifest))


def settled(run: Run, *, locked: bool) -> Run:
    """The run as it is at this moment.

    Args:
        locked: its folder has a lock, held or not.
    """
    if run.state not in ("interrupted", "failed") or not locked:
        return run
    if held(run.folder):
        return replace(run, state="running", why="")
    if run.state == "interrupted" and run.host and run.host != socket.gethostname():
        return replace(run, state="elsewhere")
    return run


def _description(path: Path) -> dict[str, Any]:
    return schemas.read("run", path)


def _manifest(path: Path) -> dict[str, Any]:
    return schemas.read("manifest", path)


def _metrics(manifest: Mapping[str, Any]) -> dict[str, Figure]:
    """What its stages found, and what holds of every run."""
    found: dict[str, Figure] = {}
    for result in manifest.get("results", {}).values():
        figures = result.get("figures") if isinstance(result, Mapping) else None
        for name, value in figures.items() if isinstance(figures, Mapping) else ():
            try:
                figure = cell(value)
            except (ValueError, TypeError):  # a form that no number has
                continue
            if isinstance(figure, Figure):
                found[str(name)] = figure
    if (nbytes := manifest.get("nbytes_out")) and (plain := manifest.get("nbytes_bf16")):
        found["bits a weight"] = Figure(16 * nbytes / plain, better="lower")
        found["size"] = Figure(nbytes, "B", better="lower")
    return found | (error_figures(lost) if (lost := total(manifest)).count else {})


def _choice(command: tuple[str, ...], group: str) -> str:
    given = [o.partition("=")[2] for o in command if o.lstrip("+~").partition("=")[0] == group]
    return hide(given[-1].strip("'\"")) if given else ""


def _model(command: tuple[str, ...]) -> str:
    """What the overrides call it: its option, or after where it lies."""
    return _choice(command, "model") or hide(place_name(_choice(command, "model.source")))
