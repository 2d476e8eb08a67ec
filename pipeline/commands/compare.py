"""`compare RUN RUN …`: in what runs differ, and what came of it; exit code 9, when something got worse by too much."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.commands.arguments import Arguments, not_a_record, outputs_of, say_absent
from pipeline.errors import ConfigError, did_you_mean
from pipeline.records.registry import find, found
from pipeline.redact import hide
from pipeline.reporting import console
from pipeline.reporting.compare.compared import Compared, compared, place_of_baseline
from pipeline.reporting.compare.files import FORMATS, NAME, as_text, write
from pipeline.reporting.compare.pareto import Pareto
from pipeline.reporting.compare.tolerance import Limits
from pipeline.reporting.html.place import usual

WORSE = 9  # the exit code
PICTURE = "pareto.png"
ENDINGS = ("csv", "json", "html", "png")


def main(words: Sequence[str]) -> int:
    """The exit code.

    Raises:
        ConfigError: what is typed makes no sense.
        SourceError: there is no such run.
        StorageError: a file cannot be written.
    """
    outputs, words = outputs_of(words)
    asked = _arguments().read(words)
    target = _target(asked.format, asked.out, pictured=bool(asked.pareto))
    those = found(outputs, asked.words)
    runs = those.runs
    say_absent(those)
    if not asked.words:
        raise ConfigError("compare: which runs? Folders, names of runs or sweeps, or conditions as quant=mxfp4")
    if len(runs) < 2 and not asked.baseline:
        named = f"{runs[0].name} alone" if runs else "no run"
        raise ConfigError(
            f"compare {' '.join(asked.words)} names {named}; two at least are expected. Conditions hold "
            "together; of several words either does: quant=mxfp4,int8"
        )
    base = None if asked.baseline is None else find(outputs, [asked.baseline])
    beside = compared(*place_of_baseline(runs, base))
    front = beside.pareto(*asked.pareto.split(",")) if asked.pareto else None
    limits = {given: beside.broken([given]) for given in asked.fail_if}
    if target.kind == "html" and target.file is None and target.folder is None:
        target = replace(target, file=usual(outputs, asked.words, [run.folder for run in runs], f"{NAME}.html"))
    _tell(beside, front, target, limits)
    for why in dict.fromkeys(why for row in beside.groups for one in row.runs for why in one.run.problems):
        console.aside(f"! {hide(why)}")
    broken = [why for lines in limits.values() for why in lines]
    for why in broken:
        console.aside(f"✗ {why}")
    return WORSE if broken else 0


def _arguments() -> Arguments:
    taken = Arguments("compare")
    taken.add_argument("words", nargs="*")
    taken.add_argument("--baseline")
    taken.add_argument("--fail-if", action="append", default=[])
    taken.add_argument("--pareto")
    taken.add_argument("--format")
    taken.add_argument("--out")
    return taken


@dataclass(frozen=True)
class Target:
    """What is written, and where to; None: that is not.

    Attributes:
        kind: of `FORMATS`.
        file: of that format.
        folder: for what is not named.
        picture: of Pareto's front.
    """

    kind: str
    file: Path | None = None
    folder: Path | None = None
    picture: Path | None = None


def _target(kind: str | None, out: str | None, *, pictured: bool) -> Target:
    """Where `--out` says: a file, whose ending says of which format, or a folder, which has no ending, or is there, or
    was typed with `/` behind it.

    Raises:
        ConfigError: they contradict each other, or there is no such format or ending.
        StorageError: it is a record of a run.
    """
    if out == "":
        raise ConfigError("compare --out: a folder or a file is expected")
    if kind is not None and kind not in FORMATS:
        raise ConfigError(f"compare --format {kind}: there is no such format{did_you_mean(kind, FORMATS)}")
    if out is None:
        return Target(kind or "table")  # of a page its usual place
    path = Path(out).expanduser()
    not_a_record(path)
    ending = "" if path.is_dir() or out.endswith("/") else path.suffix.lower().lstrip(".")
    if not ending:
        return Target(kind or "table", folder=path, picture=path / PICTURE if pictured else None)
    if ending not in ENDINGS:
        hint = did_you_mean(ending, ENDINGS)
        raise ConfigError(f"compare --out {out}: nothing is written as .{ending}{hint}; a folder is --out {out}/")
    if kind not in (None, "table" if ending == "png" else ending):
        raise ConfigError(f"compare --format {kind} --out {out}: the file's name says {ending}")
    if ending != "png":
        return Target(ending, file=path)
    if not pictured:
        raise ConfigError(f"compare --out {out}: the picture is of --pareto METRIC,METRIC")
    return Target("table", picture=path)


def _tell(found: Compared, front: Pareto | None, target: Target, limits: Limits) -> None:
    """Show it, or write it; what was written is said last, on stdout, but where that is data.

    Raises:
        StorageError: it cannot be written.
    """
    kind, written = target.kind, list[Any]()
    if target.file is not None:
        written.append(write(found, front, kind, target.file, limits))
    if target.folder is not None:
        kinds = ("csv", "json") if kind == "table" else (kind,)
        written += [write(found, front, one, target.folder / f"{NAME}.{one}", limits) for one in kinds]
    if front is not None and target.picture is not None:
        written.append(front.draw(target.picture))
    if kind == "table":
        console.out(*found.shown, *(front.shown if front else ()), *written)
    elif written:
        console.out(*written)
    else:
        console.out(as_text(found, front, kind).rstrip("\n"))
