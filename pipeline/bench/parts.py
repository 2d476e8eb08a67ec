"""What a benchmark of a step's parts is made of: a model that is taken apart, and what a process of it finds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from pipeline.bench import tables as common
from pipeline.bench.limits import said as limits_said
from pipeline.bench.rows import BUSY, Metric, unmeasured
from pipeline.figures import Cell, Figure
from pipeline.running import peak
from pipeline.stage import Checkpoint, Table

WHOLE, BETWEEN = "whole step", "between the ops"


class Apart(Protocol):
    """Who runs a model, whole and op by op."""

    def check(self, prompts: Sequence[int]) -> None:
        """
        Raises:
            ConfigError: prompts of such lengths are not read in one step.
        """

    def parts(
        self, checkpoint: Checkpoint, prompts: Sequence[int], contexts: Sequence[int], seconds: float
    ) -> Mapping[str, Mapping[str, Any]]:
        """Of each step, by name, seconds of the `whole`, and `parts`: a list of `op`, `label`, `calls`, `nbytes` of
        weights that are read, and seconds `s`.

        Args:
            prompts: lengths, in tokens.
            contexts: tokens before one that is generated.
            seconds: that each part is repeated for.
        """

    def versions(self) -> Mapping[str, str]: ...


@dataclass(frozen=True)
class Steps:
    """A process: a model's steps, whole and in parts."""

    apart: Apart
    checkpoint: Checkpoint
    prompts: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: float

    def __call__(self) -> Mapping[str, Any]:
        found = self.apart.parts(self.checkpoint, self.prompts, self.contexts, self.seconds)
        return {"steps": found, "peak": peak.nbytes(), "versions": dict(self.apart.versions())}


def said(found: Mapping[str, Any]) -> str:
    """What a round found, in a line."""
    if "steps" not in found:
        return limits_said(found)
    return ", ".join(f"{name} {_ms(step['whole'])} ms" for name, step in found["steps"].items())


def rows(rounds: Sequence[Mapping[str, Any]], read: float, others: float) -> list[dict[str, Any]]:
    """As bench.json has them: of every step the whole, its parts, and what is left between them.

    Args:
        rounds: what `Steps` found in each.
        read: bytes a second that the machine was seen to read from memory.
    """
    found = []
    for name, first in rounds[0]["steps"].items():
        steps = [r["steps"][name] for r in rounds]
        whole = [step["whole"] for step in steps]
        parts = [(part, [step["parts"][i]["s"] for step in steps]) for i, part in enumerate(first["parts"])]
        left = [max(0.0, w - sum(p["s"] for p in s["parts"])) for w, s in zip(whole, steps, strict=True)]
        every = [({"op": WHOLE, "label": "", "calls": 1, "nbytes": sum(p["nbytes"] for p, _ in parts)}, whole)]
        every += [*parts, ({"op": BETWEEN, "label": "", "calls": 0, "nbytes": 0}, left)]
        total = Metric.of(whole, "s", "lower").value
        for part, seconds in every:
            time = Metric.of([1e6 * s for s in seconds], "µs", "lower")
            what = f"{part['op']} {part['label']}".strip()
            found.append(unmeasured(name, what, "measured", "") | {
                "op": part["op"], "calls": part["calls"], "nbytes": part["nbytes"], "others": others,
                "busy": others > BUSY, "metrics": {"time": asdict(time)}, "share": time.value / 1e6 / total,
                "of_read": 1e6 * part["nbytes"] / time.value / read if time.value else 0.0,
                "versions": rounds[0]["versions"],
            })  # fmt: skip
    return found


def figures(found: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Of every step the whole, and what is left between its parts: milliseconds."""
    return {
        f"{row['engine']}, {row['op']}": Figure(row["metrics"]["time"]["value"] / 1e3, "ms", ".3f", "lower")
        for row in found
        if row["state"] == "measured" and row["op"] in (WHOLE, BETWEEN)
    }


def tables(found: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """One a step: the whole, then its parts, the longest first."""
    measured = [row for row in found if row["state"] == "measured"]
    columns = ("part", "calls", "ms", "of the step", "µs a call", "MB of weights", "of reading")
    shown = []
    for step in dict.fromkeys(row["engine"] for row in measured):
        these = [row for row in measured if row["engine"] == step]
        these.sort(key=lambda row: (row["op"] != WHOLE, -row["metrics"]["time"]["value"]))
        shown.append(Table(common.titled(step.capitalize(), these), columns, tuple(tuple(_cells(r)) for r in these)))
    return (*shown, *common.rest(found, ("step", "part"), worse, against))


def _cells(row: Mapping[str, Any]) -> Iterator[Cell]:
    time, calls = row["metrics"]["time"], row["calls"]
    yield row["quant"]
    yield f"{calls}" if calls else "–"
    yield f"{_ms(time['value'] / 1e6)}{common.apart(time)}{common.BUSY if row['busy'] else ''}"
    yield f"{row['share']:.1%}"
    yield f"{time['value'] / calls:,.1f}" if calls else "–"
    yield f"{row['nbytes'] / 1e6:.3g}" if row["nbytes"] else "–"
    yield f"{row['of_read']:.0%}" if row["nbytes"] else "–"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:,.0f}"
