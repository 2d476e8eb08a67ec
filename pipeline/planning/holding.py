"""Which options of `export=` can hold a checkpoint: each is asked for a binding, and nothing is written."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipeline.errors import PlanError, Problem, WeightmillError, shown, some
from pipeline.formats import Container, Dialect, DialectHooks
from pipeline.hooks import optional
from pipeline.tensors.binding import Binding
from pipeline.tensors.spec import TensorSpec, encodings, group_of
from pipeline.units import show_bytes

MOST_REASONS = 6

Encode = Callable[[Dialect, Mapping[str, TensorSpec]], Binding]
"""A dialect's binding of tensors of the checkpoint, or PlanError: why it has none."""


@dataclass(frozen=True)
class Option:
    """An option of `export=`, its fields those of `conf/export/*.yaml`, which `stages.export.Export` explains.

    Attributes:
        nvfp4_second: what `quant=nvfp4` takes for its second scale, so that this option can hold it.
        embedding: what becomes of an embedding by the rules of `quant=` itself: `keep` where no reader takes it packed.
    """

    dialect: Dialect
    container: Container
    max_shard_size: str | None = None
    path: str | None = None
    dtype: Literal["keep", "bf16", "fp16", "fp32"] = "keep"
    overflow: Literal["error", "clamp"] = "error"
    nvfp4_second: str = "f32"
    embedding: Literal["quant", "keep"] = "quant"


def choose(
    prefer: Iterable[str], options: Mapping[str, Option], specs: Mapping[str, TensorSpec], encode: Encode
) -> tuple[str, Binding, str]:
    """The first option that holds everything, its binding, and why it was chosen.

    A dialect whose `own` schemes are among them is asked first.

    Raises:
        PlanError: none does; one problem with the reason of each, and what can hold it all the same.
    """
    schemes = {spec.scheme for spec in specs.values() if spec.scheme is not None}
    order = sorted(prefer, key=lambda name: not schemes & {*optional(options[name].dialect, DialectHooks, "own")})
    refused: dict[str, PlanError] = {}
    for name in order:
        try:
            binding = encode(options[name].dialect, specs)
        except PlanError as why:
            refused[name] = why
        else:
            passed = f" ({', '.join(refused)} cannot hold it)" if refused else ""
            return name, binding, f"{name}, chosen for {_encodings(specs)}{passed}"
    reasons = "".join(f"\n    {name}: {_first(why)}" for name, why in refused.items())
    text = (
        f"nothing that export=auto chooses from holds {_encodings(specs)}{_that_hold(options, refused, specs, encode)}"
    )
    raise PlanError([Problem("export", text + reasons)])


def hold(dialect: Dialect, options: Mapping[str, Option], specs: Mapping[str, TensorSpec], encode: Encode) -> Binding:
    """The binding of the dialect that was asked for.

    Raises:
        PlanError: it has none. Where others of `options` have, one problem that says why not and which; else its own.
    """
    try:
        return encode(dialect, specs)
    except PlanError as why:
        given = _named(dialect, options)
        others = _that_hold(options, [given], specs, encode)
        if not others:
            raise
        name = f"export={given}" if given else type(dialect).__name__
        raise PlanError([Problem("export", f"{name} cannot hold this{others}{_reasons(why)}")]) from None


def unheld(
    dialects: Iterable[Dialect], specs: Mapping[str, TensorSpec], may: frozenset[str], encode: Encode
) -> "Unheld":
    """Which of the packed tensors `may` are to be values, so that one of `dialects` holds all the rest as it is: as few
    bytes of them as can be, and every one where it is not the encoding that is in the way."""
    found = [_unheld(dialect, specs, may, encode) for dialect in dialects]
    return min(found, key=lambda one: sum(specs[n].nbytes for n in one.names))


@dataclass(frozen=True)
class Unheld:
    """Packed tensors that are to be unpacked.

    Attributes:
        names: which.
        dialect: what does not hold them as they are.
    """

    names: frozenset[str] = frozenset()
    dialect: Dialect | None = None

    def said(self, options: Mapping[str, Option], specs: Mapping[str, TensorSpec], encode: Encode) -> str:
        """What becomes of them, for people; `specs` are those before."""
        packed = {n: specs[n] for n in specs if n in self.names}
        before, after = sum(s.nbytes for s in packed.values()), sum(2 * s.size for s in packed.values())
        groups = some(list(dict.fromkeys(map(group_of, packed))), most=2)
        given = _named(self.dialect, options)
        why = f"{f'export={given}' if given else type(self.dialect).__name__} does not hold that packed"
        size = f"{show_bytes(before)} in the source, {show_bytes(after)} as bf16"
        others = _that_hold(options, [given], specs, encode)
        return f"{groups} ({_encodings(packed)}) unpacked, {size}: {why}{others}"


def _unheld(dialect: Dialect, specs: Mapping[str, TensorSpec], may: frozenset[str], encode: Encode) -> Unheld:
    names: frozenset[str] = frozenset()
    while names != may:
        try:
            encode(dialect, {n: replace(s, dtype="BF16", scheme=None) if n in names else s for n, s in specs.items()})
        except PlanError as why:
            more = frozenset(p.where for p in why.problems) & may - names
            names = names | more if more else may
        else:
            break
    return Unheld(names, dialect)


def _named(dialect: Dialect | None, options: Mapping[str, Option]) -> str | None:
    """The option that has such a dialect."""
    return next((n for n, o in options.items() if type(o.dialect) is type(dialect)), None)


def _that_hold(
    options: Mapping[str, Option], refused: Iterable[str | None], specs: Mapping[str, TensorSpec], encode: Encode
) -> str:
    able = []
    for name, option in options.items():
        if name not in {*refused}:
            try:
                encode(option.dialect, specs)
            except WeightmillError:
                continue
            able.append(f"export={name}")
    return f"; {', '.join(able)} can" if able else ""


def _encodings(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(encodings(specs.values())) or "plain values"


def _first(why: PlanError) -> str:
    problem = why.problems[0]
    return f"{group_of(problem.where)} {problem.message}"


def _reasons(why: PlanError) -> str:
    """A line for each thing that is wrong, however many tensors it is wrong with."""
    groups: dict[str, list[str]] = {}
    for problem in why.problems:
        groups.setdefault(problem.message, []).append(group_of(problem.where))
    lines = []
    for text, names in groups.items():
        kinds = dict.fromkeys(names)
        more = f" and {len(kinds) - 1} others" if len(kinds) > 1 else ""
        lines.append(f"{names[0]}{more}{f' (×{len(names)})' if len(names) > 1 else ''}: {text}")
    return "".join(f"\n    {text}" for text in shown(lines, most=MOST_REASONS))
