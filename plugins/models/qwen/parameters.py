"""The parameters of Qwen2 and Qwen3, from config.json alone: what the constructor in model.py will ask for."""

from collections.abc import Mapping
from typing import Any

from pipeline.mesh import Parameter
from plugins.models.common import parameters as common
from plugins.models.common.parameters import Dim
from plugins.models.qwen.numbers import Numbers


def parameters(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """See `plugins.models.family.Family.parameters`."""
    c = Numbers.read(config)

    def block(where: str, i: int) -> common.Table:
        yield from common.norms(where, common.PRE_NORMS, c.hidden)
        yield from common.attention(f"{where}.self_attn", c.attention[i])
        if c.sparse[i]:
            yield from _experts(f"{where}.mlp", c)
        else:
            yield from common.mlp(f"{where}.mlp", c.hidden, c.inter)

    return common.decoder(block, len(c.attention), c.vocab, c.hidden, tied=c.tied)


def _experts(where: str, c: Numbers) -> common.Table:
    embed, mlp = common.embed(c.hidden), Dim(c.moe_inter, "mlp")
    yield from common.linear(f"{where}.gate", Dim(c.experts, "experts_out"), embed)
    for name, out, into in (("gate_proj", mlp, embed), ("up_proj", mlp, embed), ("down_proj", embed, mlp)):
        names = [f"{where}.experts.{e}.{name}.weight" for e in range(c.experts)]
        yield common.stacked(names, Dim(c.experts, "experts"), out, into)
