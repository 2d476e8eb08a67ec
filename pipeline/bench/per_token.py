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
    flops: operations: two for every value of a matrix that it meets.
    """

    nbytes: float
    flops: float


def per_token(specs: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> PerToken:
    """Of weights as they are stored: of experts those that are chosen, of an embedding that is no head nothing.

    Args:
        specs: of all tensors.
        config: config.json.
    """
    nbytes = flops = 0.0
    for name, spec in specs.items():
        if HEAD in specs and fnmatchcase(name, EMBEDDING):
            continue
        part = scored.share(config) if fnmatchcase(name, scored.EXPERTS) else 1.0
        nbytes += part * spec.nbytes
        flops += part * 2 * spec.size if len(spec.shape) > 1 else 0.0
    return PerToken(nbytes, flops)
