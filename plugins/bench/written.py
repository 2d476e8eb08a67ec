"""What a benchmark found, as a file that is held to the schema of benchmarks."""

from pathlib import Path
from typing import Any

from pipeline.records import schemas
from pipeline.reporting.manifest import plain


def write(out: Path, benchmark: str, machine: Any, **said: Any) -> None:
    """Write `bench_NAME.json` in the folder `out`: `rows`, and what else there is to say.

    Raises:
        StorageError: it cannot be written, or is not as the schema says.
    """
    out.mkdir(parents=True, exist_ok=True)
    found = plain({"benchmark": benchmark, "machine": machine, **said})
    schemas.write("benchmark", out / f"bench_{benchmark}.json", found)
