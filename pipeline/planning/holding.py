"""Which options of `export=` can hold a checkpoint: each is asked for a binding, and nothing is written."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import PlanError, Problem, WeightmillError, shown
from pipeline.formats import Container, Dialect, DialectHooks
from pipeline.hooks import optional
from pipeline.tensors.binding import Binding
from pipeline.tensors.spec import TensorSpec, group_of

MOST_REASONS = 6

Encode = Callable[[Dialect], Binding]
"""A dialect's binding of the checkpoint, or PlanError: why it has none."""


@dataclass(frozen=True)
class Option:
    """An option of `export=`, its fields those of `conf/export/*.yaml`, which `stages.export.Export` explains.

    Attributes:
        nvfp4_second: what `quant=nvfp4` takes for its second scale, so that this option can hold it.
    """

    dialect: Dialect
    container: Container
    max_shard_size: str | None = None
    path: str | None = None
    dtype: Literal["keep", "bf16", "fp16", "fp32"] = "keep"
    overflow: Literal["error", "clamp"] = "error"
    nvfp4_second: str = "f32"


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
            binding = encode(options[name].dialect)
        except PlanError as why:
            refused[name] = why
        else:
            passed = f" ({', '.join(refused)} cannot hold it)" if refused else ""
            return name, binding, f"{name}, chosen for {_encodings(specs)}{passed}"
    reasons = "".join(f"\n    {name}: {_first(why)}" for name, why in refused.items())
    text = f"nothing that export=auto chooses from holds {_encodings(specs)}{_that_hold(options, refused, encode)}"
    raise PlanError([Problem("export", text + reasons)])


def hold(dialect: Dialect, options: Mapping[str, Option], encode: Encode) -> Binding:
    """The binding of the dialect that was asked for.

    Raises:
        PlanError: it has none. Where others of `options` have, one problem that says why not and which; else its own.
    """
    try:
        return encode(dialect)
    except PlanError as why:
        given = next((n for n, o in options.items() if type(o.dialect) is type(dialect)), None)
        others = _that_hold(options, [given], encode)
        if not others:
            raise
        name = f"export={given}" if given else type(dialect).__name__
        raise PlanError([Problem("export", f"{name} cannot hold this{others}{_reasons(why)}")]) from None


def _that_hold(options: Mapping[str, Option], refused: Iterable[str | None], encode: Encode) -> str:
    able = []
    for name, option in options.items():
        if name not in {*refused}:
            try:
                encode(option.dialect)
            except WeightmillError:
                continue
            able.append(f"export={name}")
    return f"; {', '.join(able)} can" if able else ""


def _encodings(specs: Mapping[str, TensorSpec]) -> str:
    """What is packed, the most values first."""
    values: dict[str, int] = {}
    for spec in specs.values():
        if spec.scheme is not None:
            values[spec.encoding] = values.get(spec.encoding, 0) + spec.size
    return ", ".join(sorted(values, key=lambda e: -values[e])) or "plain values"


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
