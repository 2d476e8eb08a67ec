"""The page: one self-contained HTML file, smaller than a limit whatever the runs are, in which nothing can act that
somebody wrote into a name. `write` is for commands, `html` for notebooks."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pipeline.errors import some
from pipeline.files import write_over
from pipeline.records.run import Run
from pipeline.reporting.html.markup import clean
from pipeline.reporting.html.parts import Drawn, Folded, Note, Part, Section
from pipeline.reporting.html.sections import of_run, settings
from pipeline.reporting.html.together import about, of_runs
from pipeline.reporting.html.told import Told, labels, told
from pipeline.units import show_bytes

MOST_NBYTES = 2_900_000
MOST_RUNS = 400
# How closely runs are looked at, the first that fits: rows and points of each (0: no charts of tensors and trainings),
# and how many runs.
CLOSELY = ((400, MOST_RUNS), (120, MOST_RUNS), (40, MOST_RUNS), (16, MOST_RUNS), (0, MOST_RUNS), (0, 60), (0, 0))
LEAST = 24  # points of a line over several runs
CONFIGS = 4  # runs with all of their settings


def write(runs: Sequence[Run], path: Path, title: str = "", *, absent: Sequence[str] = ()) -> int:
    """One page about `runs`, at `path`; its bytes.

    Args:
        absent: jobs of the sweep that was asked for which are not there, and why.

    Raises:
        StorageError: it cannot be written.
    """
    text = html(runs, title, path, absent).encode("utf-8", "backslashreplace")
    write_over(path, text)
    return len(text)


def html(runs: Sequence[Run], title: str = "", path: Path | None = None, absent: Sequence[str] = ()) -> str:
    """The page as text.

    Args:
        path: where it will be, which links to files start from; None: it has no such links.
        absent: see `write`; of several runs the page finds out itself.
    """
    shown = list(runs)[:MOST_RUNS]
    known = [told(run, label, path) for run, label in zip(shown, labels(shown), strict=True)]
    heading = title or _title(known)
    said = [Note(why, "problem") for why in absent] if len(shown) == 1 else []
    if len(shown) < len(runs):
        heading = f"{heading}, of {len(runs):,}"
        more = (
            f"{len(shown):,} of {len(runs):,} runs are on this page, the first of them. Conditions choose others "
            "(weightmill report 'perplexity<70'); weightmill runs export --out runs.csv has the numbers of all."
        )
        said.append(Note(more, "problem"))
    text = ""
    for most, closely in CLOSELY:
        made = _rendered(heading, known, most, closely, said)
        text = made or text
        if made and len(made.encode("utf-8", "backslashreplace")) <= MOST_NBYTES:
            break
    return text


def _title(runs: Sequence[Told]) -> str:
    if len(runs) == 1:
        return runs[0].run.name
    if len(sweeps := set.intersection(*({*run.run.sweeps} for run in runs))) == 1:
        return f"{min(sweeps)}: {len(runs):,} runs"
    folders = {run.run.folder.parent for run in runs}
    where = f" in {some(sorted({f.name for f in folders}))}" if folders else ""
    return f"{len(runs):,} runs{where}"


def _rendered(heading: str, runs: Sequence[Told], most: int, closely: int, said: Sequence[Note]) -> str | None:
    """The page as text; None, when it is seen to be too large before it is done."""
    notes = [*said]
    if len(runs) == 1:
        sections = of_run(runs[0], most)
    else:
        near = min(closely, len(runs))
        anchors = [f"run-{i}" if i < near else None for i in range(len(runs))]
        each: list[Part] = []
        nbytes = 0
        for i, run in enumerate(runs[:near]):
            each.append(Drawn(_folded(run, f"run-{i}", most, len(runs)).html))
            nbytes += len(each[-1].html)
            if nbytes > MOST_NBYTES or nbytes / (i + 1) * near > 2 * MOST_NBYTES:  # they are much alike
                return None
        sections = of_runs(runs, anchors, max(most, LEAST))
        if near < len(runs):
            notes.append(Note(f"Looked at closely are the first {near}; a page of each of the others has the rest."))
        if each:
            sections.append(Section("runs", "Each run", each))
    if most < CLOSELY[0][0]:
        few = f"have at most {most} rows" if most else "stand on the pages of single runs only"
        kept = f"To keep the page below {show_bytes(MOST_NBYTES)}"
        notes.append(Note(f"{kept}, tables of tensors and curves of each run {few}."))
    return rendered(heading, sections, notes, len(runs))


def rendered(
    heading: str, sections: Sequence[Section], notes: Sequence[Note], count: int, *, bare: bool = False
) -> str:
    """A page with these sections.

    Args:
        notes: above them.
        count: runs that it is about.
        bare: without what is around them.
    """
    style, script = _data("page.css"), _data("page.js")
    return str(
        _template().render(
            title=clean(heading), sections=sections, notes=[note.html for note in notes], style=style,
            script=script, style_hash=_hash(style), script_hash=_hash(script), count=count, bare=bare,
            made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
    )  # fmt: skip


def _folded(run: Told, id: str, most: int, of: int) -> Folded:
    sections = of_run(run, most, config=of <= CONFIGS)
    parts: list[Any] = [Folded(s.title, s.parts, open=s.id in ("summary", "stages"), kind="part") for s in sections]
    if of > CONFIGS:
        parts += [Folded("Configuration", settings(run)[:1], "what was overridden", kind="part")]
    return Folded(run.label, parts, about(run), kind="run", id=id)


@cache
def _data(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _template() -> Any:
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(_data("page.html.j2"))


def _hash(text: str) -> str:
    """What a content security policy takes it by."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
