"""How long it takes to list many runs: `python -m plugins.bench.registry [FOLDER] [--runs N] [--points N]`.

The command as people type it, start-up and all: without an index, with one, with conditions on metrics and on settings,
and one run of a million points shown twice. A folder that is not there is filled by `tests.cases.many_runs`, which is
in a checkout of the project only; without a folder a temporary one is. Seconds and the process's largest memory.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline.records.index import NAME

LONG = 3  # runs with a million points
LISTED = ("--limit", "20")
COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--help", ("--help",)),
    ("list, no index", LISTED),
    ("list", LISTED),
    ("by metric", ("kl<0.01", "--sort", "perplexity", *LISTED)),
    ("by setting, first", ("train.optimizer.rate=0.002", *LISTED)),
    ("by setting", ("train.optimizer.rate=0.002", *LISTED)),
    ("as JSON", ("--format", "json")),
    ("a million points, first", ("show", "gpt_oss-mxfp4-seed=0")),
    ("a million points", ("show", "gpt_oss-mxfp4-seed=0")),
)


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
        print(f"{'':24} {'seconds':>8} {'CPU s':>8}")
        for name, words in COMMANDS:
            print(f"{name:24} {timed(folder, words)}", flush=True)
        print(f"largest memory {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")


def timed(folder: Path, words: tuple[str, ...]) -> str:
    """Wall seconds and CPU seconds of the command."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "pipeline", "runs", *words, f"paths.outputs={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begun
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{seconds:8.2f} {used:8.2f}"


if __name__ == "__main__":
    main()
