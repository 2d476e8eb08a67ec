"""Rules: which tensors take which method, and which stay as they are; by the names that tensors have."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pipeline.errors import Problem, did_you_mean
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec

EXTRA = "model.extra_rules"


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

    def patterns(self, roles: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """The patterns of names that it is for; none where the model has no such role."""
        return roles.get(self.role, ()) if self.role is not None else (self.match or "",)

    def about(self, name: str, roles: Mapping[str, Sequence[str]]) -> bool:
        """Whether it is for the tensor `name`."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns(roles))

    @property
    def typed(self) -> str:
        """As it stands in an override: `{role: attention, to: keep}`."""
        which = f"role: {self.role}" if self.role is not None else f"match: {_in_quotes(self.match or '')}"
        return f"{{{which}, to: {self.to}}}"


def added(rules: Iterable[Rule]) -> str:
    """The override that puts `rules` before those of the model."""
    return f"{EXTRA}=[{', '.join(rule.typed for rule in rules)}]"


def merged(to: Mapping[str, str], names: Iterable[str]) -> list[Rule]:
    """The rules that give every tensor of `to` what it says, and no other of `names` anything.

    Of tensors that differ in numbers alone (`model.layers.*.mlp.up_proj.weight`) what most of them take is one rule,
    behind one for each of the others.
    """
    names, kinds = list(names), dict[str, list[str]]()
    for name in to:
        kinds.setdefault(".".join("*" if part.isdigit() else part for part in name.split(".")), []).append(name)
    single, several = [], []
    for kind, of in kinds.items():
        most = Counter(to[n] for n in of).most_common(1)[0][0]
        pattern = named(kind)
        alone = len(of) == 1 or any(fnmatchcase(n, pattern) for n in names if n not in of)
        several += [] if alone else [Rule(most, pattern)]
        single += [Rule(to[n], named(n)) for n in of if alone or to[n] != most]
    return [*single, *several]


def named(names: str) -> str:
    """The pattern that matches these names and takes no bracket of theirs for a set of characters; stars stay."""
    return names.replace("[", "[[]")


def _in_quotes(text: str) -> str:
    """`text` in Hydra's double quotes, in which a backslash counts before a quote only."""
    return '"' + re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + ('\\"' if m[2] else ""), text) + '"'


def choose(
    rules: Iterable[Rule], roles: Mapping[str, tuple[str, ...]], methods: Iterable[str], specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, str], list[Problem]]:
    """Tensor → the name of its method, for those not kept; and a problem for every rule that cannot apply."""
    problems, patterns, tos = [], [], []
    for rule in rules:
        where = f"rule {rule.match or rule.role}={rule.to}"
        if rule.to not in ("keep", *methods):
            problems.append(Problem(where, f"{rule.to!r} is no method{did_you_mean(rule.to, ['keep', *methods])}"))
        if rule.role is not None and rule.role not in roles:
            problems.append(Problem(where, f"the model has no such role{did_you_mean(rule.role, roles)}"))
            continue
        wanted = rule.patterns(roles)
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


def misfit(spec: TensorSpec, scheme: Scheme | None, *, again: bool = False, keep: str = "") -> str | None:
    """Why a tensor of `spec` cannot be quantized to `scheme` (None: unpacked), or None.

    Args:
        again: whether what is packed in another scheme may be quantized once more.
        keep: what is to be said of a tensor that can only be kept.
    """
    if scheme is None or spec.scheme == scheme:
        return None
    if spec.scheme is not None and not again:
        return (
            f"packed already, as {spec.encoding}, and quantizing again would lose twice; better begin with the "
            "unquantized checkpoint, leave out quant=, which keeps what is packed, or type allow_requantize=true to do "
            "it all the same"
        )
    reason = unfit(spec, scheme)
    return f"{reason}{keep}" if reason else None


def unfit(spec: TensorSpec, scheme: Scheme | None) -> str | None:
    """Why no tensor of this shape and dtype can be in `scheme`, or None."""
    if scheme is None or spec.scheme == scheme:
        return None
    if spec.dtype not in FLOAT_DTYPES:
        return f"holds {spec.dtype}, which is not floating point"
    return scheme.problem(spec.shape)
