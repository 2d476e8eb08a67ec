"""The weight table of gpt-oss: every tensor once, with its name on both sides and its shape in words.

All dialects of gpt-oss read this table in both directions, GGUF's too, so that a tensor cannot be known to one and
unknown to the other.
Names and shapes: `GptOssForCausalLM` of transformers 5 and `gpt_oss.torch.model` of openai/gpt-oss 0.0.x. What a
folder does with packing and transposition is the dialects' business, not the table's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from plugins.formats.common.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        logical: Hugging Face name without packing suffixes; `{n}` is the layer.
        original: leaf of the original naming, without packing suffixes; fused tensors name the same leaf.
        shape: dimensions as attributes of `Sizes`, matrices as [..., out, in].
        above: dimensions (attributes of `Sizes`) whose rows lie above this tensor's in a fused original leaf.
        packs: an expert matrix: plain, or MXFP4 along its last dimension.
        only_if: attribute of `Sizes` that must be true for the tensor to exist.
    """

    logical: str
    original: str
    shape: tuple[str, ...]
    above: tuple[str, ...] = ()
    packs: bool = False
    only_if: str = ""


BIAS = "attention_bias"
L, B = "model.layers.{n}.", "block.{n}."

# Gate and up take turns along gate_up in every layout (`plugins.facts.gpt_oss.TURNS`).
LAYER = (
    Row(L + "input_layernorm.weight", B + "attn.norm.scale", ("hidden",)),
    Row(L + "self_attn.q_proj.weight", B + "attn.qkv.weight", ("q", "hidden")),
    Row(L + "self_attn.q_proj.bias", B + "attn.qkv.bias", ("q",), only_if=BIAS),
    Row(L + "self_attn.k_proj.weight", B + "attn.qkv.weight", ("kv", "hidden"), above=("q",)),
    Row(L + "self_attn.k_proj.bias", B + "attn.qkv.bias", ("kv",), above=("q",), only_if=BIAS),
    Row(L + "self_attn.v_proj.weight", B + "attn.qkv.weight", ("kv", "hidden"), above=("q", "kv")),
    Row(L + "self_attn.v_proj.bias", B + "attn.qkv.bias", ("kv",), above=("q", "kv"), only_if=BIAS),
    Row(L + "self_attn.o_proj.weight", B + "attn.out.weight", ("hidden", "q")),
    Row(L + "self_attn.o_proj.bias", B + "attn.out.bias", ("hidden",), only_if=BIAS),
    Row(L + "self_attn.sinks", B + "attn.sinks", ("heads",)),
    Row(L + "post_attention_layernorm.weight", B + "mlp.norm.scale", ("hidden",)),
    Row(L + "mlp.router.weight", B + "mlp.gate.weight", ("experts", "hidden")),
    Row(L + "mlp.router.bias", B + "mlp.gate.bias", ("experts",)),
    Row(L + "mlp.experts.gate_up_proj", B + "mlp.mlp1_weight", ("experts", "gate_up", "hidden"), packs=True),
    Row(L + "mlp.experts.gate_up_proj_bias", B + "mlp.mlp1_bias", ("experts", "gate_up")),
    Row(L + "mlp.experts.down_proj", B + "mlp.mlp2_weight", ("experts", "hidden", "inter"), packs=True),
    Row(L + "mlp.experts.down_proj_bias", B + "mlp.mlp2_bias", ("experts", "hidden")),
)
HEAD = (Row("model.embed_tokens.weight", "embedding.weight", ("vocab", "hidden")),)
TAIL = (
    Row("model.norm.weight", "norm.scale", ("hidden",)),
    Row("lm_head.weight", "unembedding.weight", ("vocab", "hidden"), only_if="untied"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table for one layer of one checkpoint: names and numbers filled in."""

    logical: str
    original: str
    shape: tuple[int, ...]
    row0: int
    packs: bool
    dims: str


def entries(sizes: Sizes) -> Iterator[Entry]:
    """Every tensor of a checkpoint of `sizes`, in model order."""
    for rows, layers in ((HEAD, 1), (LAYER, sizes.layers), (TAIL, 1)):
        for n in range(layers):
            for row in rows:
                if row.only_if and not getattr(sizes, row.only_if):
                    continue
                yield Entry(
                    logical=row.logical.format(n=n),
                    original=row.original.format(n=n),
                    shape=tuple(getattr(sizes, d) for d in row.shape),
                    row0=sum(getattr(sizes, d) for d in row.above),
                    packs=row.packs,
                    dims=" × ".join(row.shape),
                )
