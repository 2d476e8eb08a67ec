"""Quantize: a list of rules says which tensors take which method and which stay as they are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

from pipeline import meter
from pipeline.errors import PlanError, Problem, ValueRangeError, did_you_mean
from pipeline.hooks import optional
from pipeline.method import Method, MethodHooks
from pipeline.ops import Call
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.blocks import block_grain, common, outward, whole_blocks
from pipeline.tensors.matrices import ExtremesOf, scanned
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec
from pipeline.tensors.store import Index, TensorStore, checked, normalize
from pipeline.tensors.store_view import StoreView


@dataclass(frozen=True)
class Rule:
    """Which tensors take what.

    Attributes:
        match: shell pattern on the tensor's name; or
        role: a role of the model, which stands for some patterns.
        to: `quant` (the method chosen with quant=), `keep`, or the name of another quant option.
    """

    to: str = "quant"
    match: str | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        if (self.match is None) == (self.role is None):
            raise ValueError("a rule has either match (a name pattern) or role")

    def __str__(self) -> str:
        return repr(self.match) if self.match is not None else f"role {self.role!r}"


@dataclass(frozen=True)
class Quantize:
    """Quantize the tensors that the rules select. A tensor already in its method's scheme passes bit for bit.

    Attributes:
        method: how values become codes, and back: what `to: quant` means.
        rules: the first that matches a tensor decides; a tensor that none matches is kept.
        roles: role → name patterns.
        methods: the methods that rules name, beside `quant`.
        measure: compute the error of every quantized tensor (decodes each slice once more).
        allow_requantize: also quantize what is already packed in another scheme, which loses twice.
        plain: what tensors become that are unpacked (by a method without a scheme): `bf16`, or `keep`, the fp32 values
            that they decode to.
    """

    method: Method
    rules: tuple[Rule, ...]
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    measure: bool = True
    allow_requantize: bool = False
    plain: Literal["bf16", "keep"] = "bf16"

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            PlanError: a rule matches nothing, or a selected tensor does not fit its scheme, all of them at once; or a
                quantization is asked for, and no tensor would have any.
        """
        todo = self._todo(checkpoint)
        if not todo:
            return checkpoint
        return replace(checkpoint, store=CodedStore(checkpoint.store, todo, self.measure, self.plain))

    def calls(self, checkpoint: Checkpoint) -> Iterator[Call]:
        """The kernel calls that reading the result makes."""
        for name, method in self._todo(checkpoint).items():
            if (ask := optional(method, MethodHooks, "calls")) is not None:
                yield from ask(name, checkpoint.store.specs[name])

    def _todo(self, checkpoint: Checkpoint) -> dict[str, Method]:
        """Tensor → the method that it is to take."""
        specs = checkpoint.store.specs
        known = {"quant": self.method, **self.methods}
        chosen, problems = choose(self.rules, self.roles, known, specs)
        if self.method.scheme is None:  # then nothing stays packed but what a rule keeps
            kept = {n for n in specs if any(r.to == "keep" and self._is_about(r, n) for r in self.rules)}
            chosen |= {n: "quant" for n, s in specs.items() if s.scheme is not None and n not in {*chosen, *kept}}
        for name, to in chosen.items():
            problems += self._misfits(name, specs[name], known[to].scheme)
        problems += [] if problems else self._nothing(known[to].scheme for to in chosen.values())
        if problems:
            raise PlanError(problems)
        return {n: known[to] for n, to in chosen.items() if specs[n].scheme != known[to].scheme}

    def _is_about(self, rule: Rule, name: str) -> bool:
        wanted = self.roles.get(rule.role, ()) if rule.role is not None else (rule.match or "",)
        return any(fnmatchcase(name, w) for w in wanted)

    def _nothing(self, schemes: Iterable[Scheme | None]) -> list[Problem]:
        """A problem when the method makes codes and the rules give none to any tensor."""
        if self.method.scheme is None or any(schemes):
            return []
        wanted = TensorSpec((), "BF16", self.method.scheme).encoding
        rules = "; ".join(f"{rule} to {rule.to}" for rule in self.rules) or "none"
        text = (
            f"asks for {wanted}, and no tensor would be quantized (rules: {rules}); add a rule with `to: quant` to "
            "model.rules, or say quant=none"
        )
        return [Problem("quant", text)]

    def _misfits(self, name: str, spec: TensorSpec, scheme: Scheme | None) -> list[Problem]:
        if scheme is None or spec.scheme == scheme:
            return []
        if spec.scheme is not None and not self.allow_requantize:
            return [
                Problem(
                    name,
                    f"is {spec.encoding} already; quantizing it again would lose twice, "
                    "allow_requantize=true does it all the same",
                )
            ]
        if spec.dtype not in FLOAT_DTYPES:
            return [Problem(name, f"holds {spec.dtype}, which is not floating point; add a rule that keeps it")]
        misfit = scheme.problem(spec.shape)
        return [Problem(name, f"{misfit}; add a rule that keeps it")] if misfit else []


def choose(
    rules: Iterable[Rule], roles: Mapping[str, tuple[str, ...]], methods: Iterable[str], specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, str], list[Problem]]:
    """Tensor → the name of its method, for those not kept; and a problem for every rule that cannot apply."""
    problems, patterns, tos = [], [], []
    for i, rule in enumerate(rules):
        where = f"quantize rule {i} ({rule})"
        if rule.to not in ("keep", *methods):
            problems.append(Problem(where, f"to {rule.to!r} is no method{did_you_mean(rule.to, ['keep', *methods])}"))
        if rule.role is not None and rule.role not in roles:
            problems.append(Problem(where, f"the model has no such role{did_you_mean(rule.role, roles)}"))
            continue
        wanted = roles[rule.role] if rule.role is not None else (rule.match or "",)
        if not any(fnmatchcase(n, w) for n in specs for w in wanted):
            given = " ".join(wanted)
            problems.append(Problem(where, f"matches none of the {len(specs)} tensors{did_you_mean(given, specs)}"))
        patterns.append(wanted)
        tos.append(rule.to)
    chosen = {}
    for name in specs:
        to = next(
            (t for t, wanted in zip(tos, patterns, strict=True) if any(fnmatchcase(name, w) for w in wanted)), "keep"
        )
        if to != "keep":
            chosen[name] = to
    return {n: to for n, to in chosen.items() if to in methods}, problems


@dataclass(frozen=True)
class CodedStore(StoreView):
    """The lazy view: encode (or, for a method without a scheme, decode) the named tensors box by box.

    Attributes:
        store: what is read.
        methods: tensor → its method.
        measure: add up what encoding loses.
        plain: as in `Quantize`.
        extremes: of whole matrices and rows, for methods that need them.
    """

    store: TensorStore
    methods: Mapping[str, Method]
    measure: bool
    plain: Literal["bf16", "keep"] = "bf16"
    extremes: ExtremesOf = field(default_factory=ExtremesOf, compare=False, repr=False)

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        plain = "F32" if self.plain == "keep" else "BF16"
        coded = {
            n: replace(self.store.specs[n], dtype="BF16" if m.scheme is not None else plain, scheme=m.scheme)
            for n, m in self.methods.items()
        }
        return {n: coded.get(n, spec) for n, spec in self.store.specs.items()}

    def grain(self, name: str) -> tuple[int, ...]:
        """As of the source and of the scheme; whole rows, where a scale that they share wants to see them."""
        found, method = super().grain(name), self.methods.get(name)
        if method is None or method.scheme is None:
            return found
        shape = self.specs[name].shape
        found = common(found, block_grain(method.scheme, shape))
        if (
            method.scheme.block_elems == 0
            and method.scheme.block_rows
            and not optional(method, MethodHooks, "cuts_rows")
        ):
            found = (*found[:-1], max(1, shape[-1]))
        return found

    def scratch(self, name: str) -> int:
        """What the method takes to make codes, beside what the source does."""
        method, below = self.methods.get(name), super().scratch(name)
        asked = optional(method, MethodHooks, "scratch") if method is not None and method.scheme is not None else None
        return below + (asked(self.specs[name].shape) if asked is not None else 0)

    def read(self, name: str, index: Index = ()) -> Any:
        """
        Raises:
            IndexError: a box that cuts a block.
            ValueRangeError: a value that the scheme cannot hold; says the tensor and the place.
        """
        method = self.methods.get(name)
        if method is None:
            return self.store.read(name, index)
        spec = self.specs[name]
        box = normalize(index, spec.shape)
        if spec.scheme is not None:
            whole_blocks(spec.scheme, spec.shape, box)
        outer = outward(box, spec.shape, block_grain(self.store.specs[name].scheme, spec.shape))
        value = self.store.read(name, outer)
        if isinstance(value, QTensor):
            # What is encoded again is encoded, and its error measured, from what was held exactly.
            value = method.decode(value, "F32" if spec.scheme is not None else spec.dtype)
        if outer != box:  # the source has larger blocks
            value = value[tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))]
        if spec.scheme is None:
            return checked(value, spec, box, name)
        try:
            coded = method.encode(value, measure=self.measure, **self._wider(method, name, box))
        except ValueRangeError as why:
            at = ",".join(f"{s.start}:{s.stop}" for s in box)
            raise ValueRangeError(f"{name}[{at}]: {why}") from None
        if self.measure:
            coded, stats = coded
            meter.error(name, stats)
        return checked(coded, spec, box, name)

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        """With what is read to see what these boxes are a part of, once a process."""
        spec, method = self.specs[name], self.methods.get(name)
        wanted = [normalize(box, spec.shape) for box in boxes]
        if method is None:
            return super().read_nbytes(name, wanted)
        grain = block_grain(self.store.specs[name].scheme, spec.shape)
        read = [outward(box, spec.shape, grain) for box in wanted]
        if method.scheme is not None and method.needs_extremes:
            read += scanned(spec.shape, wanted)
        if (rows := _rows(method)) is not None:
            read += scanned(spec.shape, wanted, rows)
        return super().read_nbytes(name, read)

    def _wider(self, method: Method, name: str, box: tuple[slice, ...]) -> dict[str, Any]:
        """What a method must know of the whole tensor, when the box is only part of it."""
        more: dict[str, Any] = {}
        if method.needs_extremes:
            more["observed"] = self.extremes.box(self.store, name, box, method.decode)
        if (rows := _rows(method)) is not None:
            more["rows"] = self.extremes.bands(self.store, name, box, rows, method.decode)
        if optional(method, MethodHooks, "needs_place"):
            more["place"] = (name, self.store.specs[name].shape, tuple(s.start for s in box))
        return more


def _rows(method: Method) -> int | None:
    """How many rows share a scale with all of what they are cut from; None: that is not so, or it sees them whole."""
    scheme = method.scheme
    if scheme is None or scheme.block_elems or not optional(method, MethodHooks, "cuts_rows"):
        return None
    return scheme.block_rows
