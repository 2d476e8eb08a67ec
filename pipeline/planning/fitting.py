"""Whether the tensors of a checkpoint are those of the model that its config.json describes, by specs alone.

Plans ask this before anything is read, and so does what loads a model: of the same parameters, in the same words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.errors import MOST_HINTS, Problem, did_you_mean, strangers
from pipeline.mesh import Parameter
from pipeline.tensors.spec import TensorSpec, group_of

HELD: Final = ("BF16", "F16", "F32")  # that plain weights may be
# Logical axis → the keys of config.json that say how long it is, as families call them; of several that are there,
# those that say the very number, and else all.
KEYS: Final = {
    "vocab": ("vocab_size",),
    "embed": ("hidden_size", "hidden_sizes", "outputs"),
    "mlp": ("intermediate_size", "moe_intermediate_size"),
    "heads": ("num_attention_heads", "head_dim"),
    "kv_heads": ("num_key_value_heads", "head_dim"),
    "head": ("head_dim", "hidden_sizes", "inputs"),
    "experts": ("num_experts", "num_local_experts"),
    "experts_out": ("num_experts", "num_local_experts"),
}
COUNTS: Final = ("num_hidden_layers", "hidden_sizes")  # of layers; a list has one for each
_LAYER = re.compile(r"(?:.*?\.)?layers\.(\d+)\.")


def misfits(
    parameters: Sequence[Parameter],
    specs: Mapping[str, TensorSpec],
    config: Mapping[str, Any],
    held: Mapping[str, TensorSpec] | None = None,
) -> Iterator[Problem]:
    """What is missing, of another shape or dtype than config.json makes it, or left over.

    Args:
        parameters: of the model.
        specs: tensor → as the checkpoint has it; without those that the model is known not to read.
        config: config.json, for the names of the keys.
        held: tensor → as it lies on the device, by which tensors are stacked; by default as the checkpoint has it.
    """
    asked = {name: p for p in parameters for name in p.names}
    counted, others = _layers(asked, specs, config)
    yield from counted
    alike: dict[tuple[str, str], list[str]] = {}
    missing = 0
    for name, parameter in asked.items():
        if others and _layer(name) in others:
            continue
        shape = parameter.shape[1:] if parameter.stack else parameter.shape
        spec = specs.get(name)
        if spec is None:
            yield Problem(name, f"is missing{did_you_mean(name, specs) if missing < MOST_HINTS else ''}")
            missing += 1
        elif spec.shape != shape:
            said = _shape(spec.shape, parameter, config)
            alike.setdefault((group_of(name), said), []).append(name)
        elif spec.scheme is None and spec.dtype not in HELD:
            yield Problem(name, f"is {spec.dtype}; {', '.join(HELD)} or a packed encoding is needed")
    for (_, said), (name, *more) in alike.items():
        yield Problem(name, f"{said}; and so have {len(more)} more like it" if more else said)
    yield from _unlike(parameters, held or specs)
    rest = [name for name in specs if name not in asked and not (others and _layer(name) in others)]
    yield from strangers(rest, asked, "no part of the model takes it")


def _shape(found: tuple[int, ...], parameter: Parameter, config: Mapping[str, Any]) -> str:
    """What is wrong with a shape, and which keys of config.json say otherwise."""
    first = 1 if parameter.stack else 0
    shape, axes = parameter.shape[first:], parameter.axes[first:]
    text = f"has shape {list(found)}; config.json makes it {list(shape)}"
    wrong = [i for i, n in enumerate(shape) if len(found) != len(shape) or found[i] != n]
    keys = dict.fromkeys(key for i in wrong for key in _keys(axes[i], shape[i], config))
    text += f", by {' and '.join(keys)}" if keys else ""
    return f"{text}: it lies transposed" if found == shape[::-1] else text


def _keys(axis: str, size: int, config: Mapping[str, Any]) -> list[str]:
    """The keys of config.json that say how long a dimension is, and what they say."""
    there = {key: config[key] for key in KEYS.get(axis, ()) if config.get(key) is not None}
    exactly = {key: n for key, n in there.items() if n == size or (isinstance(n, list) and size in n)}
    return [f"{key} {n!r:.60}" for key, n in (exactly or there).items()]


def _layers(
    asked: Mapping[str, Any], specs: Mapping[str, TensorSpec], config: Mapping[str, Any]
) -> tuple[list[Problem], frozenset[int]]:
    """Where the checkpoint has other layers than config.json counts, which is said once; and which ones these are."""
    key = next((key for key in COUNTS if config.get(key) is not None), None)
    if key is None or asked.keys() == specs.keys():
        return [], frozenset()
    ours, theirs = ({i for name in names if (i := _layer(name)) is not None} for names in (asked, specs))
    if ours == theirs or not theirs:
        return [], frozenset()
    others = ours ^ theirs
    first = next(name for name in (*asked, *specs) if _layer(name) in others)
    has = "and no" if ours - theirs else "among them"
    text = f"{config[key]!r:.60}, and the checkpoint has tensors of {len(theirs)} layers, {has} {first}"
    return [Problem(f"config.json {key}", text)], frozenset(others)


def _layer(name: str) -> int | None:
    """Which layer a tensor is of; None: of none."""
    found = _LAYER.match(name)
    return None if found is None else int(found[1])


def _unlike(parameters: Sequence[Parameter], held: Mapping[str, TensorSpec]) -> Iterator[Problem]:
    """Parameters of several tensors that lie in different encodings, so that they are no one array."""
    for parameter in parameters:
        found = [held[name] for name in parameter.names if name in held] if parameter.stack else []
        if any((s.dtype, s.scheme) != (found[0].dtype, found[0].scheme) for s in found):
            kinds = ", ".join(sorted({s.encoding for s in found}))
            text = f"{len(parameter.names)} tensors are stacked into one, but their encodings differ: {kinds}"
            yield Problem(parameter.name, text)
