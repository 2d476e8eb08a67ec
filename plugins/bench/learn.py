"""What two minutes of training come to: `python -m plugins.bench.learn`, from the root of a checkout.

The embedded checkpoint's config, trained anew by the command line with the settings of experiment=tiny_gpt_oss, but for
how long. Beside it stands the embedded checkpoint itself, which transformers and torch trained on the same texts for 28
minutes: the perplexity of both, on texts that neither was trained on. The limit is what the matrices and attention's
visible pairs take, forward once and backward twice, at the rate that this machine multiplies and adds at most. Where
others compute too, "others" says on how many cores. It is not a test: nothing here checks a result.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.bench.others import Others
from pipeline.testing.peak import watch
from plugins.bench import machine
from plugins.models.gpt_oss.family import GptOss

CONFIG = Path(__file__).parents[1] / "models/gpt_oss/tiny/config.json"
LENGTH = 256  # tokens of a row, as the experiment has it
EVALUATED = ["evaluate.windows.tokens=8192", "progress=false"]
EMBEDDED = ["+model=gpt_oss", "stages=[load,decode,evaluate]"]
TRAINED = ["+experiment=tiny_gpt_oss", "stages=[init,train,decode,evaluate]", f"data.length={LENGTH}"]


def operations(rows: int, length: int) -> float:
    """float32 operations of a step: forward 2 for each weight that a token meets, and 4 for each dim of a head and pair
    of tokens that see each other; and twice that backward."""
    c: dict[str, Any] = json.loads(CONFIG.read_text())
    share = c["num_experts_per_tok"] / c["num_local_experts"]
    weights: float = sum(
        math.prod(p.shape) * (share if p.axes[0] == "experts" else 1)
        for p in GptOss().parameters(c)
        if len(p.shape) > 1 and not p.name.endswith(("bias", "embed_tokens.weight"))
    )
    at = np.arange(1, length + 1)
    seen = {"full_attention": at.sum(), "sliding_attention": np.minimum(at, c["sliding_window"]).sum()}
    pairs = float(sum(seen[kind] for kind in c["layer_types"]))
    heads = float(c["num_attention_heads"] * c["head_dim"])
    return 3 * rows * (2 * weights * length + 4 * heads * pairs)


@dataclass(frozen=True)
class Learnt:
    """What a run found.

    Attributes:
        rows: of metrics.jsonl.
        seconds: of the whole command.
        peak: largest resident bytes.
        others: cores that other processes took meanwhile.
    """

    rows: list[dict[str, Any]]
    seconds: float
    peak: int
    others: float

    @property
    def perplexity(self) -> float:
        """Over the tokens of all texts."""
        found = [r["value"] for r in self.rows if r["kind"] == "figure" and r["name"] == "perplexity"]
        return float(found[0])

    @property
    def updates(self) -> list[dict[str, Any]]:
        return [r for r in self.rows if r["kind"] == "train"]


def learnt(settings: list[str], folder: Path) -> Learnt:
    """Run the command line with `settings`, in `folder`.

    Raises:
        SystemExit: it failed, with what it said.
    """
    out = folder / "run"
    command = [sys.executable, "-m", "pipeline", *settings, *EVALUATED, f"paths.outputs={folder}", f"paths.run={out}"]
    with Others() as others:
        peak = watch(command)
    if peak.returncode:
        raise SystemExit(f"{' '.join(command)}\n{peak.output}")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Learnt(rows, peak.seconds, peak.tree_nbytes, others.cores)


def show(trained: Learnt, embedded: Learnt, flops: float) -> None:
    """
    Args:
        flops: float32 operations a second, at most.
    """
    updates = trained.updates
    tokens, an_update = updates[0]["tokens"], statistics.median(r["seconds"] for r in updates)
    limit = operations(tokens // LENGTH, LENGTH) / flops
    print(f"\n{'':34}{'perplexity':>12}{'tokens':>12}{'seconds':>10}{'peak, MiB':>11}{'others':>8}")
    print(f"{'embedded, by transformers and torch':34}{embedded.perplexity:11.3f}{'':12}{'1,680':>10}")
    figures = f"{len(updates) * tokens:12,}{trained.seconds:10.1f}{trained.peak >> 20:11}{trained.others:8.1f}"
    print(f"{'trained anew':34}{trained.perplexity:12.3f}{figures}")
    print(f"an update of {tokens:,} tokens: {an_update:.3f} s, {tokens / an_update:,.0f} tokens/s, median")
    print(f"limit {limit:.3f} s, {limit / an_update:.0%} of it reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=240, help="updates")
    parser.add_argument("--batch", type=int, default=16, help=f"rows of {LENGTH} tokens in each")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    print(machine.headline(machine.describe()))
    trained = [*TRAINED, f"train.steps={args.steps}", f"train.batch={args.batch}"]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        ours, embedded = (learnt(given, Path(folder, name)) for name, given in (("a", trained), ("b", EMBEDDED)))
    show(ours, embedded, machine.multiply_add_rate(args.threads))


if __name__ == "__main__":
    main()
