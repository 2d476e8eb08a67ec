"""The kernel calls that a model will make, from its tensors' specs and config.json alone, without a framework.

Every family names its parameters as Hugging Face does, and the name says the op: experts are the op `moe`, norms
`rms_norm`, other matrices `matmul`. What the constructors make of the same tensors is compared with this in
tests/unit/models/test_calls.py.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.ops import Call
from pipeline.tensors.spec import TensorSpec
from plugins.models.common.ops import Ops

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_EXPERT = re.compile(r"(?P<moe>.*\.experts)\.(?:(?P<number>\d+)\.)?(?P<part>gate_up|gate|up|down)_proj(?:\.weight)?")


def calls(
    specs: Mapping[str, TensorSpec], config: Mapping[str, Any], ops: Ops, dtype: str, rows: int = 1
) -> Iterator[Call]:
    """Those of one pass over `rows` tokens of one sequence.

    Args:
        specs: of the tensors that the model reads, as they lie on the device.
        config: config.json.
        dtype: of activations, as TensorSpecs name it.
    """
    experts: dict[str, dict[str, list[TensorSpec]]] = defaultdict(lambda: defaultdict(list))
    for name, spec in specs.items():
        if found := _EXPERT.fullmatch(name):
            experts[found["moe"]][found["part"]].append(spec)
        elif name == EMBEDDING:
            yield Call(ops.embed, name, {"ids": TensorSpec((1, rows), "I32"), "w": spec})
        elif name.endswith("norm.weight"):
            yield Call(ops.rms_norm, name, {"x": TensorSpec((rows, *spec.shape), dtype), "weight": spec})
        elif len(spec.shape) == 2 and name.endswith(".weight") and name != HEAD:
            yield Call(ops.matmul, name, {"x": TensorSpec((rows, spec.shape[1]), dtype), "w": spec})
            if name.endswith(".self_attn.q_proj.weight"):
                yield from _attention(name.removesuffix(".q_proj.weight"), specs, config, ops, dtype, rows)
    for where, parts in experts.items():
        yield from _experts(where, parts, ops, dtype, rows)
    head = HEAD if HEAD in specs else EMBEDDING
    if head in specs:  # for the last token of a prompt
        yield Call(ops.matmul, head, {"x": TensorSpec((1, specs[head].shape[1]), dtype), "w": specs[head]})


def _attention(
    where: str, specs: Mapping[str, TensorSpec], config: Mapping[str, Any], ops: Ops, dtype: str, rows: int
) -> Iterator[Call]:
    heads = config.get("num_attention_heads")
    if not isinstance(heads, int) or heads < 1:
        return
    dim = specs[f"{where}.q_proj.weight"].shape[0] // heads
    q = TensorSpec((1, rows, heads, dim), dtype)
    yield Call(ops.rope, where, {"x": q})
    yield Call(ops.attention, where, {"q": q, "sinks": specs.get(f"{where}.sinks")})


def _experts(where: str, parts: Mapping[str, list[TensorSpec]], ops: Ops, dtype: str, rows: int) -> Iterator[Call]:
    stacks = {part: _stacked(found) for part, found in parts.items()}
    w_in = tuple(stacks[part] for part in ("gate_up", "gate", "up") if part in stacks)
    hidden = w_in[0].shape[-1] if w_in else 0
    given: dict[str, Any] = {"x": TensorSpec((rows, hidden), dtype), "w_in": w_in, "w_out": stacks.get("down")}
    yield Call(ops.moe, where, given)
    yield Call(ops.softmax, where, {})  # of the router, over all experts or the chosen ones


def _stacked(specs: list[TensorSpec]) -> TensorSpec:
    """One stack of all experts, whether files hold them so or one by one."""
    first = specs[0]
    return first if len(first.shape) == 3 else TensorSpec((len(specs), *first.shape), first.dtype, first.scheme)
