"""`runs`: what there is, and `show`, `tag`, `rm` and `export` of some of it."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.commands.arguments import Arguments, not_a_record, outputs_of, say_absent
from pipeline.errors import ConfigError, SourceError, StorageError, did_you_mean, nearest
from pipeline.files import placed, write_over
from pipeline.records.query import CONDITION, is_condition, meant, ordered, unmet
from pipeline.records.registry import all_runs, find, found
from pipeline.records.run import Run
from pipeline.records.tags import said_of, say
from pipeline.reporting import console
from pipeline.reporting.runs import run_tables, runs_tables
from pipeline.reporting.runs_export import as_csv, as_json, write_parquet
from pipeline.tables import table
from pipeline.units import show_bytes

FORMATS = ("table", "csv", "json")
MOST = 100  # rows of a table, where nobody says how many
EXPORTS = ("csv", "json", "parquet")


def main(words: Sequence[str]) -> int:
    """The exit code.

    Raises:
        ConfigError: an option, a condition or a format that there is not.
        SourceError: no run is called so.
        StorageError: something cannot be written or removed.
    """
    outputs, rest = outputs_of(words)
    if not outputs.is_dir() and any(word.startswith("paths.outputs=") for word in words):
        raise ConfigError(f"paths.outputs={outputs}: there is no such folder")
    verb = rest[0] if rest and rest[0] in VERBS else ""
    try:
        VERBS[verb](outputs, rest[1:] if verb else rest)
    except SourceError as why:
        if not verb and (close := nearest(rest[0], filter(None, VERBS), 1)) and str(why).startswith(f"{rest[0]}: "):
            raise SourceError(f"{why}; did you mean `runs {close[0]}`?") from None
        raise
    return 0


def _list(outputs: Path, words: Sequence[str]) -> None:
    arguments = Arguments("runs")
    arguments.add_argument("words", nargs="*")
    arguments.add_argument("--sort")
    arguments.add_argument("--reverse", action="store_true")
    arguments.add_argument("--format", default="table")
    arguments.add_argument("--limit")
    asked = arguments.read(words)
    _known(asked.format, FORMATS)
    limit = _count(asked.limit) or (MOST if asked.format == "table" else None)
    those = found(outputs, asked.words)
    runs = _sorted(outputs, those.runs, asked.sort, reverse=asked.reverse)
    shown = runs[:limit]
    say_absent(those)
    if asked.format == "table":
        if asked.words and not runs:
            console.out("no run is so", *unmet(all_runs(outputs), those.conditions))
            return
        first = [CONDITION.sub(r"\1", word) for word in asked.words if is_condition(word)]
        first = [name for typed in [*([asked.sort] if asked.sort else []), *first] for name in meant(typed)]
        console.out(*runs_tables(shown, outputs, first))
        if len(shown) < len(runs):
            console.out(f"{len(shown):,} of {len(runs):,} runs; --limit N shows more")
    else:
        _write(as_json(shown, settings=False) if asked.format == "json" else as_csv(shown, settings=False))


def _show(outputs: Path, words: Sequence[str]) -> None:
    from pipeline.records.series import series

    arguments = Arguments("runs show")
    arguments.add_argument("words", nargs="+", metavar="RUN")
    asked = arguments.read(words)
    known = all_runs(outputs)
    there = {run.folder: run for run in known}
    for run in _some(outputs, asked.words):
        whole = there.get(run.folder, run)  # which knows its sweeps
        copies = [one for one in known if one.id == run.id and run.id and one.folder != run.folder]
        try:
            of, foreign = series(whole, outputs)
        except SourceError as why:  # a file of metrics that is none; the rest is shown
            of, foreign = {}, [str(why)]
        console.out(*run_tables(whole, of, copies), *foreign)


def _tag(outputs: Path, words: Sequence[str]) -> None:
    add, remove, rest = [], [], []
    at = words.index("--") if "--" in words else len(words)
    for word in words[:at]:
        if re.match(r"\+\w", word):
            add.append(word[1:])
        elif re.match(r"-\w", word):
            remove.append(word[1:])
        else:
            rest.append(word)
    arguments = Arguments("runs tag")
    arguments.add_argument("words", nargs="+", metavar="RUN")
    arguments.add_argument("--note", default="")
    asked = arguments.read([*rest, *words[at:]])
    if not (add or remove or asked.note):
        raise ConfigError("runs tag: say which: +best adds a tag, -best takes it away, --note TEXT adds a note")
    runs = _some(outputs, asked.words)
    there = dict.fromkeys(tag for run in runs for tag in said_of(run.folder).tags)
    if absent := [tag for tag in remove if tag not in there]:
        whose = f"{runs[0].name} has no such tag" if len(runs) == 1 else f"none of the {len(runs)} runs has such a tag"
        raise ConfigError(f"runs tag -{absent[0]}: {whose}{did_you_mean(absent[0], list(there))}; nothing was changed")
    for run in runs:
        said = say(run.folder, add, remove, asked.note)
        console.out(
            f"{run.name}: {' '.join(said.tags) or 'no tags'}{f', notes: {len(said.notes)}' if said.notes else ''}"
        )


def _rm(outputs: Path, words: Sequence[str]) -> None:
    from pipeline.running.removing import carry_out, removal

    arguments = Arguments("runs rm")
    arguments.add_argument("words", nargs="+", metavar="RUN")
    arguments.add_argument("--yes", action="store_true")
    asked = arguments.read(words)
    runs = _some(outputs, asked.words)
    if busy := [run for run in runs if run.state == "running"]:
        raise StorageError(f"{busy[0].folder}: is at work ({busy[0].reached}), and is not removed; stop it first")
    removals = [removal(run) for run in runs]
    rows = [
        (one.run.name, len(one.files), " ".join(e.name for e in one.exports) or "–", show_bytes(one.nbytes),
         " ".join(str(p.relative_to(one.run.folder)) for p in one.stays) or "–")
        for one in removals
    ]  # fmt: skip
    console.out(table("To be removed", ("run", "files", "exports", "size", "stays"), rows, right=(1, 3)))
    if not asked.yes and not _agreed(len(removals)):
        raise ConfigError("runs rm: nothing was removed; --yes removes it")
    console.out(*carry_out(removals), "results that no run refers to any more are listed by `gc`")


def _export(outputs: Path, words: Sequence[str]) -> None:
    arguments = Arguments("runs export")
    arguments.add_argument("words", nargs="*")
    arguments.add_argument("--format")
    arguments.add_argument("--sort")
    arguments.add_argument("--reverse", action="store_true")
    arguments.add_argument("--out")
    asked = arguments.read(words)
    if asked.out is not None:
        not_a_record(placed(asked.out))
    ending = Path(asked.out or "").suffix.lower().lstrip(".")
    if asked.format is None and ending and ending not in EXPORTS:
        hint = did_you_mean(ending, EXPORTS)
        raise ConfigError(f"runs export --out {asked.out}: nothing is written as .{ending}{hint}")
    if asked.format is not None and ending in EXPORTS and ending != asked.format in EXPORTS:
        raise ConfigError(f"runs export --format {asked.format} --out {asked.out}: the file's name says {ending}")
    asked.format = asked.format or (ending if ending in EXPORTS else "csv")
    _known(asked.format, EXPORTS)
    if asked.format == "parquet" and asked.out is None:
        raise ConfigError("runs export --format parquet: it is a file; --out FILE says which")
    runs = _sorted(outputs, find(outputs, asked.words), asked.sort, reverse=asked.reverse)
    if asked.out is None:
        _write(as_json(runs, settings=True) if asked.format == "json" else as_csv(runs, settings=True))
        return
    out = placed(asked.out)
    if out.is_dir():
        raise ConfigError(f"--out {out}: is a folder; a file is written")
    if asked.format == "parquet":
        write_parquet(runs, out, settings=True)
    else:
        text = as_json(runs, settings=True) if asked.format == "json" else as_csv(runs, settings=True)
        write_over(out, text.encode("utf-8", "backslashreplace"))
    console.out(f"{len(runs):,} runs", out)


VERBS: dict[str, Any] = {"": _list, "show": _show, "tag": _tag, "rm": _rm, "export": _export}


def _some(outputs: Path, words: Sequence[str]) -> list[Run]:
    """At least one run.

    Raises:
        ConfigError: conditions that hold of none.
    """
    if not (runs := find(outputs, words)):
        raise ConfigError(f"{' '.join(words)}: no run is so")
    return runs


def _sorted(outputs: Path, runs: list[Run], by: str | None, *, reverse: bool) -> list[Run]:
    if by is not None:
        return ordered(runs, by, reverse=reverse, known=lambda: all_runs(outputs))
    return runs[::-1] if reverse else runs


def _known(given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise ConfigError(f"--format {given}: there is no such format{did_you_mean(given, allowed)}")


def _count(given: str | None) -> int | None:
    if given is not None and (not given.isdecimal() or int(given) < 1):
        raise ConfigError(f"--limit {given}: a number of runs is expected, 1 or more")
    return int(given) if given is not None else None


def _agreed(count: int) -> bool:
    """Whether somebody at the terminal says so; without a terminal nobody does."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(f"remove {count} run{'s' * (count > 1)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _write(text: str) -> None:
    """Data to stdout, not folded."""
    sys.stdout.write(text)
    sys.stdout.flush()
