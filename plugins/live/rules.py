"""Rules of a call, and what they choose: which tensors take which method."""

from collections.abc import Mapping
from typing import Any

from pipeline.api import quant_method
from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.method import Method, fitted
from pipeline.rules import Rule, choose, misfit
from pipeline.tensors.spec import TensorSpec
from plugins.live.devices import obstacle, unmade

Rules = Mapping[str, "str | Method"]
"""Pattern of names → `quant`, `keep`, the name of a quant option, or a method; the first that matches decides."""


def methods_of(quant: str | Method, rules: Rules) -> tuple[tuple[Rule, ...], dict[str, Method]]:
    """The rules as a pipeline has them, and the methods that they name."""
    found = {"quant": quant_method(quant) if isinstance(quant, str) else quant}
    listed = []
    for pattern, to in rules.items():
        if not isinstance(to, str):
            name = next((n for n, m in found.items() if m is to), f"the method of {pattern!r}")
            found[name], to = to, name
        elif to not in ("keep", *found):
            found[to] = quant_method(to)
        listed.append(Rule(to, match=pattern))
    return tuple(listed), found


def chosen(
    tensors: Mapping[str, Any],
    specs: Mapping[str, TensorSpec],
    quant: str | Method,
    rules: Rules,
    *,
    unfit: Mapping[str, str],
    again: bool,
    on_host: bool,
) -> dict[str, Method]:
    """Tensor → its method, of those that are not kept and are not in its scheme already.

    Args:
        tensors: name → array or QTensor, or shapes of them, as it is to be packed.
        unfit: tensors that cannot be packed, whatever the scheme, and why.
        again: see `pipeline.rules.misfit`.
        on_host: methods may make codes on the host that no device can make.

    Raises:
        PlanError: rules that match nothing, tensors that do not fit their scheme or whose blocks devices would cut, and
            methods that pack nothing, or that no device can do; all of them at once.
    """
    listed, methods = methods_of(quant, rules)
    found, problems = choose(listed, {}, methods, specs)
    takes = {name: fitted(methods[to], specs[name].shape) for name, to in found.items()}
    for name, to in found.items():
        scheme = takes[name].scheme
        if scheme is None:
            problems.append(Problem(name, f"{to!r} packs nothing; dequantize unpacks, and rules may say `keep`"))
        elif specs[name].scheme != scheme:
            keep = f"; rules={{{name!r}: 'keep', …}} keeps it"
            why = unfit.get(name) or misfit(specs[name], scheme, again=again, keep=keep)
            why = why or obstacle(tensors[name], scheme)
            if not (why or on_host) and (no := unmade(tensors[name], takes[name])):
                why = f"cannot be packed on its devices ({no}); on_host=True makes its codes on the host"
            problems += [Problem(name, why)] if why else []
    if not found and not problems:
        said = "; ".join(map(str, listed))
        problems.append(Problem("rules", f"leave every tensor as it is ({said}){did_you_mean('', specs)}"))
    if problems:
        raise PlanError(problems)
    return {n: method for n, method in takes.items() if specs[n].scheme != method.scheme}
