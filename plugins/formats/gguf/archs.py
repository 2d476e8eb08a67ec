"""The weight tables of GGUF architectures: every tensor once, with its name on both sides and its shape in words.

Names: `gguf.MODEL_TENSORS` and `TENSOR_NAMES` of the gguf package, which llama.cpp generates its loader from; what its
conversion scripts (conversion/llama.py, gpt_oss.py, qwen.py, gemma.py) change on the way is marked here: rows of q and
k of `llama` alone are reordered, gate and up of gpt-oss taken apart, experts of Qwen stacked, norms of Gemma raised by
one.
"""

import re
from collections.abc import Iterator

from plugins.facts import gpt_oss, mistral
from plugins.formats.gguf.table import Arch, Row
from plugins.formats.gpt_oss.table import LAYER, L

B = "blk.{n}."


def _attention(rope: bool, bias: tuple[str, ...], o_bias: bool) -> tuple[Row, ...]:
    """q, k, v, o; `bias`: the condition for biases, if there may be any."""
    rows = []
    for letter, out in (("q", "q"), ("k", "kv"), ("v", "kv")):
        reordered = rope and letter != "v"
        name, leaf = f"{L}self_attn.{letter}_proj.", f"{B}attn_{letter}."
        shape = (out, "hidden")
        rows.append(Row(f"{name}weight", (f"{leaf}weight",), shape, packs=True, rope=reordered, scaled=True))
        rows += [Row(f"{name}bias", (f"{leaf}bias",), (out,), rope=reordered, only_if=cond) for cond in bias]
    name, leaf = f"{L}self_attn.o_proj.", f"{B}attn_output."
    rows.append(Row(f"{name}weight", (f"{leaf}weight",), ("hidden", "q"), packs=True, scaled=True))
    if o_bias:
        rows += [Row(f"{name}bias", (f"{leaf}bias",), ("hidden",), only_if=c) for c in bias]
    return tuple(rows)


def _mlp(bias: tuple[str, ...], scaled: bool) -> tuple[Row, ...]:
    rows = []
    for name, shape in (("gate", ("inter", "hidden")), ("up", ("inter", "hidden")), ("down", ("hidden", "inter"))):
        rows.append(Row(f"{L}mlp.{name}_proj.weight", (f"{B}ffn_{name}.weight",), shape, packs=True, scaled=scaled))
        rows += [Row(f"{L}mlp.{name}_proj.bias", (f"{B}ffn_{name}.bias",), shape[:1], only_if=c) for c in bias]
    return tuple(rows)


IN_NORM = Row(L + "input_layernorm.weight", (B + "attn_norm.weight",), ("hidden",))
FFN_NORM = Row(L + "post_attention_layernorm.weight", (B + "ffn_norm.weight",), ("hidden",))
QK_NORMS = tuple(Row(f"{L}self_attn.{x}_norm.weight", (f"{B}attn_{x}_norm.weight",), ("head_dim",)) for x in ("q", "k"))
# Names and shapes of gpt-oss are the table's of plugins/formats/gpt_oss; here is what a file calls them.
GPT_OSS_LEAVES = {
    "input_layernorm": ("attn_norm",),
    "self_attn.q_proj": ("attn_q",),
    "self_attn.k_proj": ("attn_k",),
    "self_attn.v_proj": ("attn_v",),
    "self_attn.o_proj": ("attn_output",),
    "self_attn.sinks": ("attn_sinks",),
    "post_attention_layernorm": ("post_attention_norm",),
    "mlp.router": ("ffn_gate_inp",),
    "mlp.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "mlp.experts.down_proj": ("ffn_down_exps",),
}


def _gpt_oss() -> Iterator[Row]:
    for row in LAYER:
        module = re.sub(r"[._](weight|bias)$", "", row.logical.removeprefix(L))
        end = "bias" if row.logical.endswith("bias") else "weight"
        leaves = tuple(f"{B}{leaf}.{end}" for leaf in GPT_OSS_LEAVES[module])
        projects = row.logical.endswith("_proj.weight")
        attends = projects and "self_attn" in module
        yield Row(row.logical, leaves, row.shape, packs=row.packs or projects, only_if=row.only_if, scaled=attends)


GPT_OSS_LAYER = tuple(_gpt_oss())
LLAMA_LAYER = (IN_NORM, *_attention(True, ("attention_bias",), True), FFN_NORM, *_mlp(("mlp_bias",), scaled=True))
QWEN2_LAYER = (IN_NORM, *_attention(False, ("attention_bias",), False), FFN_NORM, *_mlp((), scaled=False))
QWEN3_LAYER = (IN_NORM, *_attention(False, (), False), *QK_NORMS, FFN_NORM, *_mlp((), scaled=True))

EXPERT = L + "mlp.experts.{e}."
QWEN3MOE_LAYER = (
    IN_NORM,
    *_attention(False, (), False),
    *QK_NORMS,
    FFN_NORM,
    Row(L + "mlp.gate.weight", (B + "ffn_gate_inp.weight",), ("experts", "hidden")),
    *(
        Row(f"{EXPERT}{x}_proj.weight", (f"{B}ffn_{x}_exps.weight",), shape, packs=True, each=True, scaled=True)
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
    *_mlp((), scaled=False),
    Row(L + "post_feedforward_layernorm.weight", (B + "post_ffw_norm.weight",), ("hidden",)),
)

SILU = ("hidden_act", "silu")
QWEN = (SILU, ("use_sliding_window", False))
ARCHS = {
    a.name: a
    for a in (
        Arch("llama", "llama", "LlamaForCausalLM", LLAMA_LAYER, (SILU,), aliases=mistral.FAMILIES),
        Arch("qwen2", "qwen2", "Qwen2ForCausalLM", QWEN2_LAYER, QWEN, square=True),
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
            gpt_oss.FAMILY,
            gpt_oss.CLASS,
            GPT_OSS_LAYER,
            (
                SILU,
                ("swiglu_limit", gpt_oss.SWIGLU_LIMIT),
                ("swiglu_alpha", gpt_oss.SWIGLU_ALPHA),
                ("attention_bias", True),
            ),
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
