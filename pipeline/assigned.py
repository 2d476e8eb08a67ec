"""Which tensor takes which method: what the rules of a run choose, fitted to the shapes of a checkpoint."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from pipeline.errors import Problem, some
from pipeline.hooks import optional
from pipeline.method import Method, MethodHooks, fitted
from pipeline.rules import Rule, added, choose, misfit, named, unfit
from pipeline.tensors.spec import TensorSpec, group_of

HEAD, EMBEDDING = "head", "embedding"
ALIKE = 4  # tensors with one reason are said together from here on

Roles = Mapping[str, Sequence[str]]


def assigned(
    rules: Sequence[Rule], roles: Mapping[str, tuple[str, ...]], methods: Mapping[str, Method],
    specs: Mapping[str, TensorSpec], *, again: bool, tied: bool = False, extra: Sequence[Rule] = (),
) -> tuple[dict[str, Method], list[Problem]]:  # fmt: skip
    """Tensor → its method, for those not kept; and all that is wrong.

    Args:
        rules: the first that matches a tensor decides; then those that the method `quant` comes with.
        roles: role → name patterns.
        methods: by the names that rules have for them, `quant` among them.
        specs: of all tensors.
        again: whether what is packed may be quantized once more.
        tied: the head is the embedding, whatever is stored.
        extra: rules before `rules`, which whoever adds more has to type again.
    """
    rules = (*extra, *rules)
    own = _own_rules(optional(methods["quant"], MethodHooks, "rules"), roles, specs, tied=tied)
    chosen, problems = choose((*rules, *own), roles, methods, specs)
    takes = {name: methods[to] for name, to in chosen.items()}
    for to in dict.fromkeys(chosen.values()):
        if (mixed := optional(methods[to], MethodHooks, "mixed")) is not None:
            takes |= mixed([name for name, t in chosen.items() if t == to], specs)
    cut: dict[tuple[Method, tuple[int, ...]], Method] = {}
    found = {}
    for name, whole in takes.items():
        shape = specs[name].shape
        if (whole, shape) not in cut:
            cut[whole, shape] = fitted(whole, shape)
        method = cut[whole, shape]
        if not unfit(specs[name], method.scheme) or any(rule.about(name, roles) for rule in rules):
            found[name] = method  # and what the method's own rules would pack, and cannot, stays
    unfitting = [n for n, m in found.items() if unfit(specs[n], m.scheme)]
    keep = f"; {keeping(unfitting, roles, found, extra)}" if unfitting else ""
    wrong = {n: why for n, m in found.items() if (why := misfit(specs[n], m.scheme, again=again, keep=keep))}
    return found, [*problems, *_summed(wrong, len(found))]


def _own_rules(rules: Iterable[Rule], roles: Roles, specs: Iterable[str], *, tied: bool) -> tuple[Rule, ...]:
    """Those that are about something: roles that the model has, and tensors that are there. A head that is the
    embedding goes by its rule for heads, unless embeddings are to be plain."""
    rules, found = list(rules), []
    plain = any(rule.role == EMBEDDING and rule.to == "keep" for rule in rules)
    for rule in rules:
        there = any(rule.about(n, roles) for n in specs)
        if rule.role == HEAD and EMBEDDING in roles and not plain and (tied or not there):
            found.append(Rule(rule.to, role=EMBEDDING))
        found += [rule] if there else []
    return tuple(found)


def keeping(names: Sequence[str], roles: Roles, taken: Iterable[str], extra: Sequence[Rule] = ()) -> str:
    """What keeps `names`, a setting to be typed as it stands: by roles that nothing else quantized has, else by name.

    Args:
        taken: all tensors that are to be quantized.
        extra: rules that stand there already.
    """
    rest = set(names)
    found: list[Rule] = []
    for role, patterns in roles.items():
        of = {n for n in taken if _any(n, patterns)}
        if of and of <= rest:
            rest -= of
            found.append(Rule("keep", role=role))
    found += [Rule("keep", named(group)) for group in dict.fromkeys(group_of(n) for n in names if n in rest)]
    return f"{shlex.quote(added([*found, *extra]))} keeps {'it' if len(names) == 1 else 'them'}"


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


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
