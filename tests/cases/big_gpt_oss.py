"""A gpt-oss checkpoint as large as the real ones: `python -m tests.cases.big_gpt_oss DIR [--layers N] [--mxfp4]`.

Shapes are gpt-oss-20b's unless said otherwise, values are made up: pages of normal deviates, each repeated with another
offset and, row by row, another power of two, so that no two rows are alike and blocks have many different scales.
One page is held at a time, and the same arguments give the same bytes. Written by hand from the safetensors format
and transformers' naming; nothing of Weightmill is used.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

PAGE_ELEMS = 1 << 21
PACKED = ("_blocks", "_scales")


@dataclass(frozen=True)
class Sizes:
    """Dimensions; the defaults are gpt-oss-20b's, with a short vocabulary."""

    layers: int = 1
    experts: int = 32
    hidden: int = 2880
    inter: int = 2880
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 64
    vocab: int = 2048


def specs(s: Sizes, mxfp4: bool = False) -> list[dict[str, tuple[int, ...]]]:
    """Tensor names and shapes, one mapping a file: a layer each, and what is not of a layer in the first."""
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    files: list[dict[str, tuple[int, ...]]] = []
    for n in range(s.layers):
        prefix = f"model.layers.{n}"
        files.append(
            {
                f"{prefix}.input_layernorm.weight": (s.hidden,),
                f"{prefix}.self_attn.q_proj.weight": (q, s.hidden),
                f"{prefix}.self_attn.q_proj.bias": (q,),
                f"{prefix}.self_attn.k_proj.weight": (kv, s.hidden),
                f"{prefix}.self_attn.k_proj.bias": (kv,),
                f"{prefix}.self_attn.v_proj.weight": (kv, s.hidden),
                f"{prefix}.self_attn.v_proj.bias": (kv,),
                f"{prefix}.self_attn.o_proj.weight": (s.hidden, q),
                f"{prefix}.self_attn.o_proj.bias": (s.hidden,),
                f"{prefix}.self_attn.sinks": (s.heads,),
                f"{prefix}.post_attention_layernorm.weight": (s.hidden,),
                f"{prefix}.mlp.router.weight": (s.experts, s.hidden),
                f"{prefix}.mlp.router.bias": (s.experts,),
                f"{prefix}.mlp.experts.gate_up_proj": (s.experts, s.hidden, 2 * s.inter),
                f"{prefix}.mlp.experts.gate_up_proj_bias": (s.experts, 2 * s.inter),
                f"{prefix}.mlp.experts.down_proj": (s.experts, s.inter, s.hidden),
                f"{prefix}.mlp.experts.down_proj_bias": (s.experts, s.hidden),
            }
        )
    if mxfp4:  # as published: blocks of 16 bytes, and a scale each, of matrices [out, in]
        for shapes in files:
            for name in [n for n in shapes if n.endswith(("gate_up_proj", "down_proj"))]:
                experts, n_in, n_out = shapes.pop(name)
                shapes[f"{name}_blocks"] = (experts, n_out, n_in // 32, 16)
                shapes[f"{name}_scales"] = (experts, n_out, n_in // 32)
    files[0] |= {
        "model.embed_tokens.weight": (s.vocab, s.hidden),
        "model.norm.weight": (s.hidden,),
        "lm_head.weight": (s.vocab, s.hidden),
    }
    return files


def config(s: Sizes) -> dict[str, Any]:
    """config.json of gpt-oss-20b as transformers 5 writes it, with these sizes."""
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": s.vocab - 1,
        "head_dim": s.head_dim,
        "hidden_act": "silu",
        "hidden_size": s.hidden,
        "initial_context_length": 4096,
        "initializer_range": 0.02,
        "intermediate_size": s.inter,
        "layer_types": ["full_attention" if n % 2 else "sliding_attention" for n in range(s.layers)],
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": s.heads,
        "num_experts_per_tok": min(4, s.experts),
        "num_hidden_layers": s.layers,
        "num_key_value_heads": s.kv_heads,
        "num_local_experts": s.experts,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_theta": 150000,
            "rope_type": "yarn",
            "truncate": False,
        },
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "vocab_size": s.vocab,
    }


def write(folder: Path, sizes: Sizes, seed: int = 0, mxfp4: bool = False) -> Path:
    """Write the checkpoint: one file a layer, an index beside several. `mxfp4`: experts of random bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = specs(sizes, mxfp4)
    rng = np.random.default_rng(seed)
    page = (rng.standard_normal(PAGE_ELEMS, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16).view(np.uint16)
    doubled = np.concatenate([page, page])  # any window of a page's length is then contiguous
    weight_map: dict[str, str] = {}
    for i, shapes in enumerate(files, 1):
        name = "model.safetensors" if len(files) == 1 else f"model-{i:05}-of-{len(files):05}.safetensors"
        _write_file(folder / name, shapes, doubled, rng)
        weight_map |= dict.fromkeys(shapes, name)
    if len(files) > 1:
        total = sum(_nbytes(n, shape) for shapes in files for n, shape in shapes.items())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    settings = config(sizes) | ({"quantization_config": {"quant_method": "mxfp4"}} if mxfp4 else {})
    (folder / "config.json").write_text(json.dumps(settings, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": sizes.vocab - 1}))
    return folder


def _write_file(path: Path, shapes: Mapping[str, tuple[int, ...]], doubled: Any, rng: np.random.Generator) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        nbytes = _nbytes(name, shape)
        header[name] = {
            "dtype": "U8" if name.endswith(PACKED) else "BF16",
            "shape": list(shape),
            "data_offsets": [at, at + nbytes],
        }
        at += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            if name.endswith(PACKED):
                _write_bytes(file, prod(shape), rng, *((0, 256) if name.endswith("_blocks") else (116, 122)))
            else:
                _write_tensor(file, shape, doubled, rng)


def _nbytes(name: str, shape: tuple[int, ...]) -> int:
    return prod(shape) * (1 if name.endswith(PACKED) else 2)


def _write_bytes(file: Any, nbytes: int, rng: np.random.Generator, low: int, high: int) -> None:
    for start in range(0, nbytes, PAGE_ELEMS):
        file.write(rng.integers(low, high, min(PAGE_ELEMS, nbytes - start), np.uint8).data)


def _write_tensor(file: Any, shape: tuple[int, ...], doubled: Any, rng: np.random.Generator) -> None:
    """Whole rows at a time: a window of the page, each row times 2^-2 … 2^2 (added to the bf16 exponent's bits)."""
    n = shape[-1]
    rows = prod(shape[:-1])
    most = PAGE_ELEMS // n
    for start in range(0, rows, most):
        count = min(most, rows - start)
        offset = int(rng.integers(PAGE_ELEMS))
        exponents = rng.integers(-2, 3, (count, 1)).astype(np.int16).view(np.uint16) << 7
        file.write((doubled[offset : offset + count * n].reshape(count, n) + exponents).data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    for name in Sizes.__dataclass_fields__:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Sizes, name, None))
    parser.add_argument("--mxfp4", action="store_true", help="experts packed, as published: random bytes")
    args = vars(parser.parse_args())
    print(write(args.pop("folder"), mxfp4=args.pop("mxfp4"), sizes=Sizes(**args)))


if __name__ == "__main__":
    main()
