"""What a quantized export will make of weights, for those who train with it in mind: the rules and methods of the stage
`quantize`, without the stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.assigned import assigned
from pipeline.coded_store import CodedStore
from pipeline.errors import PlanError, Problem
from pipeline.method import Method
from pipeline.rules import Rule
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec


@dataclass(frozen=True)
class Packing:
    """See `stages.quantize.Quantize`, whose fields these are.

    Attributes:
        method: what `to: quant` means.
        rules: the first that matches a tensor decides; a tensor that none matches is kept.
        extra_rules: before `rules`.
        roles: role → name patterns.
        methods: the methods that rules name, beside `quant`.
        allow_requantize: also what is packed in another scheme, which loses twice.
    """

    method: Method
    rules: tuple[Rule, ...]
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    methods: Mapping[str, Method] = field(default_factory=dict)
    allow_requantize: bool = False
    extra_rules: tuple[Rule, ...] = ()

    def chosen(self, specs: Mapping[str, TensorSpec]) -> tuple[dict[str, Method], list[Problem]]:
        """Tensor → the method that it is to take, of those that are not in its scheme; and all that is wrong."""
        known = {"quant": self.method, **self.methods}
        again = self.allow_requantize
        found, problems = assigned(self.rules, self.roles, known, specs, again=again, extra=self.extra_rules)
        if not problems and not any(m.scheme for m in found.values()):
            problems.append(Problem("quant", "packs no tensor, and training is to be for a packed export: quant=NAME"))
        return {n: m for n, m in found.items() if m.scheme not in (None, specs[n].scheme)}, problems

    def applied(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with its tensors packed, where they are read.

        Raises:
            PlanError: see `chosen`.
        """
        methods, problems = self.chosen(checkpoint.store.specs)
        if problems:
            raise PlanError(problems)
        return replace(checkpoint, store=CodedStore(checkpoint.store, methods, measure=False))
