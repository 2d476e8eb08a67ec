"""What the rounds of a benchmark come to: medians, how far they lie apart, and whether a quick cell is a right one."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite
from typing import Any

from pipeline.bench.limits import said as limits_said
from pipeline.bench.per_token import PerToken
from pipeline.figures import Better

BUSY = 0.1  # cores that others took: a figure beside so much is marked
PERCENTILES = (50, 90, 99)
AT_ONCE_S = 1e-4  # tokens that came together lie 2 to 9 µs apart, for as long as Python takes to count them
MOST_NLL = 700.0  # nats: e to more of them is no float
DECODE = "decode × 1"
PREFILL = "prefill "  # and how long the prompt is
OWN = 2.0  # times what our quantization costs: as much may that of another program, of as many bits
SENSIBLE = 2.0  # times the reference's perplexity: what is worse makes no sensible text


@dataclass(frozen=True)
class Metric:
    """Attributes:
    value: median of the rounds.
    spread: standard deviation of the rounds, as a share of the median; 0 of one round.
    rounds: what each found; of the repeats in its process the median.
    """

    value: float
    unit: str
    better: Better
    spread: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[float], unit: str, better: Better) -> "Metric":
        value = statistics.median(rounds)
        apart = statistics.stdev(rounds) / value if len(rounds) > 1 and value else 0.0
        return cls(value, unit, better, apart, tuple(rounds))


def unmeasured(engine: str, quant: str, state: str, why: str) -> dict[str, Any]:
    """A row of bench.json for what has no figures."""
    return {
        "engine": engine, "quant": quant, "state": state, "why": why, "metrics": {}, "wrong": "", "others": 0.0,
        "busy": False,
    }  # fmt: skip


def metrics(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Metric]:
    """Of a cell, by name.

    Args:
        rounds: what `pipeline.bench.cell.Speed` found in each.
    """
    found = {"load": Metric.of([r["load"] for r in rounds], "s", "lower")}
    for length in rounds[0]["prefill"]:
        rates = [int(length) / statistics.median(r["prefill"][length]) for r in rounds]
        found[f"{PREFILL}{length}"] = Metric.of(rates, "tokens/s", "higher")
    for batch in rounds[0]["decode"]:
        rates = [int(batch) / statistics.median(map(statistics.fmean, r["decode"][batch])) for r in rounds]
        found[f"decode × {batch}"] = Metric.of(rates, "tokens/s", "higher")
    for length in rounds[0]["contexts"]:
        rates = [1 / statistics.median(map(statistics.fmean, r["contexts"][length])) for r in rounds]
        found[f"decode after {length}"] = Metric.of(rates, "tokens/s", "higher")
    joules = [r["joules"] for r in rounds if r["joules"] is not None]
    if joules:
        found["energy"] = Metric.of(joules, "J a token", "lower")
    found["peak memory"] = Metric.of([r["peak"] for r in rounds], "B", "lower")
    return found


def said(found: Mapping[str, Any]) -> str:
    """What a round found, in a line."""
    if "read" in found:
        return limits_said(found)
    rates = {name: metric for name, metric in metrics([found]).items() if metric.unit != "B"}
    return ", ".join(f"{name} {metric.value:.1f} {metric.unit}" for name, metric in rates.items())


def latencies(rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Milliseconds that a token takes, by batch and percentile; `even` has them."""
    found = {}
    for batch in rounds[0]["decode"]:
        times = sorted(t for r in rounds for repeat in r["decode"][batch] for t in even(repeat))
        found[batch] = {f"p{p}": 1e3 * times[min(len(times) - 1, len(times) * p // 100)] for p in PERCENTILES}
    return found


def even(gaps: Sequence[float]) -> list[float]:
    """What each token took: of those that came together, as an engine makes them that runs several steps in one
    program, each an equal share of the wait for all of them. Their sum stays what it was.

    Args:
        gaps: seconds between one token and the next. One is nothing but counting when it is less than `AT_ONCE_S` and
            than a tenth of what a token takes on average: of a small model a step may be as quick as the first.
    """
    most = min(AT_ONCE_S, sum(gaps) / len(gaps) / 10)
    together: list[list[float]] = []
    for gap in gaps:
        if gap < most and together:
            together[-1].append(gap)
        else:
            together.append([gap])
    return [sum(some) / len(some) for some in together for _ in some]


def shares(found: Mapping[str, Metric], takes: PerToken, limits: Mapping[str, float]) -> dict[str, float]:
    """Of what the machine can do, by metric: of reading where one token follows another, of multiplying and adding in
    float32 where a prompt is read; of that units for matrices do more.

    Args:
        found: of a cell, by name.
        takes: what a token takes of the weights that the cell reads.
        limits: bytes and operations a second that the machine reaches.
    """
    by_metric = {}
    for name, metric in found.items():
        if name.startswith(PREFILL):
            by_metric[name] = (
                metric.value * takes.flops_of_prompt(int(name.removeprefix(PREFILL))) / limits["multiply_add"]
            )
        elif name == DECODE:
            by_metric[name] = metric.value * takes.nbytes / limits["read"]
    return by_metric


def quality(found: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell predicts, beside the reference; None for what is not finite.

    Args:
        found, reference: what `pipeline.bench.cell.Quality` found.
    """
    text, wanted = found["text"], reference["text"]
    same = next((i for i, (a, b) in enumerate(zip(text, wanted, strict=False)) if a != b), min(len(text), len(wanted)))
    return {
        "perplexity": exp(found["nll"]) if found["nll"] < MOST_NLL else None, "reference": exp(reference["nll"]),
        "kl": found["kl"] if isfinite(found["kl"]) else None,
        "top1": found["top1"], "scored": found["scored"], "greedy": same, "of": len(wanted),
    }  # fmt: skip


def wrong(cell: Mapping[str, Any], cost: float, most: float) -> str:
    """Why a cell counts for nothing however quick it is; empty: it is right.

    Args:
        cell: its quality.
        cost: nats of KL divergence that its weights cost as they are quantized, whoever multiplies with them.
        most: nats beyond that are too many.
    """
    if cell["kl"] is None or cell["perplexity"] is None:
        return "its distributions are not finite"
    if cell["perplexity"] > SENSIBLE * cell["reference"]:
        return f"perplexity {cell['perplexity']:.4g}, and {cell['reference']:.4g} of the reference"
    if cell["kl"] > cost + most:
        beside = f", of which quantization costs {cost:.3g}" if cost else ""
        return f"KL divergence {cell['kl']:.3g} nats{beside}; at most {cost + most:.3g} is right"
    return ""
