"""Numbers from a checkpoint's config.json, as transformers 4 and 5 spell them, with errors that name the key."""

from collections.abc import Sequence
from typing import Any

from pipeline import settings
from pipeline.settings import MISSING
from plugins.models.common.weights import Weights


class ModelSettings(settings.Settings):
    """A reader of config.json, and what many families have in common in it."""

    def layers(self, weights: Weights, default: Any = MISSING) -> int:
        """The number of layers, of which each has a tensor at least."""
        return self.many("num_hidden_layers", weights, default)

    def many(self, key: str, weights: Weights, default: Any = MISSING) -> int:
        """How many there are of something that has tensors of its own."""
        because = f"the checkpoint has {weights.count} tensors, and each needs some of its own"
        return self.count(key, default, max(1, weights.count), because)

    def heads(self, default: Any = MISSING, default_kv: Any = None) -> tuple[int, int]:
        """Query heads, and the key and value heads that they share evenly (as many, where config.json is silent)."""
        before = len(self.problems)
        heads = self.count("num_attention_heads", default)
        kv_heads = self.count("num_key_value_heads", heads if default_kv is None else default_kv)
        fits = heads % kv_heads == 0 or len(self.problems) > before  # one mistake, one problem
        self.require("num_key_value_heads", fits, f"{heads} heads cannot share {kv_heads} of keys and values")
        return heads, kv_heads

    def layer_types(self, layers: int, default: Sequence[str]) -> tuple[str, ...]:
        """`layer_types`, one for each layer; `default` where the file (transformers 4) does not have it."""
        given = self.config.get("layer_types")
        if given is None:
            return tuple(default)
        allowed = ("full_attention", "sliding_attention")
        if not isinstance(given, list) or len(given) != layers or any(t not in allowed for t in given):
            self.note("layer_types", f"{given!r:.200}: one of {', '.join(allowed)} for each of {layers} layers")
            return tuple(default)
        return tuple(given)
