"""The project's own benchmarks, one after the other, and the pages of what they find: `make bench`.

    python -m plugins.bench.suite            # those of suite.yaml; what was interrupted goes on
    python -m plugins.bench.suite ops train  # these alone
    python -m plugins.bench.suite --pages    # none: BENCHMARKS.md and README.md anew, from docs/benchmarks/

Each is a run below outputs/suite, or suite-2, …, held against what docs/benchmarks/ has of it where that is of the same
kind of machine. What is in the way of one is said, and the others are measured all the same; then its section of the
page stays what it was. Exit codes are those of the commands, the largest of them.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.bench.against import CODE, NAME
from pipeline.bench.page import Section, best, page
from pipeline.errors import ConfigError, StageError, StorageError, WeightmillError, did_you_mean
from pipeline.places import reason
from pipeline.planning.rates import machine
from pipeline.records import schemas
from pipeline.records.run import MANIFEST

LIST = Path("plugins/bench/suite.yaml")
PAGES, PAGE, README = Path("docs/benchmarks"), Path("BENCHMARKS.md"), Path("README.md")
SUITES, FINISHED = Path("outputs"), "finished"
COMMAND = "make bench"
BEGIN, END = f"<!-- begin: {COMMAND} -->\n", f"<!-- end: {COMMAND} -->\n"
MEASURED = (0, StageError.exit_code, CODE)  # of a command whose figures are there: some cell may have failed
INTERRUPTED = 130
STOPPED = 128  # exit codes from here on are of somebody who stops all of it


@dataclass(frozen=True)
class Benchmark:
    """Of the list.

    Attributes:
        command: what is typed behind `weightmill`.
        needs: a file or folder, without which it is left out; empty: none.
        made_by: words behind `python` that make it; none: nothing here does.
    """

    name: str
    command: tuple[str, ...]
    needs: str = ""
    made_by: tuple[str, ...] = ()


def listed(path: Path) -> list[Benchmark]:
    """
    Raises:
        ConfigError: a name that is none for a file.
    """
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name in given:
        if Path(name).name != name:
            raise ConfigError(f"{path.name}: {name!r} is no name of a file")
    return [
        Benchmark(name, tuple(one["command"]), one.get("needs", ""), tuple(one.get("made_by", ())))
        for name, one in given.items()
    ]


def chosen(known: Sequence[Benchmark], names: Sequence[str]) -> list[Benchmark]:
    """Those of `names`; of none all.

    Raises:
        ConfigError: there is no such benchmark.
    """
    for name in names:
        if name not in [one.name for one in known]:
            raise ConfigError(f"there is no benchmark {name!r}{did_you_mean(name, [one.name for one in known])}")
    return [one for one in known if not names or one.name in names]


def unfinished(outputs: Path, names: Sequence[str]) -> Path:
    """The folder of the last suite of `names` where it was interrupted, else of a new one."""
    called, number = "-".join(["suite", *names]), 1
    while (folder := outputs / (f"{called}-{number}" if number > 1 else called)).joinpath(FINISHED).exists():
        number += 1
    return folder


def measure(names: Sequence[str], root: Path) -> int:
    """Run those of `names`, or all, and write what they found below docs/benchmarks; the exit code.

    Raises:
        ConfigError: there is no such benchmark.
        StorageError: it cannot be written.
    """
    benchmarks = chosen(listed(root / LIST), names)
    suite, codes = unfinished(root / SUITES, names), [0]
    for one in benchmarks:
        folder = suite / one.name
        if not (folder / MANIFEST).exists():
            if not _there(one, root):
                continue
            code = _run(one, folder, root)
            if code < 0 or code >= STOPPED:
                return code
            codes.append(code)
            if code not in MEASURED:
                print(f"✗ {one.name}: exit code {code}; its section is what it was", file=sys.stderr)
                continue
        keep(folder / NAME, root / PAGES / f"{one.name}.json", root)
    suite.mkdir(parents=True, exist_ok=True)
    if {*codes} <= {*MEASURED}:  # else the next suite is this one, of which only that is left
        (suite / FINISHED).touch()
    return max(codes)


def _there(one: Benchmark, root: Path) -> bool:
    """Whether the file is there that it needs; where it can be made, it is."""
    if one.needs and not (root / one.needs).exists() and one.made_by:
        subprocess.run([sys.executable, *one.made_by], cwd=root, check=False)  # noqa: S603 words of our own list
    there = not one.needs or (root / one.needs).exists()
    if not there:
        print(f"✗ {one.name}: needs {one.needs}, which is not there; it is left out", file=sys.stderr)
    return there


def _run(one: Benchmark, folder: Path, root: Path) -> int:
    """The exit code of its command."""
    print(f"weightmill {shlex.join(one.command)}", flush=True)
    places = [f"paths.run={folder.relative_to(root)}", f"paths.outputs={SUITES}"]
    typed = [*one.command, *places, *_against(root / PAGES / f"{one.name}.json", root)]
    return subprocess.run([sys.executable, "-m", "pipeline", *typed], cwd=root, check=False).returncode  # noqa: S603


def _against(known: Path, root: Path) -> list[str]:
    """Where it is of this kind of machine what the page has, as a baseline."""
    if not known.exists():
        return []
    of = schemas.read("benchmark", known)["machine"]
    same = (of["kind"] if isinstance(of, Mapping) else of) == machine()
    return [f"bench.against={known.relative_to(root)}"] if same else []


def keep(found: Path, place: Path, root: Path) -> None:
    """Write a `bench.json` as `place`, a row a line, without where this checkout lies.

    Raises:
        StorageError: it cannot be written.
    """
    record = schemas.read("benchmark", found)
    head = [f"{json.dumps(key)}: {_dumped(value, root)}" for key, value in record.items() if key != "rows"]
    rows = ",\n  ".join(_dumped(row, root) for row in record["rows"])
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("{" + ",\n ".join([*head, f'"rows": [\n  {rows}\n ]']) + "\n}\n", encoding="utf-8")
    except OSError as why:
        raise StorageError(f"{place}: {reason(why)}") from None


def _dumped(value: Any, root: Path) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace(f"{root}/", "").replace(str(Path.home()), "~")


def sections(benchmarks: Sequence[Benchmark], root: Path) -> Iterator[Section]:
    """What docs/benchmarks has, in the order of the list."""
    for one in benchmarks:
        if (file := root / PAGES / f"{one.name}.json").exists():
            yield Section(one.name, schemas.read("benchmark", file))


def pages(root: Path) -> dict[Path, str]:
    """What is written of the figures there are: file → text.

    Raises:
        StorageError: README.md has no place for its table.
    """
    found = list(sections(listed(root / LIST), root))
    text = (root / README).read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise StorageError(f"{README}: {BEGIN.strip()} and {END.strip()} are expected around its table of figures")
    return {root / PAGE: page(found, COMMAND), root / README: before + begin + best(found) + end + after}


def main(args: Sequence[str], root: Path) -> int:
    """The exit code.

    Raises:
        WeightmillError: see `measure` and `pages`.
    """
    if args and args[0].startswith("-") and args != ["--pages"]:
        raise ConfigError(f"{args[0]}: names of benchmarks are expected, or --pages alone")
    code = 0 if args == ["--pages"] else measure(args, root)
    if 0 <= code < STOPPED:
        for path, text in pages(root).items():
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(root))
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], Path.cwd()))
    except WeightmillError as why:
        print(f"error: {why}", file=sys.stderr)
        sys.exit(why.exit_code)
    except KeyboardInterrupt:  # which the command was told too
        sys.exit(INTERRUPTED)
