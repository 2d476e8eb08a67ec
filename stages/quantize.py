"""Quantize: a list of rules says which tensors take which method and which stay as they are."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from pipeline import gained
from pipeline.assigned import assigned, keeping
from pipeline.calibrated import calibrated
from pipeline.calibration import Calibrator, Reconstructor, Smoother, Statistics
from pipeline.coded_store import CodedStore, Unpacked
from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.gained import Past
from pipeline.hooks import optional
from pipeline.learned import Learned
from pipeline.method import Method, MethodHooks
from pipeline.ops import Call, Kernel
from pipeline.rules import EXTRA, Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.folds import Fold
from pipeline.tensors.rotation import Rotation, Turned
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import TensorStore
from pipeline.tensors.views import MappedStore


@dataclass(frozen=True)
class Quantize:
    """Quantize the tensors that the rules select. A tensor already in its method's scheme passes bit for bit.

    Attributes:
        method: how values become codes, and back: what `to: quant` means.
        rules: the first that matches a tensor decides; then those of the method, if it has any; a tensor that none
            matches is kept.
        extra_rules: before `rules`.
        roles: role → name patterns.
        methods: the methods that rules name, beside `quant`.
        calibrate: makes methods look at what the stage `calibrate` found; None: at weights alone.
        smooth, rotate: what scales channels and rotates hidden states in the stages of these names, which have to be
            there then; None: nothing.
        reconstruct: what trains codes and scales in the stage of this name, which has to be there then; None: nothing.
        inputs: what activations are rounded to under scales that `calibrate` is to say; None: no such scales are made.
        quantile: the share of sampled inputs that lie within these; None: all that were seen.
        turn: rotates columns of what is quantized in blocks, as models do with what they multiply it by; None: nothing.
        measure: compute the error of every quantized tensor (decodes each slice once more).
        allow_requantize: also quantize what is already packed in another scheme, which loses twice.
        plain: what tensors become that are unpacked (by a method without a scheme), or were scaled or rotated and stay
            plain: `bf16`, or `keep`, the fp32 values that they decode to.
        unpack: decodes what was encoded, to measure the error of methods that are not ours.
    """

    method: Method
    rules: tuple[Rule, ...]
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    extra_rules: tuple[Rule, ...] = ()
    calibrate: Calibrator | None = None
    smooth: Smoother | None = None
    rotate: Rotation | None = None
    reconstruct: Reconstructor | None = None
    inputs: Method | None = None
    quantile: float | None = None
    turn: Rotation | None = None
    measure: bool = True
    allow_requantize: bool = False
    plain: Literal["bf16", "keep"] = "bf16"
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            PlanError: a rule matches nothing, or a selected tensor does not fit its scheme, all of them at once; or a
                quantization is asked for, and no tensor would have any.
        """
        if self.reconstruct is not None and checkpoint.learned is None:
            text = "trains what weights are rounded to; the stage reconstruct, before quantize, does that"
            raise PlanError([Problem("calibrate.reconstruct", text)])
        return self._coded(checkpoint)

    def _coded(self, checkpoint: Checkpoint) -> Checkpoint:
        """What `run` gives; of a checkpoint of which nothing was learned yet, what learning begins with."""
        for stage, asked, does in (("smooth", self.smooth, "scales channels"), ("rotate", self.rotate, "rotates")):
            if asked is not None and stage not in checkpoint.folded:
                text = f"{does} before anything is quantized; the stage {stage}, before quantize, does that"
                raise PlanError([Problem("calibrate", text)])
        checkpoint = self._with_scales(checkpoint)
        todo = self._todo(checkpoint)
        if optional(self.method, MethodHooks, "keeps"):
            packed = (n for n, s in checkpoint.store.specs.items() if s.scheme is not None and n not in todo)
            checkpoint = replace(checkpoint, may_unpack=frozenset(packed) - self._kept(checkpoint))
        checkpoint = self._narrowed(checkpoint, todo)
        if not todo:
            return checkpoint
        checkpoint = self._turned(checkpoint, todo)
        store = CodedStore(
            checkpoint.store, todo, self.measure, self.plain, self.unpack, checkpoint.statistics,
            self._pasts(checkpoint, todo) if self.measure else (), checkpoint.learned,
        )  # fmt: skip
        nearest = None
        if self.calibrate is not None or checkpoint.learned is not None:
            by = {n: gained.nearest(m) for n, m in todo.items()}
            nearest = replace(store, methods=by, measure=False, pasts=(), learned=None)
        kept = partial(keeping, roles=self.roles, taken=tuple(todo), extra=self.extra_rules)
        return replace(checkpoint, store=store, keeping=kept, nearest=nearest)

    def _with_scales(self, checkpoint: Checkpoint) -> Checkpoint:
        """With scales of inputs by what was seen of them; without any, those that the source has, or none."""
        if self.inputs is None or checkpoint.statistics is None:
            return checkpoint
        if self.quantile is not None and not 0 < self.quantile <= 1:
            raise PlanError(
                [Problem("calibrate.quantile", f"{self.quantile} is no share between 0 and 1, as 0.999 is")]
            )
        try:
            found = calibrated(checkpoint.statistics, tuple(checkpoint.store.specs), self.inputs, self.quantile)
        except ConfigError as why:
            raise PlanError([Problem("activations_scales", str(why))]) from None
        return replace(checkpoint, input_scales=found)

    def _turned(self, checkpoint: Checkpoint, todo: Mapping[str, Method]) -> Checkpoint:
        """With columns rotated of matrices of blocks that are quantized: an embedding is looked up."""
        if self.turn is None:
            return checkpoint
        from pipeline.rotated import TurnedStatistics, turned  # with what calibrates, which most runs do without
        from stages.calibrate import likely

        specs, coded = checkpoint.store.specs, {n for n, m in todo.items() if m.scheme is not None}
        names = [n for n in likely(checkpoint) if n in coded]
        unfit = {n: why for n in names if (why := self.turn.problem(specs[n].shape[-1])) is not None}
        if unfit:
            raise PlanError(Problem("activations_rotate", f"{n}: {why}") for n, why in unfit.items())
        found, known = Turned(self.turn, frozenset(names)), checkpoint.statistics
        statistics = None if known is None else TurnedStatistics(known, found)
        again = partial(turned, by=found, unpack=self.unpack)
        fold = Fold(found.names, "activations_rotate", checkpoint.store, again)
        return replace(
            checkpoint, store=again(checkpoint.store), statistics=statistics, turned=found,
            folded={**checkpoint.folded, "turn": fold},
        )  # fmt: skip

    def _pasts(self, checkpoint: Checkpoint, todo: Mapping[str, Method]) -> tuple[Past, ...]:
        """What tensors that stages have changed would be, had they been rounded before that."""
        coded = {n: gained.nearest(m) for n, m in todo.items() if m.scheme is not None}
        coded = {n: m for n, m in coded.items() if not optional(m, MethodHooks, "needs_statistics")}

        def rounded(store: TensorStore, names: frozenset[str]) -> TensorStore:
            of = {n: coded[n] for n in sorted(names & coded.keys())}
            by = CodedStore(store, of, measure=False, unpack=self.unpack)
            return MappedStore(by, Unpacked(frozenset(of), self.unpack))

        folds = [replace(f, names=f.names & coded.keys()) for f in checkpoint.folded.values()]
        return gained.pasts(folds, rounded)

    def _narrowed(self, checkpoint: Checkpoint, todo: Collection[str]) -> Checkpoint:
        """What was folded in fp32, and is not to be quantized, as whatever else is plain."""
        specs, folded = checkpoint.store.specs, frozenset().union(*(f.names for f in checkpoint.folded.values()))
        wide = frozenset(n for n in folded if n in specs and specs[n].dtype == "F32" and n not in todo)
        if self.plain == "keep" or not wide:
            return checkpoint
        from pipeline.folded import Narrowed

        return replace(checkpoint, store=MappedStore(checkpoint.store, Narrowed(wide)))

    def calls(self, checkpoint: Checkpoint) -> Iterator[Call]:
        """The kernel calls that reading the result makes."""
        for name, method in self._todo(checkpoint).items():
            if (ask := optional(method, MethodHooks, "calls")) is not None:
                yield from ask(name, checkpoint.store.specs[name])

    def _todo(self, checkpoint: Checkpoint) -> dict[str, Method]:
        """Tensor → the method that it is to take, with what that is told of activations."""
        todo = self._assigned(checkpoint)
        return todo if self.calibrate is None else self._calibrated(todo, checkpoint.statistics, checkpoint.learned)

    def _assigned(self, checkpoint: Checkpoint) -> dict[str, Method]:
        """Tensor → the method that it is to take, of weights alone."""
        specs = checkpoint.store.specs
        known = {"quant": self.method, **self.methods}
        keeps = optional(self.method, MethodHooks, "keeps")
        rules, extra = (
            tuple(replace(r, to="keep") if keeps and r.to == "quant" else r for r in some)
            for some in (self.rules, self.extra_rules)
        )
        tied = checkpoint.config.get("tie_word_embeddings") is True
        again = self.allow_requantize
        found, problems = assigned(rules, self.roles, known, specs, again=again, tied=tied, extra=extra)
        if self.method.scheme is None and not keeps:  # then nothing stays packed but what a rule keeps
            kept = self._kept(checkpoint)
            found |= {n: self.method for n, s in specs.items() if s.scheme is not None and n not in {*found, *kept}}
        problems += [] if problems else self._nothing(m.scheme for m in found.values())
        if problems:
            raise PlanError(problems)
        return {n: m for n, m in found.items() if specs[n].scheme != m.scheme}

    def _calibrated(
        self, todo: dict[str, Method], statistics: Statistics | None, learned: Learned | None
    ) -> dict[str, Method]:
        """`todo` with methods that look at activations, for the tensors that have any, or have codes by them:
        an embedding is looked up."""
        assert self.calibrate is not None
        told: Container[str] | None = learned if statistics is None else statistics
        if told is None:
            text = "has no statistics to look at; the stage calibrate, before quantize, makes them"
            raise PlanError([Problem("calibrate", text)])
        by = {m: self.calibrate.calibrated(m) for m in dict.fromkeys(todo.values()) if m.scheme is not None}
        return {n: by.get(m, m) if n in told else m for n, m in todo.items()}

    @property
    def _rules(self) -> tuple[Rule, ...]:
        return (*self.extra_rules, *self.rules)

    def _kept(self, checkpoint: Checkpoint) -> frozenset[str]:
        """Tensors that a rule keeps."""
        keep = [r for r in self._rules if r.to == "keep"]
        return frozenset(n for n in checkpoint.store.specs if any(r.about(n, self.roles) for r in keep))

    def _nothing(self, schemes: Iterable[Scheme | None]) -> list[Problem]:
        """A problem when the method makes codes and the rules give none to any tensor."""
        if self.method.scheme is None or any(schemes):
            return []
        wanted = TensorSpec((), "BF16", self.method.scheme).encoding
        rules = "; ".join(f"{rule} to {rule.to}" for rule in self._rules) or "none"
        text = (
            f"asks for {wanted}, and no tensor would be quantized (rules: {rules}); "
            f"'{EXTRA}=[{{match: PATTERN, to: quant}}]' adds a rule, quant=none is for none"
        )
        return [Problem("quant", text)]


def to_be(quantize: Quantize, checkpoint: Checkpoint) -> dict[str, Method]:
    """Tensor → the method that `quantize` would have it take, of weights alone, for a stage before that one.

    Raises:
        PlanError: as `Quantize.run`.
    """
    return quantize._assigned(checkpoint)


def coded(quantize: Quantize, checkpoint: Checkpoint) -> Checkpoint:
    """What `quantize` makes of a checkpoint of which nothing was learned yet: what a stage before that one learns from.

    Raises:
        PlanError: as `Quantize.run`.
    """
    return quantize._coded(checkpoint)
