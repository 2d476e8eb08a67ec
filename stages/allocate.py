"""Allocate: bits where they matter. Which tensors take which quantization, at so many bits a weight or so much loss?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from pipeline import allocation
from pipeline.allocation import Picks
from pipeline.engine import Engine, Windows, gang_of
from pipeline.errors import ConfigError, PlanError, Problem, StageError
from pipeline.figures import Cell, Figure
from pipeline.reporting.plots import Point, tradeoff
from pipeline.rules import Rule, merged
from pipeline.running import member
from pipeline.stage import Checkpoint, Context, Gang, Prediction, Table
from stages import alone
from stages.trials import KEEP, WINDOWS, Options, Tried

RULES, PICTURE = "rules.yaml", "allocation.png"
TRIES, NEARER = 4, 0.95  # how often more is aimed for than was asked, and how much nearer each time
CHOSEN, ALIKE, CURVE = "chosen", "all alike", "best, as predicted"


@dataclass(frozen=True)
class Allocation:
    """What was chosen.

    Attributes:
        picks: group → option.
        bits: a weight, of the tensors that were chosen for, as stored.
        nbytes: of these.
        predicted: KL divergence from the model as it was, nats a token, from what groups lose alone.
        kl, perplexity, top1: measured.
        curve: bits and predicted KL of the best choices.
        rules: a file in the run's folder.
        figures: for comparisons.
        tables: for people.
    """

    picks: Mapping[str, str]
    bits: float
    nbytes: int
    predicted: float
    kl: float
    perplexity: float
    top1: float
    curve: tuple[Mapping[str, float], ...]
    rules: str
    figures: Mapping[str, Figure]
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class Allocate:
    """Choose for every group of tensors one of the options that `trials` has tried, and measure them together.

    Attributes:
        engine: runs the model, in fp32.
        text, windows, options: as of the trials.
        bits: a weight, at most, on the average over all tensors that are chosen for; or
        kl: nats a token, at most, as predicted.
    """

    engine: Engine
    text: str
    windows: Windows
    options: Options
    bits: float | None = None
    kl: float | None = None

    writes: ClassVar[tuple[str, ...]] = (*alone.files("allocation"), RULES, PICTURE)

    def __post_init__(self) -> None:
        if (self.bits is None) == (self.kl is None):
            both = "neither is given" if self.bits is None else f"both are given, {self.bits:g} and {self.kl:g}"
            raise ConfigError(f"allocate.bits, allocate.kl: {both}; one of them is the budget: allocate.bits=4.25")
        for name, value in (("bits", self.bits), ("kl", self.kl)):
            if value is not None and not value > 0:
                raise ConfigError(f"allocate.{name}={value:g}: more than 0")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint, tried: Tried) -> Prediction:
        """
        Raises:
            PlanError: nothing is as small as is asked.
        """
        least, values = self.options.least(checkpoint)
        if self.bits is not None and self.bits * values / 8 < least:
            bits = 8 * least / values
            text = f"{self.bits:g}: the smallest that the tensors can be is {bits:.3f} bits a weight; "
            raise PlanError([Problem("allocate.bits", f"{text}allocate.quants has what may be chosen")])
        takes, _ = alone.footprint(self.engine, checkpoint, self.text, self.windows, 2, WINDOWS)
        return Prediction(None, takes)

    def run(self, ctx: Context, checkpoint: Checkpoint, tried: Tried) -> Allocation:
        """
        Raises:
            StageError: nothing is as small, or loses as little, as is asked.
        """
        costs, values = tried.known, sum(tried.values.values())
        windows = Windows(**tried.windows)
        with alone.compared(ctx, self.engine, checkpoint, self.text, windows, "allocation") as model:

            def cost(picks: Picks) -> Mapping[str, Any]:
                takes = {n: name for group, name in picks.items() if name != KEEP for n in tried.groups[group]}
                if not takes:
                    return {"kl": 0.0, "perplexity": tried.perplexity, "top1": 1.0}
                return model.cost([*takes], self.options.quantized(checkpoint, takes))

            picks, measured = self._settled(tried, cost)
        whole = allocation.total(costs, picks)
        bits, predicted = 8 * whole.nbytes / values, tried.add.predicted(whole.kl)
        best = [allocation.total(costs, p) for p in allocation.curve(costs)]
        points = tuple({"bits": 8 * c.nbytes / values, "kl": tried.add.predicted(c.kl)} for c in best)
        rules = merged({n: picks[group] for group, of in tried.groups.items() for n in of}, checkpoint.store.specs)
        if member.first():
            (ctx.run_dir / RULES).write_text(_file(rules, bits, measured["kl"]))
            _draw(ctx.run_dir / PICTURE, self.text, tried, values, points, (bits, measured["kl"]))
        figures = {
            "bits": Figure(bits, better="lower"), "KL": Figure(measured["kl"], "nats", ".4f", "lower"),
            "KL predicted": Figure(predicted, "nats", ".4f", "lower"),
            "perplexity": Figure(measured["perplexity"], better="lower"),
        }  # fmt: skip
        tables = _tables(tried, values, rules, figures, str(ctx.run_dir / RULES))
        kl, perplexity, top1 = (measured[name] for name in ("kl", "perplexity", "top1"))
        return Allocation(
            picks, bits, whole.nbytes, predicted, kl, perplexity, top1, points, RULES, figures, tables
        )  # fmt: skip

    def _settled(self, tried: Tried, cost: Callable[[Picks], Mapping[str, Any]]) -> tuple[Picks, Mapping[str, Any]]:
        """What fits the budget, and what it costs as measured: of `bits` never worse than all alike; of `kl` more bits,
        where losses add up to more than was predicted."""
        costs, values = tried.known, sum(tried.values.values())
        try:
            if self.bits is not None:
                nbytes = self.bits * values / 8
                picks = allocation.cheapest(costs, nbytes)
                found = [(picks, cost(picks))]
                found += [(p, t) for p, t in tried.alike if allocation.total(costs, p).nbytes <= nbytes]
                return min(found, key=lambda one: one[1]["kl"])
            wanted = aim = self.kl or 0.0
            for _ in range(TRIES):
                picks = allocation.smallest(costs, aim, tried.add)
                measured = cost(picks)
                if measured["kl"] <= wanted:
                    break
                aim *= NEARER * wanted / measured["kl"]
            return picks, measured
        except StageError as why:
            text = f"allocate.{'kl' if self.bits is None else 'bits'}: {why}; allocate.quants has what may be chosen"
            raise StageError(text) from None


def _file(rules: list[Rule], bits: float, kl: float) -> str:
    """The file of rules, which may be edited."""
    head = (
        f"# {bits:.3f} bits a weight, KL {kl:.4g} nats a token. The first rule that matches a tensor decides.\n"
        "# To be used, edited or not: quant=keep rules_file=THIS\n"
    )
    nodes = [{"match": rule.match, "to": rule.to} for rule in rules]
    return head + yaml.safe_dump(nodes, default_flow_style=None, width=160, sort_keys=False)


def _draw(
    path: Path,
    text: str,
    tried: Tried,
    values: int,
    curve: tuple[Mapping[str, float], ...],
    chosen: tuple[float, float],
) -> None:
    points = [Point("", p["bits"], [p["kl"]], CURVE) for p in curve if p["kl"] > 0]
    for picks, of in tried.alike:
        nbytes = allocation.total(tried.known, picks).nbytes
        points.append(Point(next(iter(picks.values())), 8 * nbytes / values, [of["kl"]], ALIKE))
    points.append(Point(CHOSEN, chosen[0], [chosen[1]], CHOSEN))
    about = f"{Path(text).name} · {tried.scored:,} tokens scored · {len(tried.groups)} groups of tensors"
    tradeoff(path, about, "bits a weight", "KL, nats a token", points)


def _tables(
    tried: Tried, values: int, rules: list[Rule], figures: Mapping[str, Figure], place: str
) -> tuple[Table, ...]:  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for picks, of in tried.alike:
        bits = Figure(8 * allocation.total(tried.known, picks).nbytes / values)
        name = f"all {next(iter(picks.values()))}"
        rows.append((name, bits, Figure(of["kl"], form=".5f"), "–", Figure(of["perplexity"])))
    mine = (
        CHOSEN, figures["bits"], Figure(figures["KL"].value, form=".5f"),
        Figure(figures["KL predicted"].value, form=".5f"), figures["perplexity"],
    )  # fmt: skip
    columns = ("", "bits", "KL", "KL predicted", "perplexity")
    head = f"Chosen, beside all alike (as it was: perplexity {tried.perplexity:.3f})"
    return (
        Table(head, columns, (*rows, mine)),
        Table("Rules", ("tensors", "to"), tuple((str(rule.match), rule.to) for rule in rules)),
        Table("", (), (("to use them, edited or not:",), (f"quant=keep rules_file={place}",))),
    )
