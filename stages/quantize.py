"""Quantize: a list of rules says which tensors take the chosen method and which stay as they are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from pipeline import meter
from pipeline.errors import Problem, PlanError, ValueRangeError, did_you_mean
from pipeline.method import Method
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore


@dataclass(frozen=True)
class Rule:
    """Tensors whose name matches `match` (shell pattern) take the method (`quant`) or stay as they are (`keep`)."""

    match: str
    to: Literal["quant", "keep"] = "quant"


@dataclass(frozen=True)
class Quantize:
    """Quantize the tensors that the rules select. A tensor already in the method's scheme passes bit for bit.

    Attributes:
        method: how values become codes, and back.
        rules: the first whose pattern matches a tensor decides; a tensor that none matches is kept.
        measure: compute the error of every quantized tensor (decodes each slice once more).
    """

    method: Method
    rules: tuple[Rule, ...]
    measure: bool = True

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            PlanError: a rule matches nothing, or a selected tensor does not fit the scheme; all of them at once.
        """
        specs = checkpoint.store.specs
        selected, problems = select(self.rules, specs)
        scheme = self.method.scheme
        for name in selected:
            problems += _misfits(name, specs[name], scheme)
        if problems:
            raise PlanError(problems)
        if scheme is None:  # unquantized: only what is packed needs work
            todo = frozenset(n for n in selected if specs[n].scheme is not None)
        else:
            todo = frozenset(n for n in selected if specs[n].scheme is None)
        return replace(checkpoint, store=MappedStore(checkpoint.store, Coded(self.method, todo, self.measure)))


def select(rules: Iterable[Rule], specs: Mapping[str, TensorSpec]) -> tuple[list[str], list[Problem]]:
    """Names of the tensors that take the method, and a problem for every rule that matches no tensor."""
    rules = list(rules)
    problems = [
        Problem(
            f"quantize rule {i} {rule.match!r}",
            f"matches none of the {len(specs)} tensors{did_you_mean(rule.match, specs)}",
        )
        for i, rule in enumerate(rules)
        if not any(fnmatchcase(n, rule.match) for n in specs)
    ]
    decided = {n: next((r.to for r in rules if fnmatchcase(n, r.match)), "keep") for n in specs}
    return [n for n, to in decided.items() if to == "quant"], problems


def _misfits(name: str, spec: TensorSpec, scheme: Any) -> list[Problem]:
    if scheme is None or spec.scheme == scheme:
        return []
    if spec.scheme is not None:
        return [Problem(name, f"is {spec.encoding} already; quantizing it again to another scheme would lose more")]
    if spec.dtype not in FLOAT_DTYPES:
        return [Problem(name, f"holds {spec.dtype}, which is not floating point; add a rule that keeps it")]
    misfit = scheme.problem(spec.shape)
    return [Problem(name, f"{misfit}; add a rule that keeps it")] if misfit else []


@dataclass(frozen=True, slots=True)
class Coded:
    """The lazy transform: encode (or, for an unquantized target, decode) the named tensors slice by slice."""

    method: Method
    names: frozenset[str]
    measure: bool

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype="BF16", scheme=self.method.scheme) if name in self.names else spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        if name not in self.names:
            return value
        if isinstance(value, QTensor):
            return self.method.decode(value, "BF16")
        try:
            if not self.measure:
                return self.method.encode(value)
            coded, stats = self.method.encode(value, measure=True)
        except ValueRangeError as why:
            box = ",".join(f"{s.start}:{s.stop}" for s in index)
            raise ValueRangeError(f"{name}[{box}]: {why}") from None
        meter.error(name, stats)
        return coded
