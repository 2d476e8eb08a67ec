"""What one token takes of a model: the bytes that are read, the operations; both from specs alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pipeline import scored
from pipeline.tensors.spec import TensorSpec

EMBEDDING, HEAD = "*embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True)
class PerToken:
    """Attributes:
    nbytes: of the weights that one token reads.
    flops: operations: two for every value of a matrix that it meets, the head aside.
    head_flops: those of the head, which the last token of a prompt meets, and every one that is written.
    """

    nbytes: float
    flops: float
    head_flops: float

    def flops_of_prompt(self, length: int) -> float:
        """Of a token of a prompt of so many, on average."""
        return self.flops + self.head_flops / length


def per_token(specs: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> PerToken:
    """Of weights as they are stored: of experts those that are chosen, of an embedding that is no head nothing.

    Args:
        specs: of all tensors.
        config: config.json.
    """
    nbytes = flops = head_flops = 0.0
    for name, spec in specs.items():
        embeds = fnmatchcase(name, EMBEDDING)
        if HEAD in specs and embeds:
            continue
        part = scored.share(config) if fnmatchcase(name, scored.EXPERTS) else 1.0
        nbytes += part * spec.nbytes
        if name == HEAD or embeds:
            head_flops += 2 * spec.size
        elif len(spec.shape) > 1:
            flops += part * 2 * spec.size
    return PerToken(nbytes, flops, head_flops)
