"""What training for packed weights comes to: `python -m plugins.bench.recipes`, from the root of a checkout.

Adapters beside weights as they are and beside packed ones: perplexity on what is held out, before and after as many
tokens, the same ones in the same order. Weights that are rounded, and weights that were trained to be with the settings
of `train=qat`: perplexity of the export, on texts that nothing was trained on, and what share of the loss that rounding
adds (nats a token) training wins back. Largest resident memory is that of the whole command. Of the embedded model, or
of `--source`. It is not a test: nothing here checks a result.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.testing.peak import watch
from plugins.bench import machine

TEXTS = Path(__file__).parents[1] / "texts"
MOBY, SOTU = (TEXTS / f"{name}_train.txt.gz" for name in ("moby", "sotu"))
DATA = (
    f"data.held_out_files=[{TEXTS / 'moby_eval.txt'}]", "train.look.examples=32", "allow_requantize=true",
    "progress=false", "train.batch=4",
)  # fmt: skip
NF4 = "quant=nf4", "quant.block_elems=32"  # which divides the rows of the embedded model
ADAPTERS = {
    "LoRA": ("train=lora",),
    "QLoRA, NF4": ("train=qlora", *NF4),
    "QLoRA, NF4, init=zero": ("train=qlora", *NF4, "train.transform.init=zero"),
    "QLoRA, MXFP4": ("train=qlora", "quant=mxfp4"),
}
ROUNDED, TRAINED = (
    "stages=[load,decode,quantize,export,evaluate]",
    "stages=[load,decode,train,quantize,export,evaluate]",
)
QAT = (TRAINED, "train=qat", f"data.files=[{MOBY},{SOTU}]")
WHOLE = ("stages=[load,decode,evaluate]",)
SCHEMES = ("int4", "mxfp4")


@dataclass(frozen=True)
class Ran:
    """What a command found.

    Attributes:
        rows: of its metrics.jsonl.
        peak: largest resident bytes, of all its processes together.
    """

    rows: Sequence[dict[str, Any]]
    seconds: float
    peak: int

    @property
    def held_out(self) -> list[float]:
        """Perplexities on what is held out, in the order in which they were found."""
        return [math.exp(row["loss"]) for row in self.rows if row["kind"] == "held_out"]

    @property
    def perplexity(self) -> float:
        """Over the tokens of all texts; of the export, where there is one."""
        return next(float(r["value"]) for r in self.rows if r["kind"] == "figure" and r["name"] == "perplexity")

    @property
    def tokens(self) -> int:
        """That updates went through."""
        return sum(row["tokens"] for row in self.rows if row["kind"] == "train")


def ran(settings: Sequence[str], folder: Path) -> Ran:
    """Run the command line, for the embedded model unless `settings` name another.

    Args:
        folder: where results are kept, which commands share.

    Raises:
        SystemExit: it failed, with what it said.
    """
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    source = [] if any(one.startswith("model.source=") for one in settings) else ["+model=gpt_oss"]
    command = [sys.executable, "-m", "pipeline", *source, *settings, f"paths.outputs={folder}", f"paths.run={out}"]
    peak = watch(command)
    if peak.returncode:
        raise SystemExit(f"{' '.join(command)}\n{peak.output}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Ran(rows, peak.seconds, peak.tree_nbytes)


def evaluated(name: str, found: Ran, lost: tuple[float, float] | None = None) -> float:
    """Show a row; returns the loss, in nats a token.

    Args:
        lost: the loss of weights as they are, and what rounding adds to it.
    """
    loss, won = math.log(found.perplexity), ""
    if lost is not None and lost[1] > 0:
        won = f"{1 - (loss - lost[0]) / lost[1]:.0%}"
    figures = f"{found.perplexity:10.3f}{won:>10}{found.tokens:10,}{found.seconds:10.1f}{found.peak >> 20:11}"
    print(f"{name:28}{figures}")
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", help="a checkpoint; without, the embedded one")
    parser.add_argument("--steps", type=int, default=20, help="updates of 4 rows of 256 tokens, of adapters")
    parser.add_argument("--rounds", type=int, default=200, help="the same of whole models")
    parser.add_argument("more", nargs="*", help="settings of adapters, such as train.transform.rank=32")
    args = parser.parse_args()
    print(machine.headline(machine.describe()))
    common = [*DATA, *([f"model.source={args.source}"] if args.source else [])]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        print(f"\n{'held out':28}{'before':>10}{'after':>10}{'tokens':>10}{'seconds':>10}{'peak, MiB':>11}")
        for name, how in ADAPTERS.items():
            options = ("stages=[load,decode,train]", "train.optimizer.rate=1e-3", f"train.steps={args.steps}")
            found = ran([*common, f"data.files=[{MOBY}]", *options, *how, *args.more], Path(folder))
            before, after = found.held_out[0], found.held_out[-1]
            print(f"{name:28}{before:10.3f}{after:10.3f}{found.tokens:10,}{found.seconds:10.1f}{found.peak >> 20:11}")
        print(f"\n{'evaluated':28}{'perplexity':>10}{'won back':>10}{'tokens':>10}{'seconds':>10}{'peak, MiB':>11}")
        trained = [*common, *QAT, f"train.steps={args.rounds}"]
        whole = evaluated("as it is", ran([*common, *WHOLE], Path(folder)))
        for scheme in SCHEMES:
            quant = f"quant={scheme}"
            lost = evaluated(scheme, ran([*common, ROUNDED, quant], Path(folder))) - whole
            evaluated(f"{scheme}, QAT", ran([*trained, quant], Path(folder)), (whole, lost))


if __name__ == "__main__":
    main()
