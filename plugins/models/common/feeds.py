"""Which layers that families share multiply what others scale; see `pipeline.topology`."""

from collections.abc import Sequence
from typing import Final

from pipeline.topology import Feeds

LAYER: Final = "model.layers.*"
QKV: Final = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")
GATE_UP: Final = ("mlp.gate_proj.weight", "mlp.up_proj.weight")


def feeds(source: str, consumers: Sequence[str], *, plus_one: bool = False) -> Feeds:
    """Tensors of one layer."""
    return Feeds(f"{LAYER}.{source}", tuple(f"{LAYER}.{name}" for name in consumers), plus_one)


# Attention adds values up: a factor of their rows is one of its outputs.
ATTENTION: Final = (feeds("input_layernorm.weight", QKV), feeds("self_attn.v_proj.weight", ["self_attn.o_proj.weight"]))
FINAL: Final = Feeds("model.norm.weight", ("lm_head.weight",))
MLP: Final = feeds("mlp.up_proj.weight", ["mlp.down_proj.weight"])
