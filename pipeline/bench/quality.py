"""What a benchmark of quality is made of: weights rounded in many ways, and what each loses at how many bits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp
from pathlib import Path
from typing import Any, Protocol

from pipeline.bench import tables as common
from pipeline.bench.rows import BUSY, Metric, unmeasured
from pipeline.coded_store import Unpacked
from pipeline.config import extend
from pipeline.engine import Against, Engine, Windows
from pipeline.errors import ConfigError, PlanError, short
from pipeline.figures import Cell, Figure
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Table
from pipeline.tensors.views import MappedStore

SAID = 300  # characters of why a cell is refused
SAME = 0.005  # bits a weight by which two are as large: scales of whole matrices
PICTURE = "quality.png"
STORED, WHOLE, KL, PERPLEXITY, TOP1 = "bits a weight", "of the whole model", "KL", "perplexity", "top-1"


@dataclass(frozen=True)
class Rounded:
    """What somebody else made of a model's matrices.

    Attributes:
        checkpoint: with them, packed or as the values that they decode to.
        nbytes: those that were rounded, and what they take.
        changed: what was changed with them and is as wide as it was, such as norms.
    """

    checkpoint: Checkpoint
    nbytes: Mapping[str, int]
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Given:
    """What somebody else is given beside the checkpoint.

    Attributes:
        source: folder of the model in fp32, in the form that it reads; None: it reads none.
        rows: the token ids that statistics are of, a window each.
    """

    source: Path | None
    rows: Sequence[Sequence[int]]


class Rounder(Protocol):
    """A program of somebody else, or a method as its paper has it, that rounds a model's matrices."""

    @property
    def needs(self) -> Mapping[str, str]:
        """Modules, and what to type where they are not installed."""

    @property
    def reads(self) -> str | None:
        """The export option in which it reads the model, in fp32, which is written for it; None: it reads none."""

    def why_not(self, checkpoint: Checkpoint) -> str:
        """Why it cannot do this, in words; empty: it can."""

    def rounded(self, checkpoint: Checkpoint, names: Sequence[str], given: Given, place: Path) -> Rounded:
        """
        Args:
            checkpoint: with statistics, where a stage has looked.
            names: matrices that are to be rounded.
            place: an empty folder of its own.
        """


@dataclass(frozen=True)
class Ours:
    """A process: our command, which quantizes and evaluates.

    Attributes:
        overrides: as typed.
        plain: tensor → bytes, as it is when it is not quantized.
        head: bytes of an embedding that is the head as well, and becomes two tensors where hidden states are rotated.
        values: of the model.
    """

    overrides: tuple[str, ...]
    plain: Mapping[str, int]
    head: int
    values: int

    def __call__(self) -> Mapping[str, Any]:
        import pipeline
        from pipeline.records import schemas
        from pipeline.records.run import MANIFEST

        try:
            report = pipeline.run([*self.overrides], config_dir=extend.folder(), progress=False)
        except (ConfigError, PlanError) as why:
            return {"refused": short(" / ".join(str(why).split("\n")), SAID)}
        record = schemas.read("manifest", Path(report.run) / MANIFEST)
        found, packed = record["results"]["evaluate"], record["encodings"]
        rounded = {tensor["name"] for tensor in record["tensors"]}
        stored = found["facts"]["device_nbytes"]
        rest = sum(n for name, n in self.plain.items() if name not in rounded)
        rest += self.head if any(stage["name"] == "rotate" for stage in record["stages"]) else 0
        figures = {name: figure["value"] for name, figure in found["figures"].items()}
        if not packed:
            return {"refused": "it quantizes nothing: every tensor stays as it is"}
        return {
            "bits": 8 * (stored - rest) / max(1, sum(packed.values())), "whole": 8 * stored / self.values,
            "kl": figures["KL"], "perplexity": figures["perplexity"], "top1": figures["top-1"] / 100,
            "predicted": _predicted(record["command"]),
        }  # fmt: skip


@dataclass(frozen=True)
class Theirs:
    """A process: what somebody else rounded, scored by our engine in fp32 beside the model as it is.

    Attributes:
        names: matrices that are to be rounded, as ours are.
        texts: name → the text.
        given: see `Rounder.rounded`.
        place: a folder of its own, which is there and empty.
        unpack: decodes what is packed.
    """

    rounder: Rounder
    engine: Engine
    checkpoint: Checkpoint
    names: tuple[str, ...]
    texts: Mapping[str, str]
    windows: Windows
    given: Given
    place: Path
    unpack: Kernel

    def __call__(self) -> Mapping[str, Any]:
        found = self.rounder.rounded(self.checkpoint, self.names, self.given, self.place)
        packed = frozenset(n for n, s in found.checkpoint.store.specs.items() if s.scheme is not None)
        other = replace(found.checkpoint, store=MappedStore(found.checkpoint.store, Unpacked(packed, self.unpack)))
        session = self.engine.load(self.checkpoint, plain=True)
        scores = []
        for number, text in enumerate(self.texts.values()):
            against = Against(self.place / f"{number}.npz", self.place / f"{number}.head.npz")
            ids = session.tokenizer.encode(text)
            session.score(ids, self.windows, keep=against.states, against=None)
            session.keep_head(against.head)
            with session.replaced([*found.nbytes, *found.changed], other):
                scores.append(session.score(ids, self.windows, keep=None, against=against))
        scored = sum(s.scored for s in scores)

        def mean(what: str) -> float:
            return float(sum(getattr(s, what) * s.scored for s in scores)) / scored

        specs, took = self.checkpoint.store.specs, sum(found.nbytes.values())
        rest = sum(s.nbytes for n, s in specs.items() if n not in found.nbytes)
        return {
            "bits": 8 * took / sum(specs[n].size for n in found.nbytes),
            "whole": 8 * (took + rest) / sum(s.size for s in specs.values()),
            "kl": mean("kl"), "perplexity": exp(mean("nll")), "top1": mean("top1"),
        }  # fmt: skip


def _predicted(command: Sequence[str]) -> float | None:
    """KL as `quant=auto` foretold it, which chose the rules that this command was given; None: none were chosen."""
    from pipeline.config.overrides import parsed_override
    from pipeline.records import schemas
    from pipeline.records.run import MANIFEST

    rules = [str(parsed_override(o).value()) for o in command if o.startswith("rules_file=")]
    if not rules:
        return None
    record = schemas.read("manifest", Path(rules[-1]).parent / MANIFEST)
    return float(record["results"]["allocate"]["predicted"])


def said(found: Mapping[str, Any]) -> str:
    """What a cell found, in a line."""
    if "refused" in found:
        return f"refused: {found['refused']}"
    return f"{found['bits']:.3f} bits, KL {found['kl']:.5f}, perplexity {found['perplexity']:.3f}"


def row(by: str, quant: str, found: Mapping[str, Any], others: float, *, theirs: bool) -> dict[str, Any]:
    """As bench.json has it."""
    if "refused" in found:
        return unmeasured(by, quant, "unsupported", found["refused"])
    metrics = {
        STORED: Metric.of([found["bits"]], "", "lower"), KL: Metric.of([found["kl"]], "nats", "lower"),
        PERPLEXITY: Metric.of([found["perplexity"]], "", "lower"),
    }  # fmt: skip
    return unmeasured(by, quant, "measured", "") | {
        "metrics": {name: asdict(m) for name, m in metrics.items()}, "whole": found["whole"], "top1": found["top1"],
        "predicted": found.get("predicted"), "others": others, "busy": others > BUSY, "theirs": theirs,
    }  # fmt: skip


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """KL of every cell."""
    return {
        f"{r['quant']}, {r['engine']}": Figure(r["metrics"][KL]["value"], "nats", ".5f", "lower")
        for r in rows
        if r["state"] == "measured"
    }


def draw(path: Path, about: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """KL over bits a weight, a colour for every way of rounding: a PNG at `path`; fewer than two cells are none."""
    from pipeline.reporting.plots import Point, tradeoff

    points = [
        Point(f"{r['quant']} {r['engine']}", _of(r, STORED), [_of(r, KL)], "others" if r["theirs"] else r["engine"])
        for r in rows
        if r["state"] == "measured"
    ]
    if len(points) > 1:
        tradeoff(path, about, STORED, "KL, nats a token", points)


def tables(rows: Sequence[Mapping[str, Any]], worse: Sequence[str], against: str | None) -> tuple[Table, ...]:
    """Every cell, the fewest bits first; each of others beside the best of ours in no more bits; what is missing."""
    measured = sorted(
        (r for r in rows if r["state"] == "measured"), key=lambda r: (round(_of(r, STORED), 2), _of(r, KL))
    )
    columns: tuple[str, ...] = ("quant", "by", STORED, WHOLE, "KL, nats", PERPLEXITY, "top-1")
    shown = [Table("Loss at so many bits", columns, tuple(tuple(_cells(r)) for r in measured))]
    if beside := [tuple(_beside(r, measured)) for r in measured if r["theirs"]]:
        heads = ("of others", "", STORED, "KL, nats", "best of ours in no more", "", STORED, "KL, nats", "of theirs")
        shown.append(Table("Beside others", heads, tuple(beside)))
    if foretold := [tuple(_foretold(r)) for r in measured if r["predicted"] is not None]:
        columns = ("quant", "by", STORED, "KL, nats", "as predicted, of the text it was chosen on", "off")
        shown.append(Table("Chosen by quant=auto", columns, tuple(foretold)))
    return (*shown, *common.rest(rows, ("by", "quant"), worse, against))


def _of(found: Mapping[str, Any], metric: str) -> float:
    return float(found["metrics"][metric]["value"])


def _cells(found: Mapping[str, Any]) -> Iterator[Cell]:
    yield found["quant"]
    yield found["engine"]
    yield f"{_of(found, STORED):.3f}"
    yield f"{found['whole']:.3f}"
    yield f"{_of(found, KL):.5f}"
    yield f"{_of(found, PERPLEXITY):.3f}"
    yield f"{found['top1']:.2%}"


def _foretold(found: Mapping[str, Any]) -> Iterator[Cell]:
    yield from (found["quant"], found["engine"], f"{_of(found, STORED):.3f}", f"{_of(found, KL):.5f}")
    yield f"{found['predicted']:.5f}"
    yield f"{found['predicted'] / _of(found, KL) - 1:+.0%}" if _of(found, KL) else "–"


def _beside(found: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]) -> Iterator[Cell]:
    bits = _of(found, STORED)
    ours = [r for r in measured if not r["theirs"] and _of(r, STORED) <= bits + SAME]
    yield from (found["quant"], found["engine"], f"{bits:.3f}", f"{_of(found, KL):.5f}")
    if not ours:
        yield from ("–",) * 5
        return
    best = min(ours, key=lambda r: _of(r, KL))
    yield from (best["quant"], best["engine"], f"{_of(best, STORED):.3f}", f"{_of(best, KL):.5f}")
    yield f"{_of(best, KL) / _of(found, KL):.2f} ×" if _of(found, KL) else "–"
