"""Checkpoints that a benchmark makes up: a Llama of any size, in several shards, whole or by its headers alone."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.tensors.spec import TensorSpec
from plugins.formats.safetensors.header import entry_json, header_bytes

PART = 1 << 22  # values that are drawn once and written again and again, each tensor from another place
APART = 7919  # values, a prime: so far on in these the next tensor begins
SPREAD = 0.02  # of weights, as models are initialized (Llama's `initializer_range`)


@dataclass(frozen=True)
class Llama:
    """Attributes:
    layers, hidden, inner, heads, vocab: as config.json has them; as many heads for keys and values.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    vocab: int

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.inner, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads, "head_dim": self.hidden // self.heads, "vocab_size": self.vocab,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 1 << 17,
            "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
            "bos_token_id": 0, "eos_token_id": 1,
        }  # fmt: skip

    def specs(self) -> Iterator[tuple[str, TensorSpec]]:
        """Tensors in the order of the model, bf16."""
        hidden, inner = self.hidden, self.inner
        yield "model.embed_tokens.weight", _bf16(self.vocab, hidden)
        for i in range(self.layers):
            at = f"model.layers.{i}"
            yield f"{at}.input_layernorm.weight", _bf16(hidden)
            for name in "qkvo":
                yield f"{at}.self_attn.{name}_proj.weight", _bf16(hidden, hidden)
            yield f"{at}.post_attention_layernorm.weight", _bf16(hidden)
            for name in ("gate", "up"):
                yield f"{at}.mlp.{name}_proj.weight", _bf16(inner, hidden)
            yield f"{at}.mlp.down_proj.weight", _bf16(hidden, inner)
        yield "model.norm.weight", _bf16(hidden)
        yield "lm_head.weight", _bf16(self.vocab, hidden)

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for _, spec in self.specs())


def _bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "BF16")


def write(model: Llama, folder: Path, shard: int, *, values: bool) -> None:
    """A checkpoint as Hugging Face has it.

    Args:
        shard: bytes after which another file begins.
        values: drawn at random, always the same; False: holes, which take no disk and read as zeros.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards = list(_shards(model.specs(), shard))
    drawn = _drawn() if values else None
    index = {}
    for number, tensors in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _file(folder / name, tensors, drawn)
        index.update(dict.fromkeys(tensors, name))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": model.nbytes}, "weight_map": index})
    )
    (folder / "config.json").write_text(json.dumps(model.config()))


def _shards(specs: Iterator[tuple[str, TensorSpec]], most: int) -> Iterator[dict[str, TensorSpec]]:
    found: dict[str, TensorSpec] = {}
    nbytes = 0
    for name, spec in specs:
        if found and nbytes + spec.nbytes > most:
            yield found
            found, nbytes = {}, 0
        found[name] = spec
        nbytes += spec.nbytes
    yield found


def _drawn() -> Any:
    """Normal values, as the upper halves of float32: what a bf16 is when the rest is cut off."""
    values = np.random.default_rng(0).standard_normal(PART, np.float32) * np.float32(SPREAD)
    return (values.view(np.uint32) >> 16).astype("<u2")


def _file(path: Path, tensors: Mapping[str, TensorSpec], drawn: Any) -> None:
    entries: list[bytes] = []
    end = 0
    for name, spec in tensors.items():
        entries.append(entry_json(name, spec, end))
        end += spec.nbytes
    head = header_bytes(entries)
    with path.open("wb") as file:
        file.write(head)
        if drawn is None:
            file.truncate(len(head) + end)
            return
        for at, spec in enumerate(tensors.values()):
            for part in _parts(spec.size, APART * at, drawn):
                file.write(part)
        file.flush()
        os.fsync(file.fileno())  # or the disk would still be at it while others are measured


def _parts(size: int, first: int, drawn: Any) -> Iterator[Any]:
    """`size` values, of those drawn, over and over."""
    at = first % len(drawn)
    while size:
        part = drawn[at : at + size]
        yield memoryview(part).cast("B")
        size -= len(part)
        at = 0
