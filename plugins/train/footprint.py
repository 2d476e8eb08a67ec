"""What a training takes, by specs alone, without a framework: products, and memory beside that of the device."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from pipeline.mesh import Parameter
from pipeline.tensors.spec import TensorSpec

# Measured on CPUs, compiling what was not compiled before, all of a run in MiB: an MLP 520, a CNN 580, gpt-oss of 4
# layers 1,130, Llama of 4 layers 1,540 and of 30 layers, with adapters, 3,070 and 4,000 with 512 and 1,024 tokens.
HOST_NBYTES = 450 << 20  # JAX, Flax, Orbax
MATRIX_NBYTES = 6 << 20  # and for each matrix, or stack of them, what compiling its products forth and back takes
ROUNDING_NBYTES = 8 << 20  # and what compiling its rounding takes: of Llama of 4 layers to INT4, 0.2 to 0.3 GiB in all
BETWEEN = 1.4  # of what goes into matrices and comes out, that with what norms, attention and nonlinearities leave
ROUNDED = 3  # copies of weights, as fp32, that rounding them makes: rounded, coded, decoded
FORTH, BACK = 1, 2  # products with a weight: with what goes in; for its own gradient, and for that of what went in


def products(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> float:
    """Numbers of the weights that a token, or a row, is multiplied by: of experts those that it is sent to, of an
    embedding none unless it is the head as well; of a filter once in each place. What attention takes beside them is
    not counted."""
    values = 0.0
    for parameter in parameters:
        if parameter.axes[0] == "vocab" and parameter.name.endswith("embed_tokens.weight") and not _tied(config):
            continue
        share = 1.0
        if parameter.axes[0] == "experts":
            chosen = config.get("num_experts_per_tok") or config.get("experts_per_token") or parameter.shape[0]
            share = int(chosen) / parameter.shape[0]
        values += prod(parameter.shape) * parameter.places * share if len(parameter.shape) > 1 else 0
    return values


def _tied(config: Mapping[str, Any]) -> bool:
    return bool(config.get("tie_word_embeddings"))


def host_nbytes(parameters: Sequence[Parameter], *, rounded: bool) -> int:
    """Of the process, beside what is on the device.

    Args:
        rounded: weights are, in every update.
    """
    each = MATRIX_NBYTES + (ROUNDING_NBYTES if rounded else 0)
    return HOST_NBYTES + each * sum(len(p.shape) > 1 for p in parameters)


def activations_nbytes(specs: Mapping[str, TensorSpec], parameters: Sequence[Parameter], tokens: int) -> int:
    """That so many tokens, or rows, leave for the way back, as fp32."""
    places = {name: p.places for p in parameters for name in p.names}
    ends = (sum(s.shape[-2:]) * places.get(name, 1) for name, s in specs.items() if len(s.shape) > 1)
    return round(4 * BETWEEN * tokens) * sum(ends)
