"""A small Llama with a tokenizer, as readers of README.md and docs/ have one: `my-llama`, and a text, `my-text.txt`."""

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from plugins.models.gpt_oss import family
from tests.cases import toy_llama

TINY = Path(family.__file__).parent / "tiny"
HIDDEN, INTER, LAYERS, HEADS, KV_HEADS = 128, 256, 2, 4, 2
TEXT = TINY.parents[2] / "texts" / "sotu_eval.txt"


def write(folder: Path) -> None:
    """`my-llama` and `my-text.txt` in `folder`."""
    target = folder / "my-llama"
    target.mkdir()
    vocab = json.loads((TINY / "config.json").read_bytes())["vocab_size"]
    config = toy_llama.CONFIG | {
        "hidden_size": HIDDEN, "intermediate_size": INTER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN // HEADS, "vocab_size": vocab,
    }  # fmt: skip
    (target / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, target)
    save_file(_weights(vocab), target / "model.safetensors", {"format": "pt"})
    (folder / "my-text.txt").write_bytes(TEXT.read_bytes()[:8_000])


def _weights(vocab: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    kv = KV_HEADS * HIDDEN // HEADS
    shapes = {
        "model.embed_tokens.weight": (vocab, HIDDEN),
        "lm_head.weight": (vocab, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for i in range(LAYERS):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.input_layernorm.weight": (HIDDEN,), f"{at}.post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= {f"{at}.self_attn.{p}_proj.weight": (n, HIDDEN) for p, n in (("q", HIDDEN), ("k", kv), ("v", kv))}
        shapes |= {f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN), f"{at}.mlp.down_proj.weight": (HIDDEN, INTER)}
        shapes |= {f"{at}.mlp.{p}_proj.weight": (INTER, HIDDEN) for p in ("gate", "up")}
    made = {name: rng.normal(0, 0.05, shape) if len(shape) > 1 else np.ones(shape) for name, shape in shapes.items()}
    return {name: values.astype(ml_dtypes.bfloat16) for name, values in made.items()}
