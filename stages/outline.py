"""A checkpoint as its config.json alone describes it: what a plan can say where there are no weights.

Which tensors a model has, and of which shapes, its family knows; how they would lie, a dialect. Nothing can be read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

from pipeline.errors import SourceError, did_you_mean
from pipeline.files import is_inner
from pipeline.formats import Dialect, DialectHooks
from pipeline.hooks import hooks_of, optional
from pipeline.mesh import Parameter
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.topology import Feeds


class Family(Protocol):
    """What knows the tensors of a model by its config.json: the family that builds it."""

    model_types: ClassVar[tuple[str, ...]]

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """See `plugins.models.family.Family`."""
        ...


@hooks_of(Family)
class FamilyHooks:
    """What a family may have beside that."""

    published: Path | None = None
    """A folder with the config.json of checkpoints that are known by name, as far as the family reads it:
    `owner/name.json` for `hf://owner/name`."""

    constants: Mapping[str, float] = MappingProxyType({"*norm.weight": 1.0, "*bias": 0.0})
    """Pattern of tensors' names → the number that all of their values are before any training; others are random."""

    tied: bool = False
    """Whether the embedding is the head as well where config.json does not say (tie_word_embeddings)."""

    feeds: tuple[Feeds, ...] = ()
    """Which matrices multiply what a norm, or the rows of another matrix, scale."""


@dataclass(frozen=True)
class Outline:
    """A `TensorStore` that knows specs and has no values."""

    specs: Mapping[str, TensorSpec]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def read(self, name: str, index: Index = ()) -> Any:
        """
        Raises:
            SourceError: always.
        """
        raise SourceError(f"tensor {name!r}: only its shape is known, by config.json; its weights are not here")


def published(families: Iterable[Family], address: str) -> Path | None:
    """The config.json that a family has of the checkpoint at an address; of its main revision, and of all of it."""
    match = re.fullmatch(r"hf://([^/@]+/[^/@]+)", address)
    if match is None or not is_inner(match[1]):
        return None
    folders = (optional(family, FamilyHooks, "published") for family in families)
    return next((file for f in folders if f is not None and (file := f / f"{match[1]}.json").is_file()), None)


def outlined(
    where: Path, config: Mapping[str, Any], families: Sequence[Family], dialects: Sequence[Dialect]
) -> tuple[Outline, Dialect]:
    """The tensors of a checkpoint by its config.json, and the dialect that says how they would lie.

    Args:
        where: the file that `config` is from, for errors.

    Raises:
        SourceError: no family is for the model; or how weights are packed cannot be told without them.
        PlanError: config.json misses or contradicts something; all of it.
    """
    kind = config.get("model_type")
    family = next((f for f in families if kind in f.model_types), None)
    if family is None:
        known = did_you_mean(str(kind), [t for f in families for t in f.model_types])
        raise SourceError(f"{where}: there are no weights, and no family knows those of model_type {kind!r:.80}{known}")
    parameters = family.parameters(config)
    shapes = {name: p.shape[1:] if p.stack else p.shape for p in parameters for name in p.names}
    for dialect in dialects:
        outline = optional(dialect, DialectHooks, "outline")
        specs = outline(shapes, config) if outline is not None else None
        if specs is not None:
            return Outline(specs), dialect
    method = (config.get("quantization_config") or {}).get("quant_method")
    raise SourceError(
        f"{where}: there are no weights, and config.json alone does not tell how they would be packed: its "
        f"quantization_config says quant_method {method!r:.80}"
    )
