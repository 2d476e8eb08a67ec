"""Mistral, where config.json is silent; `MistralConfig` of transformers."""

from typing import Final

WINDOW: Final = 4096  # keys that a query sees; null, which is another thing than absent, is all of them
