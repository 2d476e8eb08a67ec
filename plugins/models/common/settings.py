"""Numbers from a checkpoint's config.json, as transformers 4 and 5 spell them, with errors that name the key."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from pipeline.errors import PlanError, Problem, did_you_mean

N = TypeVar("N", int, float, bool, str)
_MISSING = object()


class Settings:
    """A reader of config.json that notes every problem; `check` raises them together."""

    def __init__(self, config: Mapping[str, Any]):
        self.config = config
        self.problems: list[Problem] = []

    def get(self, key: str, kind: type[N], default: Any = _MISSING) -> N:
        """`config[key]`, which must be of `kind` (an int will do for a float); null counts as absent."""
        value = self.config.get(key)
        if value is None:
            if default is not _MISSING:
                return cast(N, default)
            self._note(key, f"is missing{did_you_mean(key, self.config)}")
            return kind(1)
        fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not fits:
            self._note(key, f"{value!r} is no {kind.__name__}")
            return kind(1)
        return cast(N, value)

    def count(self, key: str, default: Any = _MISSING) -> int:
        """A positive integer."""
        value = self.get(key, int, default)
        if isinstance(value, int) and value < 1:
            self._note(key, f"{value} must be positive")
            return 1
        return value

    def one_of(self, key: str, allowed: Sequence[str], default: Any = _MISSING) -> str:
        value = self.get(key, str, default)
        if value not in allowed:
            self._note(key, f"{value!r} is not supported{did_you_mean(str(value), allowed)}")
            return allowed[0]
        return value

    def heads(self, default: Any = _MISSING, default_kv: Any = None) -> tuple[int, int]:
        """Query heads, and the key and value heads that they share evenly (as many, where config.json is silent)."""
        before = len(self.problems)
        heads = self.count("num_attention_heads", default)
        kv_heads = self.count("num_key_value_heads", heads if default_kv is None else default_kv)
        fits = heads % kv_heads == 0 or len(self.problems) > before  # one mistake, one problem
        self.require("num_key_value_heads", fits, f"{heads} heads cannot share {kv_heads} of keys and values")
        return heads, kv_heads

    def require(self, key: str, good: bool, message: str) -> None:
        """Note `message` unless `good`."""
        if not good:
            self._note(key, message)

    def refuse(self, key: str, why: str, *harmless: Any) -> None:
        """Note a problem unless `config[key]` is absent, null, or one of `harmless`."""
        value = self.config.get(key)
        if value is not None and value not in harmless:
            self._note(key, f"{value!r}: {why}")

    def layer_types(self, layers: int, default: Sequence[str]) -> tuple[str, ...]:
        """`layer_types`, one for each layer; `default` where the file (transformers 4) does not have it."""
        given = self.config.get("layer_types")
        if given is None:
            return tuple(default)
        allowed = ("full_attention", "sliding_attention")
        if not isinstance(given, list) or len(given) != layers or any(t not in allowed for t in given):
            self._note("layer_types", f"{given!r}: one of {', '.join(allowed)} for each of {layers} layers")
            return tuple(default)
        return tuple(given)

    def _note(self, key: str, message: str) -> None:
        self.problems.append(Problem(f"config.json {key}", message))

    def check(self) -> None:
        """Raises PlanError with everything that was noted."""
        if self.problems:
            raise PlanError(list(dict.fromkeys(self.problems)), exit_code=4)
