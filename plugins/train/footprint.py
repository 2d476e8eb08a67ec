"""What a training takes, by specs alone, without a framework: products, and memory beside that of the device."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from pipeline.mesh import Parameter
from pipeline.tensors.spec import TensorSpec

# Measured on CPUs, compiling what was not compiled before: 450 to 580 MiB for MLPs and CNNs, 1.1 GiB for 4 layers of
# gpt-oss, 4.0 GiB for LoRA on 30 layers of Llama, of which 2.2 GiB are neither weights nor activations.
HOST_NBYTES = 430 << 20  # JAX, Flax, Orbax
MATRIX_NBYTES = 10 << 20  # and for each matrix, or stack of them, what compiling its products forth and back takes
FORTH, BACK = 1, 2  # products with a weight: with what goes in; for its own gradient, and for that of what went in


def products(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> float:
    """Numbers of the weights that a token, or a row, is multiplied by: of experts those that it is sent to, of an
    embedding none unless it is the head as well. What attention takes beside them is not counted; and a convolution as
    if it was applied in one place."""
    values = 0.0
    for parameter in parameters:
        if parameter.axes[0] == "vocab" and parameter.name.endswith("embed_tokens.weight") and not _tied(config):
            continue
        share = 1.0
        if parameter.axes[0] == "experts":
            chosen = config.get("num_experts_per_tok") or config.get("experts_per_token") or parameter.shape[0]
            share = int(chosen) / parameter.shape[0]
        values += prod(parameter.shape) * share if len(parameter.shape) > 1 else 0
    return values


def _tied(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings"))


def host_nbytes(parameters: Sequence[Parameter]) -> int:
    """Of the process, beside what is on the device."""
    return HOST_NBYTES + MATRIX_NBYTES * sum(len(p.shape) > 1 for p in parameters)


def activations_nbytes(specs: Mapping[str, TensorSpec], tokens: int) -> int:
    """That so many tokens leave for the way back: of every matrix what goes in and comes out, as fp32."""
    return 4 * tokens * sum(sum(s.shape[-2:]) for s in specs.values() if len(s.shape) > 1)
