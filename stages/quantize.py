"""Quantize: a list of rules says which tensors take which method and which stay as they are."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from pipeline.coded_store import CodedStore
from pipeline.errors import PlanError, Problem, some
from pipeline.hooks import optional
from pipeline.method import Method, MethodHooks
from pipeline.ops import Call
from pipeline.rules import Rule, choose, misfit
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec

ALIKE = 4  # tensors with one reason are said together from here on


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
        wrong = {
            name: misfit(specs[name], known[to].scheme, again=self.allow_requantize) for name, to in chosen.items()
        }
        problems += _summed({name: why for name, why in wrong.items() if why}, len(chosen))
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


def _summed(wrong: Mapping[str, str], of: int) -> list[Problem]:
    """A problem for each tensor; or where many have the same reason, one that says it once."""
    by_reason: dict[str, list[str]] = {}
    for name, why in wrong.items():
        by_reason.setdefault(why, []).append(name)
    found = []
    for why, names in by_reason.items():
        if len(names) < ALIKE:
            found += [Problem(name, why) for name in names]
        else:
            patterns = list(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))
            found.append(Problem(f"{len(names)} of {of} tensors that quant= is for", f"{why}: {some(patterns)}"))
    return found
