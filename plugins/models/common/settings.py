"""Numbers from a checkpoint's config.json, as transformers 4 and 5 spell them, with errors that name the key."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pipeline import settings
from pipeline.settings import MISSING

# hidden_act of config.json, as transformers names them; plugins.models.common.layers has the functions.
ACTIVATION_NAMES: Final = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu")
MOST: Final = 100_000  # layers, or experts of all layers, where no checkpoint says; Qwen3-235B-A22B has 12,032 experts


class ModelSettings(settings.Settings):
    """A reader of config.json, and what many families have in common in it.

    Args:
        tensors: how many the checkpoint has; None: there is none, config.json is all that is known.
    """

    def __init__(self, config: Mapping[str, Any], tensors: int | None = None):
        super().__init__(config)
        self.tensors = tensors

    def check(self) -> None:
        """See `Settings.check`; and refuses what no family here does."""
        self.refuse("is_causal", "only causal attention is supported", True)
        self.refuse("per_layer_config", "layers that differ in more than layer_types are not supported", {})
        super().check()

    def layers(self, default: Any = MISSING) -> int:
        """The number of layers, of which each has a tensor at least."""
        return self.many("num_hidden_layers", default)

    def many(self, key: str, default: Any = MISSING) -> int:
        """How many there are of something that has tensors of its own."""
        return self.count(key, default, self.most, self.because)

    @property
    def most(self) -> int:
        """How many there can be of what has tensors of its own."""
        return MOST if self.tensors is None else max(1, self.tensors)

    @property
    def because(self) -> str:
        """Why there cannot be more."""
        if self.tensors is None:
            return f"without weights that say otherwise, {MOST:,} are taken for a mistake"
        return f"the checkpoint has {self.tensors} tensors, and each needs some of its own"

    def activation(self, key: str, default: str) -> str:
        """One of `ACTIVATION_NAMES`."""
        return self.one_of(key, ACTIVATION_NAMES, default)

    def heads(self, default: Any = MISSING, default_kv: Any = None) -> tuple[int, int]:
        """Query heads, and the key and value heads that they share evenly (as many, where config.json is silent)."""
        heads = self.count("num_attention_heads", default)
        kv_heads = self.count("num_key_value_heads", heads if default_kv is None else default_kv)
        fits = heads % kv_heads == 0 or not self.sound("num_attention_heads", "num_key_value_heads")
        self.require("num_key_value_heads", fits, f"{heads} heads cannot share {kv_heads} of keys and values")
        return heads, kv_heads

    def window(self, default: int) -> int | None:
        """`sliding_window`; None where it is null, which is another thing than absent."""
        silent = self.config.get("sliding_window", default) is None
        return None if silent else self.count("sliding_window", default)

    def slides(self, types: Sequence[str], window: int | None, why: str = "it is null") -> None:
        """Note it where layers slide over a window that there is not, of which `why` is the reason."""
        known = window is not None or "sliding_attention" not in types
        self.require("sliding_window", known, f"layer_types has sliding_attention, which needs a window, and {why}")

    def layer_types(self, layers: int, default: Sequence[str]) -> tuple[str, ...]:
        """`layer_types`, one for each layer; `default` where the file (transformers 4) does not have it."""
        given = self.config.get("layer_types")
        if given is None:
            return tuple(default)
        if not self.sound("num_hidden_layers"):
            return tuple(default)
        allowed = ("full_attention", "sliding_attention")
        if not isinstance(given, list) or len(given) != layers or any(t not in allowed for t in given):
            self.note("layer_types", f"{given!r:.200}: one of {', '.join(allowed)} for each of {layers} layers")
            return tuple(default)
        return tuple(given)
