"""Mistral and Ministral, where config.json is silent; `MistralConfig` and `MinistralConfig` of transformers."""

from typing import Final

FAMILIES: Final = ("mistral", "ministral")  # as `model_type`; the second is the first with kinds of layers
WINDOW: Final = 4096  # keys that a query sees; null, which is another thing than absent, is all of them
