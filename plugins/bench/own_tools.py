"""Whether cells of `flow=bench` say what the programs' own tools say: `python -m plugins.bench.own_tools`.

SmolLM2-135M by llama.cpp, a cell and `llama-bench`, and by transformers, a cell and its `generate`; the same weights,
a prompt from nothing, and new tokens one by one from nothing. All have processes of their own and take turns. What is
not installed or built (`make peers`, `make models`) is left out, and that is said. It is no test: nothing here fails.

`llama-bench` counts calls of the library, with tokens that are drawn and not predicted; a cell finds the likeliest
token of every step besides, as everybody does who wants a text. `generate` asks in every step whether a text has ended.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.bench.cell import Speed
from pipeline.bench.others import Others
from pipeline.bench.process import done
from pipeline.contender import Contender as Measured
from pipeline.planning.rates import cores
from plugins.bench import checkpoints, machine, written
from plugins.bench.contenders import Contender, Task, turn
from plugins.bench.peers import PEERS, ROOT
from plugins.contenders.llama_cpp import LlamaCpp
from plugins.contenders.transformers import Transformers

MODEL, VOCAB = "SmolLM2-135M", 49152
NEAR = 0.1  # of what the program's own tool says: as far as a cell may be off


@dataclass(frozen=True)
class Pair:
    """A contender of `flow=bench`, and the same program by its own tool; both read `own.form`."""

    cell: Measured
    own: Contender

    def lacking(self) -> str:
        """What is not there, and what to type; empty: nothing."""
        needs = dict(self.cell.needs)
        if (peer := PEERS.get(self.own.who)) is not None and not peer.bench.is_file():
            needs[peer.name] = "make peers"
        return "; ".join(dict.fromkeys(how for module, how in needs.items() if not _there(module)))


PAIRS = {
    "llama.cpp": Pair(LlamaCpp(), Contender("llama.cpp", "Q8_0")),
    "transformers": Pair(Transformers(dtype="bf16"), Contender("transformers", "bf16", ("bfloat16",))),
}


def _there(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None


def rates(pair: Pair, source: Path, task: Task, log: Path) -> dict[str, dict[str, float]]:
    """Tokens a second of one turn of each: who → prompt or new tokens → rate.

    Raises:
        SystemExit: one failed, with what it said.
    """
    place = source if source.is_dir() else source.parent
    job = Speed(pair.cell, place, task.threads, (task.prompt,), (1,), task.new, (), task.repeats, VOCAB)
    cell = done(job, task.threads, log)
    if cell.failed:
        raise SystemExit(f"{type(pair.cell).__name__}: {cell.failed}")
    steps = [step for repeat in cell.found["decode"]["1"] for step in repeat]
    own = turn(pair.own, source, task)
    reading = {
        "cell": statistics.median(cell.found["prefill"][str(task.prompt)]),
        "own": statistics.median(own.prefill),
    }
    writing = {"cell": task.new * statistics.fmean(steps), "own": statistics.median(own.decode)}
    return {who: {"prompt": task.prompt / reading[who], "new": task.new / writing[who]} for who in ("cell", "own")}


def row(name: str, what: str, rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Medians of the rounds, and the cell's as a share of the other."""
    cell, own = (statistics.median(r[who][what] for r in rounds) for who in ("cell", "own"))
    each = [r["cell"][what] / r["own"][what] for r in rounds]
    return {
        "name": f"{name}, {what}", "cell": cell, "own": own, "ratio": cell / own, "rounds": each,
        "near": abs(cell / own - 1) <= NEAR,
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=ROOT / ".models", help="where `make models` put weights")
    parser.add_argument("--only", choices=list(PAIRS), nargs="+", default=list(PAIRS))
    parser.add_argument("--prompt", type=int, default=512, help="tokens (default %(default)s)")
    parser.add_argument("--new", type=int, default=64, help="tokens (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="texts in a process (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each, in turn (default %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "outputs/bench")
    args = parser.parse_args(argv)
    if not (args.models / checkpoints.SMOLLM2).is_file():
        print(f"{MODEL} is left out: its weights are not in {args.models}; make models")
        return
    pairs = {name: PAIRS[name] for name in args.only}
    for name, pair in pairs.items():
        if lacking := pair.lacking():
            print(f"{name} is left out: {lacking}")
    pairs = {name: pair for name, pair in pairs.items() if not pair.lacking()}
    task = Task(args.prompt, args.new, cores(), args.repeats)
    found: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in pairs}
    with tempfile.TemporaryDirectory(prefix="weightmill-own-tools-") as folder:
        sources = checkpoints.made(MODEL, args.out / "checkpoints", args.models) if pairs else {}
        with Others() as others:
            for _ in range(args.rounds):
                for name, pair in pairs.items():
                    found[name].append(rates(pair, sources[pair.own.form], task, Path(folder) / "cell.txt"))
    rows = [row(name, what, rounds) for name, rounds in found.items() for what in ("prompt", "new")]
    if rows:
        written.write(args.out, "own_tools", machine.describe(), rows=rows, others=others.cores)
        print(f"\n{MODEL}, tokens a second; others used {others.cores:.2f} cores")
        print(f"{'':24}{'cell':>10}{'own tool':>10}{'ratio':>8}  of each round")
    for each in rows:
        apart = " ".join(f"{share:.2f}" for share in each["rounds"])
        sign = "" if each["near"] else f"  ✗ more than {NEAR:.0%} apart"
        print(f"{each['name']:24}{each['cell']:10.1f}{each['own']:10.1f}{each['ratio']:8.2f}  {apart}{sign}")


if __name__ == "__main__":
    main()
