"""Benchmark of the main job: `python -m plugins.bench.convert`, from the root of a checkout.

One gpt-oss layer of real size (1.7 GB of bf16) is converted to MXFP4 by the command line in several settings, by a
plain ml_dtypes loop and by torchao's `to_mx`, and copied by `cp`: the same file, on one file system, made durable, in
one run, taking turns. The last two use the safetensors package to read and to write. Beside them stand the machine's
limits, and on how many cores others were at work. "of cp" is the median over the rounds of a time and of cp's in the
same round: once without what happens before work starts (imports), once of the whole command. The first round only
warms up.
"""

import argparse
import csv
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.bench.others import Others
from pipeline.testing.peak import watch
from plugins.bench import machine, written

CORES = len(os.sched_getaffinity(0))
CONTENDERS = ("ml_dtypes loop", "torchao to_mx")  # tests/cases/contenders.py
CONVERT = ["+model=gpt_oss", "quant=mxfp4", "flow=convert", "progress=false"]
SETTINGS = {
    "weightmill, 1 thread, not measured": ["dask.workers=1", "stages.quantize.measure=false", "digest_inputs=false"],
    "weightmill, not measured": ["stages.quantize.measure=false", "digest_inputs=false"],
    "weightmill, measured": ["digest_inputs=false"],
    "weightmill, measured, inputs digested": [],
    "weightmill, NumPy, not measured": ["kernels=numpy", "stages.quantize.measure=false", "digest_inputs=false"],
    "weightmill, distributed, not measured": [
        "dask=distributed", "dask.dashboard=false", "stages.quantize.measure=false", "digest_inputs=false",
    ],
}  # fmt: skip


def weightmill(settings: list[str], source: Path, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "pipeline", *CONVERT, f"model.source={source}", f"paths.run={out}", *settings]
    peak = watch(command, env=environment(out.parent))
    if peak.returncode:
        raise SystemExit(f"{' '.join(command)}\n{peak.output}")
    manifest = json.loads((out / "manifest.json").read_text())
    codec_s = sum(s["seconds"] for s in manifest["stages"] if s["name"] == "quantize")
    return {"seconds": manifest["seconds"], "codec_s": codec_s, "wall_s": peak.seconds, "peak": peak.tree_nbytes}


def environment(folder: Path) -> dict[str, str]:
    """What commands run in: as always, and Python keeps what it compiles, as it does for whoever asks for nothing else;
    compiling its modules would take a command of a second 0.15 s each time."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def another(name: str, source: Path, out: Path) -> dict[str, Any]:
    """A contender in a process of its own, which reports its times as its last line."""
    command = [sys.executable, "-m", "tests.cases.contenders", name, str(source), str(out)]
    peak = watch(command, env=environment(out.parent))
    if peak.returncode:
        raise SystemExit(peak.output)
    told: dict[str, Any] = json.loads(peak.output.splitlines()[-1])
    return {**told, "wall_s": peak.seconds, "peak": peak.tree_nbytes}


def copy(source: Path, out: Path) -> dict[str, Any]:
    out.mkdir()
    start = time.perf_counter()
    peak = watch(["cp", str(source / "model.safetensors"), str(out)])
    _sync(out / "model.safetensors")
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "codec_s": 0.0, "wall_s": seconds, "peak": peak.tree_nbytes}


def limits(folder: Path) -> dict[str, float]:
    """Bytes a second of the machine."""
    import numpy as np

    a = np.ones(1 << 28, np.uint8)
    b = np.ones_like(a)
    found = {"memcpy": a.nbytes / _best(lambda: np.copyto(b, a))}
    path = folder / "limit"

    def write() -> None:
        path.unlink(missing_ok=True)
        with path.open("wb", buffering=0) as file:
            file.write(a.data)
            os.fsync(file.fileno())

    def cold() -> None:
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.readinto(b.data)

    def cached() -> None:
        with path.open("rb", buffering=0) as file:
            file.readinto(b.data)

    found |= {"disk write, synced": a.nbytes / _best(write), "disk read, not cached": a.nbytes / _best(cold)}
    found["disk read, cached"] = a.nbytes / _best(cached)
    path.unlink()
    return found


def _best(call: Callable[[], None], rounds: int = 3) -> float:
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def bench(folder: Path, rounds: int, only: list[str] | None) -> dict[str, Any]:
    """Rows (medians over `rounds`) and limits."""
    source = folder / "source"
    made = watch([sys.executable, "-m", "tests.cases.big_gpt_oss", str(source), "--layers", "1"])
    if made.returncode:
        raise SystemExit(made.output)
    nbytes = (source / "model.safetensors").stat().st_size
    calls: dict[str, Callable[[Path], dict[str, Any]]] = {"cp": lambda out: copy(source, out)}
    for name, settings in SETTINGS.items():
        calls[name] = lambda out, settings=settings: weightmill(settings, source, out)  # type: ignore[misc]
    for name in CONTENDERS:
        calls[name] = lambda out, name=name: another(name, source, out)  # type: ignore[misc]
    calls = {name: call for name, call in calls.items() if name == "cp" or not only or name in only}
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in calls}
    for i in range(rounds + 1):
        for name, call in calls.items():
            out = folder / "out"
            with Others() as others:
                row = call(out)
            shutil.rmtree(out)
            if i:
                seen[name].append({**row, "cpu_s": others.cpu_s, "others": others.cores})
    rows = []
    for name, found in seen.items():
        row = {key: statistics.median(r[key] for r in found) for key in found[0]}
        for key in ("seconds", "wall_s"):
            pairs = zip(found, seen["cp"], strict=True)
            row[f"{key} of cp"] = statistics.median(r[key] / cp["seconds"] for r, cp in pairs)
        rows.append({"name": name, "GB/s": nbytes / row["seconds"] / 1e9, **row, "rounds": found})
    about = {"machine": machine.describe(), "load": os.getloadavg()[0]}
    return {**about, "nbytes": nbytes, "cores": CORES, "rounds": rounds, "rows": rows, "limits": limits(folder)}


def show(result: dict[str, Any]) -> None:
    by_name = {row["name"]: row for row in result["rows"]}
    loop = by_name.get("ml_dtypes loop", {"seconds": math.nan, "codec_s": math.nan})
    print(machine.headline(result["machine"]))
    print(f"{result['nbytes'] / 1e9:.2f} GB of bf16 → MXFP4, {result['cores']} cores, median of {result['rounds']}")
    heads = ("GB/s", "seconds", "× cp", "whole × cp", "CPU s", "x loop", "codec x loop", "peak MiB", "others")
    print(f"{'':40}" + "".join(f"{head:>13}" for head in heads))
    for row in result["rows"]:
        figures = [f"{row['GB/s']:.2f}", f"{row['seconds']:.2f}", f"{row['seconds of cp']:.2f}"]
        figures += [f"{row['wall_s of cp']:.2f}", f"{row['cpu_s']:.2f}", f"{loop['seconds'] / row['seconds']:.1f}"]
        figures += [f"{loop['codec_s'] / row['codec_s']:.1f}" if row["codec_s"] else ""]
        figures += [f"{row['peak'] / 2**20:.0f}", f"{row['others']:.1f}"]
        print(f"{row['name']:40}" + "".join(f"{figure:>13}" for figure in figures))
    for name, rate in result["limits"].items():
        print(f"{name:40}{rate / 1e9:13.2f}")
    print("codec: seconds in the codec, summed over threads (torchao's run on all cores at once)")
    print("others: cores that other processes took meanwhile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS, *CONTENDERS], help="these, and cp")
    parser.add_argument("--folder", type=Path, help="where to work: 5 GB, removed afterwards (default: temporary)")
    parser.add_argument("--out", type=Path, default=Path("outputs"), help="where bench_convert.json and .csv go")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="bench-") as folder:
        result = bench(Path(folder), args.rounds, args.only)
    show(result)
    written.write(args.out, "convert", **result)
    with (args.out / "bench_convert.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [key for key in result["rows"][0] if key != "rounds"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(result["rows"])


if __name__ == "__main__":
    main()
