"""Sensitivity: which tensors lose most by being quantized? One group at a time, all others as they were."""

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from math import exp
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline import scored, texts
from pipeline.engine import Engine, Windows, gang_of, weights_rows
from pipeline.errors import ConfigError, did_you_mean
from pipeline.figures import Cell, Figure
from pipeline.ops import Kernel
from pipeline.reporting.plots import bars
from pipeline.rules import Rule, added, named
from pipeline.running import member, text_stream
from pipeline.stage import Checkpoint, Context, Gang, Prediction, Table
from pipeline.tensors.spec import UNQUANTIZED, called, encodings
from pipeline.units import show_bytes, show_seconds
from stages import alone

ALL, TOGETHER, NEAREST = "", "all together", "nearest"
WINDOWS = "sensitivity.windows"
SHARE, MOST = 1 / 3, 1 / 4  # of the sum of KL that the worst account for, and of all groups that these may be


@dataclass(frozen=True)
class Sensitivities:
    """What quantizing each group alone does.

    Attributes:
        groups: in the order of the model, name → perplexity, KL divergence from the model as it was (nats), top-1
            agreement, number of tensors, bits a weight, `saved_nbytes`; and `nearest`, the first three of the same
            tensors rounded to the nearest, where methods look at more.
        perplexity: of the model as it was.
        plot: the picture of it: a file in the run's folder.
        windows: how the text was cut.
        facts: device, dtypes, bytes on the device.
        figures: for comparisons.
        tables: for people.
        together: the same of all groups at once.
        rules: the override that keeps the worst of them.
    """

    groups: Mapping[str, Mapping[str, Any]]
    perplexity: float
    plot: str
    windows: Mapping[str, Any]
    facts: Mapping[str, Any]
    figures: Mapping[str, Cell]
    tables: tuple[Table, ...]
    together: Mapping[str, Any]
    rules: str


@dataclass(frozen=True)
class Sensitivity:
    """Score one text with each group of tensors quantized alone.

    The model is held in fp32, so that unpacked values are those of the packed tensors exactly, and nothing recompiles.

    Attributes:
        engine: runs the model.
        text: a file, UTF-8.
        windows: how it is cut.
        by: what a group is: a `layer`, a `role` of the model, or a kind of `tensor` (over all layers).
        nearest: score each group rounded to the nearest as well, where its methods look at more.
        roles: role → name patterns.
        unpack: decodes what was packed before it was quantized again.
    """

    engine: Engine
    text: str
    windows: Windows
    by: Literal["layer", "role", "tensor"] = "layer"
    nearest: bool = True
    roles: Mapping[str, tuple[str, ...]] | None = None
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    writes: ClassVar[tuple[str, ...]] = (*alone.files("sensitivity"), "sensitivity.png")

    def __post_init__(self) -> None:
        texts.check(self.text, "sensitivity.text")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint, decode: Checkpoint) -> Prediction:
        alone.apart(checkpoint, "sensitivity")
        groups = self._groups(checkpoint, decode)
        plain = alone.unpacked(decode, changed(groups), self.unpack)
        passes = self._passes(groups, checkpoint)
        takes, _ = alone.footprint(self.engine, plain, self.text, self.windows, passes, WINDOWS)
        return Prediction(None, takes)

    def run(self, ctx: Context, checkpoint: Checkpoint, decode: Checkpoint) -> Sensitivities:
        """
        Raises:
            ConfigError: nothing is quantized, or a quantized tensor has no role.
        """
        groups = self._groups(checkpoint, decode)
        plain = alone.unpacked(decode, changed(groups), self.unpack)
        windows = scored.settled(self.windows, plain, self._passes(groups, checkpoint), WINDOWS)
        before = self._before(checkpoint)
        found: dict[str, dict[str, Any]] = {}
        with alone.compared(ctx, self.engine, plain, self.text, windows, "sensitivity") as model:
            session, base, start = model.session, model.base, time.perf_counter()
            for i, (name, tensors) in enumerate([*groups.items(), (ALL, changed(groups))]):
                left = f", {show_seconds((time.perf_counter() - start) / i * (len(groups) + 1 - i))} left" if i else ""
                said = f"quantizing {name} alone" if name != ALL else "quantizing all of them"
                text_stream.write(f"[{i + 1}/{len(groups) + 1}] {said} ({len(tensors)} tensors){left}\n")
                specs, were = ([of.store.specs[t] for t in tensors] for of in (checkpoint, decode))
                values, nbytes = sum(s.size for s in specs), sum(s.nbytes for s in specs)
                found[name] = {
                    **model.cost(tensors, checkpoint), "tensors": len(tensors), "bits": 8 * nbytes / values,
                    "saved_nbytes": sum(s.nbytes for s in were) - nbytes,
                    **({NEAREST: model.cost(tensors, before)} if before is not None else {}),
                }  # fmt: skip
        together = found.pop(ALL)
        was = called(encodings(decode.store.specs.values()))
        worst = worst_of({n: r["kl"] for n, r in found.items()})
        plot = "sensitivity.png"
        if member.first():
            about = f"{Path(self.text).name} · {base.scored:,} tokens scored · all of them together "
            about += f"{together['kl']:.4f} · orange: what the rules keep"
            title = f"What each {self.by} costs, quantized alone"
            of = f"{UNQUANTIZED} model" if was == UNQUANTIZED else "model as it came"
            kl = {n: r["kl"] for n, r in found.items()}
            near = {n: r[NEAREST]["kl"] for n, r in found.items() if NEAREST in r}
            about += " · grey: rounded to the nearest" if near else ""
            bars(ctx.run_dir / plot, title, about, f"KL from the {of}, nats a token", kl, worst, near)
        perplexity = exp(base.nll)
        columns: tuple[str, ...] = (self.by, "tensors", "bits", "perplexity", "change", "KL", "top-1")
        columns += ("KL, nearest",) if before is not None else ()
        lines = tuple(_row(n, r, perplexity) for n, r in [*found.items(), (TOGETHER, together)])
        head = Table(f"Each {self.by} quantized alone ({was}: {perplexity:.3f})", columns, lines)
        tables = (
            head,
            _advice(self.by, worst, found, checkpoint),
            Table("On the device", ("", ""), tuple(weights_rows(session.facts))),
        )
        return Sensitivities(
            found,
            perplexity,
            plot,
            asdict(windows),
            session.facts,
            {"worst": worst[0]},
            tables,
            together,
            rules_of(self.by, worst),
        )

    def _before(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """The same rounded to the nearest; None: that is what it is, or nobody wants to know."""
        if checkpoint.nearest is None or not self.nearest:
            return None
        return replace(checkpoint, store=checkpoint.nearest)

    def _passes(self, groups: Mapping[str, Sequence[str]], checkpoint: Checkpoint) -> int:
        """Scorings: the model as it was, each group and all of them together, and these rounded to the nearest."""
        return 1 + (len(groups) + 1) * (1 if self._before(checkpoint) is None else 2)

    def _groups(self, checkpoint: Checkpoint, decode: Checkpoint) -> dict[str, list[str]]:
        """Group → the tensors of it that quantization changed."""
        names = [n for n, s in checkpoint.store.specs.items() if s != decode.store.specs.get(n)]
        if not names:
            raise ConfigError("sensitivity: no tensor is quantized; choose quant=, or other model.rules")
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self._group(name), []).append(name)
        return dict(sorted(found.items(), key=lambda item: in_order(item[0])))

    def _group(self, name: str) -> str:
        parts = name.split(".")
        if self.by == "role":
            roles = self.roles or {}
            role = next((r for r, patterns in roles.items() if any(fnmatchcase(name, p) for p in patterns)), None)
            if role is None:
                raise ConfigError(f"sensitivity.by=role: {name} has none{did_you_mean(name, roles)}")
            return role
        at = next((i for i, p in enumerate(parts) if p.isdigit()), None)
        if self.by == "layer":
            return ".".join(parts[: at + 1]) if at is not None else name
        return ".".join("*" if p.isdigit() else p for p in parts)


def changed(groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The tensors of all groups."""
    return [name for names in groups.values() for name in names]


def in_order(name: str) -> list[tuple[int, int, str]]:
    """What layers are sorted by: `layers.2` comes before `layers.10`."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def worst_of(kl: Mapping[str, float]) -> list[str]:
    """The fewest groups that account for a third of the sum of KL, worst first; a quarter of all at most."""
    ranked = sorted(kl, key=lambda n: -kl[n])
    most = max(1, int(MOST * len(ranked)))
    whole, so_far = sum(kl.values()), 0.0
    for n, name in enumerate(ranked, 1):
        so_far += kl[name]
        if n == most or so_far >= SHARE * whole:
            return ranked[:n]
    return ranked


def rules_of(by: str, names: Sequence[str]) -> str:
    """The override that keeps these groups."""
    return added(_rule(by, name) for name in names)


def _rule(by: str, name: str) -> Rule:
    """A rule that keeps a group."""
    if by == "role":
        return Rule("keep", role=name)
    layer = by == "layer" and name.rpartition(".")[2].isdigit()
    return Rule("keep", named(name) + (".*" if layer else ""))


def _row(name: str, found: Mapping[str, Any], before: float) -> tuple[Cell, ...]:
    return (
        name, Figure(found["tensors"], form="d"), Figure(found["bits"], better="lower"),
        Figure(found["perplexity"], better="lower"),
        Figure(100 * (found["perplexity"] / before - 1), "%", "+z.3f", "lower"),
        Figure(found["kl"], form=".5f", better="lower"),
        Figure(100 * found["top1"], "%", ".2f", "higher"),
        *((Figure(found[NEAREST]["kl"], form=".5f", better="lower"),) if NEAREST in found else ()),
    )  # fmt: skip


def _advice(by: str, worst: Sequence[str], found: Mapping[str, Mapping[str, Any]], checkpoint: Checkpoint) -> Table:
    """What to type to keep the worst, and what that costs and saves."""
    specs = checkpoint.store.specs.values()
    more = sum(found[n]["saved_nbytes"] for n in worst)
    bits = 8 * more / sum(s.size for s in specs)
    share = sum(found[n]["kl"] for n in worst) / max(1e-30, sum(r["kl"] for r in found.values()))
    return Table("", (), (
        (f"{len(worst)} of {len(found)} have {100 * share:.0f} % of the sum of KL: {', '.join(worst)}",),
        (f"to keep them, with {show_bytes(more)} more, {bits:.2f} bits a weight:",),
        (shlex.quote(rules_of(by, worst)),),
    ))  # fmt: skip
