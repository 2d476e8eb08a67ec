"""How long it takes to list many runs: `python -m plugins.bench.registry [FOLDER] [--runs N] [--points N]`.

Commands as people type them, start-up and all: lists without an index, with one, with conditions on metrics and on
settings; all of them compared, and three of a million points, twice; such a one shown, and a page about it. Then a file
of ten million points, read by itself. A folder that is not there is filled by `tests.cases.many_runs`, which is in a
checkout of the project only; without a folder a temporary one is. Of each command seconds, seconds of CPU, and its
largest memory.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline import cpu
from pipeline.records.index import NAME
from pipeline.records.points import METRICS
from pipeline.units import show_bytes

REPORT = "report.html"
LISTED = ("runs", "--limit", "20")
LONG = ("gpt_oss-mxfp4-seed=0", "gpt_oss-int8-seed=1", "gpt_oss-int4-seed=2")  # runs with a million points
COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--help", ("--help",)),
    ("list, no index", LISTED),
    ("list", LISTED),
    ("by metric", (*LISTED, "kl<0.01", "--sort", "perplexity")),
    ("by setting, first", (*LISTED, "train.optimizer.rate=0.002")),
    ("by setting", (*LISTED, "train.optimizer.rate=0.002")),
    ("as JSON", ("runs", "--format", "json")),
    ("compare all, first", ("compare", "*")),
    ("compare all", ("compare", "*")),
    ("compare three, first", ("compare", *LONG)),
    ("compare three", ("compare", *LONG)),
    ("show", ("runs", "show", LONG[0])),
    ("report", ("report", LONG[0])),
)
MANY = 10_000_000  # points of one file
READ = "import sys, pathlib, pipeline.records.summaries as s; s.summarize(pathlib.Path(sys.argv[1]))"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--points", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = asked.folder or Path(spare) / "outputs"
        if not folder.exists():
            code = [sys.executable, "-m", "tests.cases.many_runs", str(folder), str(asked.runs), str(asked.points)]
            subprocess.run(code, check=True)  # noqa: S603
        (folder / NAME).unlink(missing_ok=True)
        (folder / LONG[0] / REPORT).unlink(missing_ok=True)
        print(f"{cpu.model()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        print(f"{'':24} {'seconds':>8} {'CPU s':>8} {'MiB':>6}")
        for name, words in COMMANDS:
            asked_of = [*words, *(() if words == ("--help",) else (f"paths.outputs={folder}",))]
            print(f"{name:24} {timed(['-m', 'pipeline', *asked_of])}", flush=True)
        print(f"the page has {show_bytes((folder / LONG[0] / REPORT).stat().st_size)}")
        with tempfile.TemporaryDirectory() as one:
            with (Path(one) / METRICS).open("w") as file:
                file.writelines(f'{{"kind": "train", "step": {i}, "loss": {math.sin(i)}}}\n' for i in range(MANY))
            print(f"{f'{MANY:,} points':24} {timed(['-c', READ, one])}", flush=True)


def timed(words: list[str]) -> str:
    """Wall seconds, CPU seconds and largest memory of Python with these words."""
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: exit code {process.returncode}")
    seconds = time.perf_counter() - begun
    return f"{seconds:8.2f} {used.ru_utime + used.ru_stime:8.2f} {used.ru_maxrss / 1024:6.0f}"


if __name__ == "__main__":
    main()
