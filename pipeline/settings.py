"""Settings that come from outside (config.json, metadata, tokenizers' files), read by type.

Whoever reads a setting says what it must be; what it is instead is noted under its name, and all of it is said at once.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from pipeline.errors import PlanError, Problem, did_you_mean

N = TypeVar("N", int, float, bool, str)
D = TypeVar("D")
MISSING = object()
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
LARGEST = 2**31 - 1  # of a count: products of two still fit the sizes that arrays may have


class Settings:
    """A reader of a JSON object that notes every problem; `check` raises them together.

    After a problem a reader goes on with a harmless value, so that the others are found as well.
    """

    def __init__(self, config: Mapping[str, Any], where: str = "config.json "):
        """`where` stands before a key in the problems."""
        self.config, self.where = config, where
        self.problems: list[Problem] = []

    def get(self, key: str, kind: type[N], default: Any = MISSING) -> N:
        """`config[key]`, which must be of `kind` (an int will do for a float); null counts as absent, and is said as
        what it is."""
        value = self.config.get(key)
        if value is None:
            if default is not MISSING:
                return cast(N, default)
            said = f"is null; {_KINDS[kind]} is expected" if key in self.config else None
            self.note(key, said or f"is missing{did_you_mean(key, self.config)}")
            return kind(1)
        if not is_a(value, kind):
            self.note(key, f"{value!r:.80} is no {kind.__name__}")
            return kind(1)
        return float(value) if kind is float else value  # type: ignore[return-value]

    def count(self, key: str, default: Any = MISSING, most: int = LARGEST, because: str = "") -> int:
        """A positive integer of at most `most`, which has its reason in `because`."""
        value = self.get(key, int, default)
        if isinstance(value, int) and value < 1:
            self.note(key, f"{value} must be positive")
            return 1
        if isinstance(value, int) and value > most:
            self.note(key, f"{value} is too many: {because or f'at most {most:,} are allowed'}")
            return 1
        return value

    def positive(self, key: str, default: Any = MISSING) -> float:
        """A number above zero."""
        value = self.get(key, float, default)
        if value is not None and not value > 0:
            self.note(key, f"{value} must be positive")
            return 1.0
        return value

    def one_of(self, key: str, allowed: Sequence[str], default: Any = MISSING) -> str:
        given = self.config.get(key)
        if given is not None and not isinstance(given, str):
            self.note(key, f"{given!r:.80} is no {str.__name__} (allowed: {', '.join(allowed)})")
            return allowed[0]
        value = self.get(key, str, default)
        if not self.sound(key):
            return allowed[0]
        if value not in allowed:
            self.note(key, f"{value!r:.80} is not supported{did_you_mean(str(value), allowed)}")
            return allowed[0]
        return value

    def object(self, key: str) -> Mapping[str, Any]:
        """An object; an empty one where there is none."""
        value = self.config.get(key)
        if value is None or isinstance(value, Mapping):
            return value or {}
        self.note(key, f"{value!r:.80} is no object")
        return {}

    def items(self, key: str, kind: type[N]) -> tuple[N, ...]:
        """A list of values of `kind`; an empty one where there is none."""
        value = self.config.get(key)
        if value is None or (isinstance(value, list) and all(is_a(v, kind) for v in value)):
            return tuple(value or ())
        self.note(key, f"{value!r:.80} is no list of {kind.__name__}")
        return ()

    def require(self, key: str, good: bool, message: str) -> None:
        """Note `message` unless `good`."""
        if not good:
            self.note(key, message)

    def refuse(self, key: str, why: str, *harmless: Any) -> None:
        """Note a problem unless `config[key]` is absent, null, or one of `harmless`."""
        value = self.config.get(key)
        if value is not None and value not in harmless:
            self.note(key, f"{value!r:.80}: {why}")

    def sound(self, *keys: str) -> bool:
        """Whether nothing was noted of these: what compares them has nothing to say otherwise, and one mistake is one
        problem."""
        noted = {p.where for p in self.problems}
        return not any(f"{self.where}{key}" in noted for key in keys)

    def note(self, key: str, message: str) -> None:
        self.problems.append(Problem(f"{self.where}{key}", message))

    def check(self) -> None:
        """Raises PlanError with everything that was noted."""
        if self.problems:
            raise PlanError(list(dict.fromkeys(self.problems)), exit_code=4)


def is_a(value: Any, kind: type) -> bool:
    """Whether a JSON value is of `kind`: a bool is no number, an int is a float, and numbers are finite."""
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)
