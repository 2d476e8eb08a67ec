"""The parameters of gpt-oss, from config.json alone: what the constructor in model.py will ask for."""

from collections.abc import Mapping
from typing import Any

from pipeline.mesh import Parameter
from plugins.models.common import parameters as common
from plugins.models.common.parameters import Dim
from plugins.models.gpt_oss.numbers import Numbers


def parameters(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """See `plugins.models.family.Family.parameters`."""
    c = Numbers.read(config)

    def block(where: str, i: int) -> common.Table:
        yield from common.norms(where, common.PRE_NORMS, c.hidden)
        yield from common.attention(f"{where}.self_attn", c.attention[i])
        yield from _experts(f"{where}.mlp", c)

    return common.decoder(block, len(c.attention), c.vocab, c.hidden, tied=False)


def _experts(where: str, c: Numbers) -> common.Table:
    embed, mlp, experts = common.embed(c.hidden), Dim(c.inter, "mlp"), Dim(c.experts, "experts")
    both = Dim(2 * c.inter, "mlp", common.PAIR)
    yield from common.linear(f"{where}.router", Dim(c.experts, "experts_out"), embed, bias=True)
    yield common.tensor(f"{where}.experts.gate_up_proj", experts, both, embed)
    yield common.tensor(f"{where}.experts.gate_up_proj_bias", experts, both)
    yield common.tensor(f"{where}.experts.down_proj", experts, embed, mlp)
    yield common.tensor(f"{where}.experts.down_proj_bias", experts, embed)
