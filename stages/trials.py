"""Trials: what does each group of tensors lose with each quantization? What `allocate` chooses from."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import exp
from typing import Any, ClassVar

from pipeline import allocation, scored, texts
from pipeline.allocation import Cost
from pipeline.calibration import Calibrator
from pipeline.coded_store import CodedStore
from pipeline.digest import identity
from pipeline.engine import Engine, Windows, gang_of
from pipeline.errors import ConfigError, PlanError, Problem, StageError, some
from pipeline.figures import Cell, Figure
from pipeline.method import Method, fitted
from pipeline.rules import Rule, choose, misfit
from pipeline.running import text_stream
from pipeline.stage import Checkpoint, Context, Gang, Prediction, Table
from pipeline.units import show_seconds
from stages import alone

ALL = ""
KEEP = "keep"
WINDOWS = "allocate.windows"


@dataclass(frozen=True)
class Options:
    """What may become of tensors, and which go together.

    Attributes:
        methods: the quant options to choose from, by name.
        rules: the first that matches a tensor says whether it is to be chosen for (`quant`), or not.
        extra_rules: before `rules`.
        roles: role → name patterns.
        alike: parts of names: tensors that differ in nothing but one of them take the same.
        keep: whether a tensor may stay as it is.
        calibrate: makes methods look at what the stage `calibrate` found, as in runs that take the rules; None: at
            weights alone.
        changes: settings of `calibrate=` that change weights before they are rounded: of these no tensor loses anything
            alone, and they are refused.
    """

    methods: Mapping[str, Method]
    rules: tuple[Rule, ...]
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    extra_rules: tuple[Rule, ...] = ()
    alike: tuple[tuple[str, ...], ...] = ()
    keep: bool = True
    calibrate: Calibrator | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, what in self.changes.items():
            if what is not None:
                said = what if isinstance(what, str) else type(what).__name__
                text = f"calibrate.{name}={said}: allocate looks at tensors one by one, and this changes"
                also = "; calibrate=gptq or imatrix, or allocate by one of these and then rules_file= with this"
                raise ConfigError(f"{text} several together{also}")
        if not self.methods:
            raise ConfigError("allocate.quants: an empty list, nothing to choose from")
        if packed := [n for n, m in self.methods.items() if m.scheme is None]:
            raise ConfigError(f"allocate.quants: {some(packed)}: makes no codes; allocate.keep=true lets tensors stay")
        if len(left := self.left_out) == len(self.methods):
            raise ConfigError(f"allocate.quants: {'; '.join(f'{n}: {why}' for n, why in left.items())}")

    @property
    def left_out(self) -> dict[str, str]:
        """Options that no run with the same `calibrate=` could take, and so none to choose from: why."""
        found: dict[str, str] = {}
        if self.calibrate is None:
            return found
        for name, method in self.methods.items():
            try:
                self.calibrate.calibrated(method)
            except ConfigError as why:
                found[name] = str(why)
        return found

    def groups(self, checkpoint: Checkpoint) -> dict[str, list[str]]:
        """Group → its tensors.

        Raises:
            PlanError: a rule matches nothing, or nothing is to be chosen for.
        """
        specs, able = checkpoint.store.specs, {n: m for n, m in self.methods.items() if n not in self.left_out}
        named = {rule.to for rule in (*self.extra_rules, *self.rules)} - {"quant", KEEP}
        chosen, problems = choose((*self.extra_rules, *self.rules), self.roles, {"quant", *named}, specs)
        names = [n for n, to in chosen.items() if to == "quant"]
        if not problems:
            reasons = {n: r for n in names if (r := _never(n, checkpoint, able)) is not None}
            problems += [Problem(n, why) for n, why in [*reasons.items()][:4]]
            if not names:
                problems.append(Problem("allocate", "the rules of the model give no tensor to quant"))
        if problems:
            raise PlanError(problems)
        return allocation.grouped(names, self.alike)

    def variants(
        self, checkpoint: Checkpoint, groups: Mapping[str, list[str]]
    ) -> dict[str, tuple[list[str], Checkpoint]]:
        """Option → the groups that can take it, and the checkpoint in which they have."""
        found = {}
        for name, method in self.methods.items():
            if name in self.left_out:
                continue
            able = {g: of for g, of in groups.items() if all(_fits(checkpoint, n, method) for n in of)}
            took = dict.fromkeys((n for of in able.values() for n in of), name)
            found[name] = [*able], self.quantized(checkpoint, took)
        return found

    def quantized(self, checkpoint: Checkpoint, takes: Mapping[str, str]) -> Checkpoint:
        """`checkpoint` with tensors quantized, each by the option that it takes, where they are read.

        Raises:
            PlanError: methods are to look at activations, and no stage has.
        """
        specs, known = checkpoint.store.specs, checkpoint.statistics
        by = {n: fitted(self.methods[name], specs[n].shape) for n, name in takes.items()}
        if self.calibrate is not None:
            if known is None:
                text = "has no statistics to look at; the stage calibrate, before trials, makes them"
                raise PlanError([Problem("calibrate", text)])
            looking = {m: self.calibrate.calibrated(m) for m in dict.fromkeys(m for n, m in by.items() if n in known)}
            by = {n: looking[m] if n in known else m for n, m in by.items()}
        store = CodedStore(checkpoint.store, by, measure=False, plain="keep", statistics=known)
        return Checkpoint(store, checkpoint.config, checkpoint.files)

    def least(self, checkpoint: Checkpoint) -> tuple[int, int]:
        """Bytes that the tensors take at least, and how many numbers they have."""
        groups, found = self.groups(checkpoint), dict[str, list[int]]()
        for group, names in groups.items() if self.keep else ():
            found[group] = [sum(checkpoint.store.specs[n].nbytes for n in names)]
        for able, variant in self.variants(checkpoint, groups).values():
            for group in able:
                found.setdefault(group, []).append(sum(variant.store.specs[n].nbytes for n in groups[group]))
        return sum(map(min, found.values())), sum(checkpoint.store.specs[n].size for of in groups.values() for n in of)


def _fits(checkpoint: Checkpoint, name: str, method: Method) -> bool:
    spec = checkpoint.store.specs[name]
    return misfit(spec, fitted(method, spec.shape).scheme) is None


def _never(name: str, checkpoint: Checkpoint, methods: Mapping[str, Method]) -> str | None:
    """Why a tensor can take none of them."""
    spec = checkpoint.store.specs[name]
    reasons = [misfit(spec, fitted(m, spec.shape).scheme) for m in methods.values()]
    return None if None in reasons else "; ".join(dict.fromkeys(filter(None, reasons)))


@dataclass(frozen=True)
class Tried:
    """What was measured.

    Attributes:
        groups: group → its tensors.
        costs: group → option → KL divergence from the model as it was (nats a token), perplexity, top-1 agreement and
            `nbytes`; `keep` costs nothing but its bytes.
        together: option → the same of all groups at once that can take it, with the `sum` of their KL alone.
        values: group → how many numbers its tensors have.
        perplexity: of the model as it was.
        scored: tokens.
        windows: how the text was cut.
        tables: for people.
    """

    groups: Mapping[str, tuple[str, ...]]
    costs: Mapping[str, Mapping[str, Mapping[str, Any]]]
    together: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, int]
    perplexity: float
    scored: int
    windows: Mapping[str, Any]
    tables: tuple[Table, ...] = ()

    @property
    def known(self) -> dict[str, dict[str, Cost]]:
        """As `pipeline.allocation` takes it."""
        return {g: {n: Cost(c["kl"], c["nbytes"]) for n, c in of.items()} for g, of in self.costs.items()}

    @property
    def alike(self) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
        """Of every option that all groups can take, that they do, and what it cost."""
        return [
            (dict.fromkeys(self.costs, n), t)
            for n, t in self.together.items()
            if all(n in c for c in self.costs.values())
        ]

    @property
    def add(self) -> allocation.Together:
        """How losses add up."""
        return allocation.Together(tuple((t["sum"], t["kl"]) for t in self.together.values()))


@dataclass(frozen=True)
class Trials:
    """Score one text with each group of tensors quantized alone, by each option, and with all of them by each.

    Each of these scores is kept as it is measured, so that whoever is interrupted goes on there.

    Attributes:
        engine: runs the model, in fp32.
        text: a file, UTF-8.
        windows: how it is cut.
        options: what may become of which tensors.
    """

    engine: Engine
    text: str
    windows: Windows
    options: Options

    writes: ClassVar[tuple[str, ...]] = alone.files("trials")

    def __post_init__(self) -> None:
        texts.check(self.text, "allocate.text")

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.stage.StageHooks`."""
        return gang_of(self.engine)

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        groups = self.options.groups(checkpoint)
        cells = sum(len(able) + 1 for able, _ in self.options.variants(checkpoint, groups).values())
        takes, _ = alone.footprint(self.engine, checkpoint, self.text, self.windows, cells + 1, WINDOWS)
        return Prediction(None, takes)

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Tried:
        """
        Raises:
            PlanError: a rule matches nothing, or a tensor can take none of the options.
            StageError: there is nowhere to keep what is measured.
        """
        if ctx.results is None:
            raise StageError("trials are kept as they are measured, and this run keeps no results")
        for name, why in self.options.left_out.items():
            text_stream.write(f"{name} is none of the options: {why}\n")
        groups = self.options.groups(checkpoint)
        variants = self.options.variants(checkpoint, groups)
        cells = [(g, n) for n, (able, _) in variants.items() for g in (*able, ALL)]
        windows = scored.settled(self.windows, checkpoint, len(cells) + 1, WINDOWS)
        specs = checkpoint.store.specs
        costs: dict[str, dict[str, Any]] = {
            g: {KEEP: {"kl": 0.0, "nbytes": sum(specs[n].nbytes for n in of)}} if self.options.keep else {}
            for g, of in groups.items()
        }
        together: dict[str, Any] = {}
        with alone.compared(ctx, self.engine, checkpoint, self.text, windows, "trials") as model:
            start, made = time.perf_counter(), 0
            for i, (group, name) in enumerate(cells):
                able, variant = variants[name]
                tensors = groups[group] if group != ALL else [n for g in able for n in groups[g]]
                fresh: list[str] = []

                def measure(_: Any, of: list[str] = tensors, by: Checkpoint = variant, fresh: list[str] = fresh) -> Any:
                    fresh.append("")
                    return model.cost(of, by)

                left = f", {show_seconds((time.perf_counter() - start) / made * (len(cells) - i))} left" if made else ""
                what = group if group != ALL else "all of them"
                text_stream.write(f"[{i + 1}/{len(cells)}] {what} as {name}{left}\n")
                cell, _ = ctx.results.once(
                    identity([ctx.key, group, name]), measure, parts={"stage": f"trial of {name}", "of": group}
                )
                made += len(fresh)
                if group == ALL:
                    together[name] = {**cell, "sum": sum(costs[g][name]["kl"] for g in able)}
                else:
                    nbytes = sum(variant.store.specs[n].nbytes for n in tensors)
                    costs[group][name] = {**cell, "kl": max(0.0, cell["kl"]), "nbytes": nbytes}
            base = model.base
        table = Table("Each group quantized alone: KL, nats a token", *_table(costs, together))
        return Tried(
            {g: tuple(of) for g, of in groups.items()}, costs, together,
            {g: sum(specs[n].size for n in of) for g, of in groups.items()},
            exp(base.nll), base.scored, asdict(windows), (table,),
        )  # fmt: skip


def _table(
    costs: Mapping[str, Mapping[str, Any]], together: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Columns and rows."""
    rows: list[tuple[Cell, ...]] = [
        (group, *(_kl(of[n]["kl"]) if n in of else "–" for n in together)) for group, of in costs.items()
    ]
    rows.append(("sum", *(_kl(t["sum"]) for t in together.values())))
    rows.append(("all together", *(_kl(t["kl"]) for t in together.values())))
    return ("", *together), tuple(rows)


def _kl(nats: float) -> Figure:
    return Figure(nats, form=".5f", better="lower")
