"""The weight tables of GGUF architectures: every tensor once, with its name on both sides and its shape in words.

Names: `gguf.MODEL_TENSORS` and `TENSOR_NAMES` of the gguf package, which llama.cpp generates its loader from; what its
conversion scripts (conversion/llama.py, gpt_oss.py, qwen.py, gemma.py) change on the way is marked here: rows of q and
k of `llama` alone are reordered, gate and up of gpt-oss taken apart, experts of Qwen stacked, norms of Gemma raised by
one.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of one checkpoint that shapes are made of."""

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


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        logical: Hugging Face name without packing suffixes; `{n}` is the layer.
        leaves: its name in the file; several leaves hold its rows in turns.
        shape: dimensions as attributes of `Sizes`, matrices as [..., out, in].
        packs: may be in a block type, and keeps its dtype when plain. Everything else is written as F32: llama.cpp's
            operators take norms, biases and router weights in no other type.
        rope: rows are reordered within every head, see `gguf_packing.Ggml`.
        each: one tensor an expert, `{e}` in `logical`, all of them stacked in the leaf.
        only_if: attribute of `Sizes` that must be true for the tensor to exist.
    """

    logical: str
    leaves: tuple[str, ...]
    shape: tuple[str, ...]
    packs: bool = False
    rope: bool = False
    each: bool = False
    only_if: str = ""


@dataclass(frozen=True, slots=True)
class Arch:
    """An architecture.

    Attributes:
        name: `general.architecture`.
        model_type: of config.json.
        causal_lm: class of transformers.
        layer: the table of one layer; embeddings, last norm and head are the same in all.
        fixed: config.json values that the architecture implies and the file cannot say otherwise.
        norms_plus: norms are stored plus one, see `gguf_packing.Ggml`.
        aliases: other model types whose checkpoints are written as this architecture: same names, same computation.
    """

    name: str
    model_type: str
    causal_lm: str
    layer: tuple[Row, ...]
    fixed: tuple[tuple[str, object], ...] = ()
    norms_plus: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def experts(self) -> bool:
        return any("experts" in row.shape or row.each for row in self.layer)

    def writes(self, model_type: object) -> bool:
        return model_type in (self.model_type, *self.aliases)


L, B = "model.layers.{n}.", "blk.{n}."
HEAD = (Row("model.embed_tokens.weight", ("token_embd.weight",), ("vocab", "hidden"), packs=True),)
TAIL = (
    Row("model.norm.weight", ("output_norm.weight",), ("hidden",)),
    Row("lm_head.weight", ("output.weight",), ("vocab", "hidden"), packs=True, only_if="untied"),
)


def _attention(rope: bool, bias: tuple[str, ...], o_bias: bool) -> tuple[Row, ...]:
    """q, k, v, o; `bias`: the condition for biases, if there may be any."""
    rows = []
    for letter, out in (("q", "q"), ("k", "kv"), ("v", "kv")):
        reordered = rope and letter != "v"
        name, leaf = f"{L}self_attn.{letter}_proj.", f"{B}attn_{letter}."
        rows.append(Row(f"{name}weight", (f"{leaf}weight",), (out, "hidden"), packs=True, rope=reordered))
        rows += [Row(f"{name}bias", (f"{leaf}bias",), (out,), rope=reordered, only_if=cond) for cond in bias]
    rows.append(Row(f"{L}self_attn.o_proj.weight", (f"{B}attn_output.weight",), ("hidden", "q"), packs=True))
    if o_bias:
        rows += [Row(f"{L}self_attn.o_proj.bias", (f"{B}attn_output.bias",), ("hidden",), only_if=c) for c in bias]
    return tuple(rows)


def _mlp(bias: tuple[str, ...]) -> tuple[Row, ...]:
    rows = []
    for name, shape in (("gate", ("inter", "hidden")), ("up", ("inter", "hidden")), ("down", ("hidden", "inter"))):
        rows.append(Row(f"{L}mlp.{name}_proj.weight", (f"{B}ffn_{name}.weight",), shape, packs=True))
        rows += [Row(f"{L}mlp.{name}_proj.bias", (f"{B}ffn_{name}.bias",), shape[:1], only_if=c) for c in bias]
    return tuple(rows)


IN_NORM = Row(L + "input_layernorm.weight", (B + "attn_norm.weight",), ("hidden",))
FFN_NORM = Row(L + "post_attention_layernorm.weight", (B + "ffn_norm.weight",), ("hidden",))
QK_NORMS = tuple(Row(f"{L}self_attn.{x}_norm.weight", (f"{B}attn_{x}_norm.weight",), ("head_dim",)) for x in ("q", "k"))
GPT_OSS_LAYER = (
    IN_NORM,
    *_attention(rope=False, bias=("attention_bias",), o_bias=True),
    Row(L + "self_attn.sinks", (B + "attn_sinks.weight",), ("heads",)),
    Row(L + "post_attention_layernorm.weight", (B + "post_attention_norm.weight",), ("hidden",)),
    Row(L + "mlp.router.weight", (B + "ffn_gate_inp.weight",), ("experts", "hidden")),
    Row(L + "mlp.router.bias", (B + "ffn_gate_inp.bias",), ("experts",)),
    Row(
        L + "mlp.experts.gate_up_proj",
        (B + "ffn_gate_exps.weight", B + "ffn_up_exps.weight"),
        ("experts", "gate_up", "hidden"),
        packs=True,
    ),
    Row(
        L + "mlp.experts.gate_up_proj_bias",
        (B + "ffn_gate_exps.bias", B + "ffn_up_exps.bias"),
        ("experts", "gate_up"),
    ),
    Row(L + "mlp.experts.down_proj", (B + "ffn_down_exps.weight",), ("experts", "hidden", "inter"), packs=True),
    Row(L + "mlp.experts.down_proj_bias", (B + "ffn_down_exps.bias",), ("experts", "hidden")),
)
LLAMA_LAYER = (IN_NORM, *_attention(True, ("attention_bias",), True), FFN_NORM, *_mlp(("mlp_bias",)))
QWEN2_LAYER = (IN_NORM, *_attention(False, ("attention_bias",), False), FFN_NORM, *_mlp(()))
QWEN3_LAYER = (IN_NORM, *_attention(False, (), False), *QK_NORMS, FFN_NORM, *_mlp(()))

QWEN3MOE_LAYER = (
    IN_NORM,
    *_attention(False, (), False),
    *QK_NORMS,
    FFN_NORM,
    Row(L + "mlp.gate.weight", (B + "ffn_gate_inp.weight",), ("experts", "hidden")),
    *(
        Row(f"{L}mlp.experts.{{e}}.{x}_proj.weight", (f"{B}ffn_{x}_exps.weight",), shape, packs=True, each=True)
        for x, shape in (
            ("gate", ("moe_inter", "hidden")),
            ("up", ("moe_inter", "hidden")),
            ("down", ("hidden", "moe_inter")),
        )
    ),
)
GEMMA3_LAYER = (
    IN_NORM,
    *_attention(False, (), False),
    *QK_NORMS,
    Row(L + "post_attention_layernorm.weight", (B + "post_attention_norm.weight",), ("hidden",)),
    Row(L + "pre_feedforward_layernorm.weight", (B + "ffn_norm.weight",), ("hidden",)),
    *_mlp(()),
    Row(L + "post_feedforward_layernorm.weight", (B + "post_ffw_norm.weight",), ("hidden",)),
)

SILU = ("hidden_act", "silu")
QWEN = (SILU, ("use_sliding_window", False))
ARCHS = {
    a.name: a
    for a in (
        Arch("llama", "llama", "LlamaForCausalLM", LLAMA_LAYER, (SILU,), aliases=("mistral",)),
        Arch("qwen2", "qwen2", "Qwen2ForCausalLM", QWEN2_LAYER, QWEN),
        Arch("qwen3", "qwen3", "Qwen3ForCausalLM", QWEN3_LAYER, (*QWEN, ("attention_bias", False))),
        Arch(
            "qwen3moe",
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            QWEN3MOE_LAYER,
            (
                *QWEN,
                ("attention_bias", False),
                ("norm_topk_prob", True),
                ("decoder_sparse_step", 1),
                ("mlp_only_layers", []),
            ),
        ),
        Arch(
            "gpt-oss",
            "gpt_oss",
            "GptOssForCausalLM",
            GPT_OSS_LAYER,
            (SILU, ("swiglu_limit", 7.0), ("swiglu_alpha", 1.702), ("attention_bias", True)),
        ),
        Arch(
            "gemma3",
            "gemma3_text",
            "Gemma3ForCausalLM",
            GEMMA3_LAYER,
            (
                ("hidden_activation", "gelu_pytorch_tanh"),
                ("attention_bias", False),
                ("attn_logit_softcapping", None),
                ("use_bidirectional_attention", False),
            ),
            norms_plus=True,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a table for one layer of one checkpoint: names and numbers filled in."""

    logical: str
    leaves: tuple[str, ...]
    shape: tuple[int, ...]
    packs: bool
    head: int  # rows that are reordered together, or 0
    lane_dim: int  # dimension that several leaves share in turns, from the end
    plus: bool  # stored plus one
    expert: int | None  # which matrix of the leaf it is, where the leaf stacks them


def entries(arch: Arch, sizes: Sizes) -> Iterator[Entry]:
    """Every tensor of a checkpoint of `sizes`, in model order."""
    for rows, layers in ((HEAD, 1), (arch.layer, sizes.layers), (TAIL, 1)):
        for n in range(layers):
            for row in rows:
                if row.only_if and not getattr(sizes, row.only_if):
                    continue
                for e in range(sizes.experts) if row.each else (None,):
                    yield Entry(
                        logical=row.logical.format(n=n, e=e),
                        leaves=tuple(leaf.format(n=n) for leaf in row.leaves),
                        shape=tuple(getattr(sizes, d) for d in row.shape),
                        packs=row.packs,
                        head=sizes.head_dim if row.rope else 0,
                        lane_dim=row.shape.index("gate_up") - len(row.shape) if len(row.leaves) > 1 else 0,
                        plus=arch.norms_plus and row.logical.endswith("norm.weight"),
                        expert=e,
                    )
