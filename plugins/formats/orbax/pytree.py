"""A flat pytree `{tensor name: array or QTensor}`: logical tensors as they are, a leaf for each component.

    leaf            for a tensor NAME
    NAME            plain
    NAME.codes      the components of a QTensor, under their key paths (`pipeline.tensors.pytree`),
    NAME.scales     in the shapes and dtypes of its scheme
    NAME.zeros
    NAME.second

Nothing is packed or turned around: matrices are [..., out, in]. What bytes do not say, scheme and the dtype that a
QTensor decodes to, is a JSON object that a container keeps for us and hands back:

    {"pytree": {"version": 1, "tensors": {NAME: {"dtype": "BF16", "scheme": {"element": "e2m1", …}}}}}
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.formats.common.linears import leaf_problems

KEY = "pytree"
VERSION = 1
SCHEME_FIELDS = frozenset(f.name for f in fields(Scheme))


@dataclass(frozen=True, slots=True)
class Pytree:
    """Every tensor under its own name, quantized ones by component; any scheme, any mixture. It knows no model."""

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By what only a container of trees hands over."""
        return KEY in config

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. Arrays that nothing says a scheme of are plain tensors."""
        described = _described(config[KEY])
        problems: list[Problem] = []
        tensors: dict[str, Bound] = {}
        owner = {f"{name}.{c}": name for name, (scheme, _) in described.items() for c in scheme.dtypes}
        for leaf, spec in leaves.items():
            name = owner.get(leaf)
            if name is None:
                tensors[leaf] = Bound(spec, (Part(leaf),))
            elif name not in tensors:
                bound = _quantized(name, *described[name], leaves)
                problems += [bound] if isinstance(bound, Problem) else leaf_problems(bound, leaves, _because(bound))
                if isinstance(bound, Bound):
                    tensors[name] = bound
        for name in described:
            if f"{name}.codes" not in leaves:
                hint = did_you_mean(name, (n.removesuffix(".codes") for n in leaves if n.endswith(".codes")))
                problems.append(Problem(f"{name}.codes", f"missing; custom_metadata says that it is quantized{hint}"))
        problems += _undescribed(leaves, owner)
        if problems:
            raise PlanError(dict.fromkeys(problems))
        return Binding(tensors, dict(leaves), _model(config))

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`; takes everything but two tensors for one leaf."""
        bounds = {name: Bound(spec, _parts(name, spec.scheme)) for name, spec in tensors.items()}
        owner = {f"{n}.{c}": n for n, s in tensors.items() if s.scheme is not None for c in s.scheme.dtypes}
        problems = [Problem(n, f"is the name of a component of {owner[n]} too") for n in tensors if n in owner]
        if problems:
            raise PlanError(problems)
        return Binding(
            tensors=bounds,
            leaves=stored_leaves(bounds),
            config=_model(config),
            metadata=describe(tensors),
        )


def describe(specs: Mapping[str, TensorSpec]) -> dict[str, Any]:
    """What a container has to keep, so that the quantized tensors among `specs` can be told again. Pure JSON."""
    tensors = {n: {"dtype": s.dtype, "scheme": asdict(s.scheme)} for n, s in specs.items() if s.scheme is not None}
    return {KEY: {"version": VERSION, "tensors": tensors}}


def _model(config: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in (KEY, "quantization_config")}


def _described(given: Any) -> dict[str, tuple[Scheme, str]]:
    """Name → scheme and dtype; nothing when the container kept nothing.

    Raises:
        PlanError: not what `describe` gives.
    """
    if given == {}:
        return {}
    version, tensors = (given.get("version"), given.get("tensors")) if isinstance(given, Mapping) else (None, None)
    if version != VERSION or not isinstance(tensors, Mapping):
        text = (
            f"version {version!r:.40} with tensors {type(tensors).__name__}; version {VERSION} with an object is read"
        )
        raise PlanError([Problem(KEY, text)])
    found, problems = {}, []
    for name, entry in tensors.items():
        try:
            if set(entry) != {"dtype", "scheme"} or set(entry["scheme"]) != SCHEME_FIELDS:
                raise ConfigError(f"must have dtype and a scheme with exactly {', '.join(sorted(SCHEME_FIELDS))}")
            if entry["dtype"] not in DTYPE_BITS:
                raise ConfigError(f"dtype {entry['dtype']!r:.40} is unknown")
            scheme = Scheme(**entry["scheme"])
        except (ConfigError, TypeError) as why:
            problems.append(Problem(name, f"custom_metadata: {why}"))
        else:
            found[name] = (scheme, entry["dtype"])
    if problems:
        raise PlanError(problems)
    return found


def _quantized(name: str, scheme: Scheme, dtype: str, leaves: Mapping[str, TensorSpec]) -> Bound | Problem:
    """The tensor whose codes have the shape they have."""
    codes = leaves.get(f"{name}.codes")
    if codes is None or not codes.shape:
        return Problem(f"{name}.codes", "missing or a scalar; custom_metadata says that it is quantized")
    *lead, packed = codes.shape
    columns, nbytes = scheme.period
    spec = TensorSpec((*lead, packed * columns // nbytes), dtype, scheme)
    reason = scheme.problem(spec.shape)
    return Problem(f"{name}.codes", reason) if reason else Bound(spec, _parts(name, scheme))


def _parts(name: str, scheme: Scheme | None) -> tuple[Part, ...]:
    return (Part(name),) if scheme is None else tuple(Part(f"{name}.{c}", c) for c in scheme.dtypes)


def _because(bound: Bound) -> str:
    return f"{bound.spec.encoding} of {list(bound.spec.shape)}"


def _undescribed(leaves: Mapping[str, TensorSpec], owner: Mapping[str, str]) -> list[Problem]:
    """QTensors that were saved without a word about their schemes."""
    cure = "save it with custom_metadata=plugins.formats.orbax.tree.describe(tree)"
    return [
        Problem(leaf.removesuffix(".codes"), f"has codes and scales, and nothing says in which scheme; {cure}")
        for leaf, spec in leaves.items()
        if leaf.endswith(".codes") and spec.dtype == "U8" and leaf not in owner
        if f"{leaf.removesuffix('.codes')}.scales" in leaves
    ]
