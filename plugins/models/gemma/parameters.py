"""The parameters of Gemma 3 (text), from config.json alone: what the constructor in model.py will ask for."""

from collections.abc import Mapping
from typing import Any, Final

from pipeline.mesh import Parameter
from plugins.models.common import parameters as common
from plugins.models.gemma.numbers import Numbers

NORMS: Final = (*common.PRE_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def parameters(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """See `plugins.models.family.Family.parameters`."""
    c = Numbers.read(config)

    def block(where: str, i: int) -> common.Table:
        yield from common.norms(where, NORMS, c.hidden)
        yield from common.attention(f"{where}.self_attn", c.attention[i])
        yield from common.mlp(f"{where}.mlp", c.hidden, c.inter)

    return common.decoder(block, len(c.attention), c.vocab, c.hidden, tied=c.tied)
