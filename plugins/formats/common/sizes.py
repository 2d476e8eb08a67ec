"""The numbers of a checkpoint that the shapes of its tensors are made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """From a checkpoint's own config.json; and the dimensions that follow, by the names that tables call them."""

    layers: int
    hidden: int
    inter: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    experts: int = 1
    moe_inter: int = 0
    attention_bias: bool = False
    mlp_bias: bool = False
    tied: bool = False

    @property
    def q(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def gate_up(self) -> int:
        return 2 * self.inter

    @property
    def untied(self) -> bool:
        return not self.tied
