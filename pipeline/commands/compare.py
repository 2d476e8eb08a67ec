"""`compare RUN RUN …`: in what runs differ, and what came of it; exit code 9, when something got worse by too much."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import terminal
from pipeline.commands.arguments import Arguments, not_a_record, outputs_of
from pipeline.errors import ConfigError, did_you_mean
from pipeline.records.registry import find
from pipeline.reporting import console
from pipeline.reporting.compare.compared import Compared, compared, place_of_baseline
from pipeline.reporting.compare.files import FORMATS, NAME, as_text, write
from pipeline.reporting.compare.pareto import Pareto

WORSE = 9  # the exit code
PICTURE = "pareto.png"


def main(words: Sequence[str]) -> int:
    """The exit code.

    Raises:
        ConfigError: what is typed makes no sense.
        SourceError: there is no such run.
        StorageError: a file cannot be written.
    """
    outputs, words = outputs_of(words)
    asked = _arguments().read(words)
    kind, out = _place(asked.format, asked.out, pictured=bool(asked.pareto))
    if out is not None:
        not_a_record(out)
    runs = find(outputs, asked.words)
    if not asked.words:
        raise ConfigError("compare: which runs? Folders, names of runs or sweeps, or conditions as quant=mxfp4")
    if len(runs) < 2 and not asked.baseline:
        raise ConfigError(
            f"compare {' '.join(asked.words)}: {f'is {runs[0].name} alone' if runs else 'is no run'}; two at least are "
            "expected. Conditions hold together; of several words either does: quant=mxfp4,int8"
        )
    base = None if asked.baseline is None else find(outputs, [asked.baseline])
    found = compared(*place_of_baseline(runs, base))
    front = found.pareto(*asked.pareto.split(",")) if asked.pareto else None
    broken = found.broken(asked.fail_if) if asked.fail_if else []
    _tell(found, front, kind, out)
    for why in broken:
        terminal.say(f"✗ {why}")
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


def _place(kind: str | None, out: str | None, *, pictured: bool) -> tuple[str, Path | None]:
    """The format, and where to: a file, whose ending may say which, or a folder.

    Raises:
        ConfigError: they contradict each other, or there is no such format.
    """
    path = Path(out).expanduser() if out else None
    if out == "":
        raise ConfigError("compare --out: a folder or a file is expected")
    if kind is not None and kind not in FORMATS:
        raise ConfigError(f"compare --format {kind}: there is no such format{did_you_mean(kind, FORMATS)}")
    ending = path.suffix.lower().lstrip(".") if path is not None and not path.is_dir() else ""
    if ending == "png":
        if not pictured:
            raise ConfigError(f"compare --out {out}: the picture is of --pareto METRIC,METRIC")
        return kind or "table", path
    if ending in FORMATS and ending != "table":
        if kind not in (None, ending):
            raise ConfigError(f"compare --format {kind} --out {out}: the file's name says {ending}")
        return ending, path
    if kind == "html" and path is None:
        path = Path(f"{NAME}.html")
    return kind or "table", path


def _tell(found: Compared, front: Pareto | None, kind: str, out: Path | None) -> None:
    """Show it, or write it; what was written is said last, on stdout, but where that is data.

    Raises:
        StorageError: it cannot be written.
    """
    written: list[Any] = []
    in_file = out is not None and out.suffix.lower().lstrip(".") in FORMATS and not out.is_dir()
    picture = None if out is None or in_file else out if out.suffix.lower() == ".png" else out / PICTURE
    if in_file and out is not None:
        written.append(write(found, front, kind, out))
    elif out is not None and picture != out:
        kinds = ("csv", "json") if kind == "table" else (kind,)
        written += [write(found, front, one, out / f"{NAME}.{one}") for one in kinds]
    if front is not None and picture is not None:
        written.append(front.draw(picture))
    if kind == "table":
        console.out(*found.shown, *(front.shown if front else ()), *written)
    elif out is None or picture == out:
        console.out(as_text(found, front, kind).rstrip("\n"))
    else:
        console.out(*written)
