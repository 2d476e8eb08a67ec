"""What a model family is to the rest: it recognizes a config.json and builds the model."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.mesh import Parameter


class Family(Protocol):
    """A plugin node. Its module imports no framework; `build` may.

    `model_types` are those of config.json that it builds; `tied`: whether the embedding is the head as well where
    config.json does not say (tie_word_embeddings). What it may have beside that: `stages.outline.FamilyHooks`.
    """

    model_types: ClassVar[tuple[str, ...]]
    tied: ClassVar[bool]

    def parameters(self, config: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """The parameters that `build` will ask for, by config.json alone, in the order of the model.

        Args:
            config: config.json, as transformers 4 or 5 spells it.

        Raises:
            PlanError, SourceError: as `build`.
        """
        ...

    def build(self, config: Mapping[str, Any], weights: Any, ops: Any, dtype: str) -> Any:
        """The model, a `plugins.models.common.decoder.Decoder` of shapes, without its weights.

        Args:
            config: config.json, as transformers 4 or 5 spells it.
            weights: a `plugins.models.common.weights.Weights`, which is asked for every parameter.
            ops: a `plugins.models.common.ops.Ops`.
            dtype: of activations: `bfloat16` or `float32`.

        Raises:
            PlanError: a value of config.json that is missing, wrong, or not supported; all of them at once.
            SourceError: rotary settings that cannot be.
        """
        ...


def vocabulary(parameters: Sequence[Parameter]) -> int | None:
    """How many tokens a language model knows; None: it is none, and takes rows of numbers."""
    return next((p.shape[0] for p in parameters if p.axes[0] == "vocab"), None)


def family_of(config: Mapping[str, Any], families: Sequence[Family]) -> Family:
    """The family whose `model_types` name the config's.

    Raises:
        PlanError: none does.
    """
    given = config.get("model_type")
    for family in families:
        if given in family.model_types:
            return family
    known = [t for f in families for t in f.model_types]
    raise PlanError(
        [Problem("config.json model_type", f"{given!r} is no model that can run{did_you_mean(str(given), known)}")]
    )
