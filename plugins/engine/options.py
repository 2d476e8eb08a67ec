"""How tokens are chosen and when to stop: a plugin node, without a framework. `sampling.py` does it."""

from dataclasses import dataclass
from numbers import Integral

from pipeline.errors import ConfigError

MOST_BITS = 63  # of a seed, beside its sign
COLDEST = 1e-30  # logits divided by less may leave float32, and then the likeliest is not known from others


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when to stop.

    Attributes:
        temperature: 0 is greedy.
        top_k: of the k likeliest; 0: all.
        top_p: of the fewest whose probabilities reach p.
        min_p: of those at least min_p times as likely as the likeliest.
        repetition_penalty: divides positive logits, and multiplies negative ones, of tokens seen before; 1: none.
        max_tokens: to generate at most.
        stop: strings that end the text; they are not part of it.
        stop_tokens: ids that end it, beside those that the checkpoint says.
        seed: the same seed, prompt and options give the same tokens, whatever else is in the batch; the second time
            that a prompt stands in a batch it gets others.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens"):
            if not isinstance(value := getattr(self, name), int | float):
                raise ConfigError(f"{name}={value!r}: a number is expected")
        if isinstance(self.stop, str):
            raise ConfigError(f"stop={self.stop!r}: a list of texts is expected, such as [{self.stop!r}]")
        if strange := [s for s in self.stop if not isinstance(s, str)]:
            raise ConfigError(f"stop: {strange[0]!r} is no text; a list of texts is expected, such as ['{strange[0]}']")
        if isinstance(self.stop_tokens, str):
            raise ConfigError(f"stop_tokens={self.stop_tokens!r}: a list of ids is expected, such as [0]")
        if wrong := [i for i in self.stop_tokens if not isinstance(i, Integral) or i < 0]:
            raise ConfigError(f"stop_tokens: {wrong[0]!r} is no id of a token; whole numbers, 0 or more, are allowed")
        if not isinstance(self.seed, Integral):
            raise ConfigError(f"seed={self.seed!r}: a whole number is expected")
        warm = self.temperature >= COLDEST
        checks = {
            "temperature": (self.temperature, warm or self.temperature == 0, f"0 (greedy), or {COLDEST} or more,"),
            "top_k": (self.top_k, 0 <= self.top_k < 2**31, "0 (all) or more, below 2^31,"),
            "top_p": (self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            "min_p": (self.min_p, 0 <= self.min_p <= 1, "from 0 to 1"),
            "repetition_penalty": (self.repetition_penalty, self.repetition_penalty > 0, "above 0"),
            "max_tokens": (self.max_tokens, self.max_tokens >= 1, "1 or more"),
            "seed": (self.seed, -(2**MOST_BITS) <= self.seed < 2**MOST_BITS, f"from -2^{MOST_BITS} to 2^{MOST_BITS}-1"),
        }
        for name, (value, good, allowed) in checks.items():
            if not good:
                raise ConfigError(f"{name}={value}: {allowed} is allowed")
        if any(not s for s in self.stop):
            raise ConfigError("stop: an empty string would end every text at once")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def filters(self) -> bool:
        """Whether any of top-k, top-p and min-p does something."""
        return not self.greedy and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)

    @property
    def penalizes(self) -> bool:
        return self.repetition_penalty != 1

    @property
    def next_seed(self) -> int:
        """The smallest after the largest."""
        return self.seed + 1 if self.seed + 1 < 2**MOST_BITS else -(2**MOST_BITS)

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """What the compiled step depends on."""
        return self.greedy, self.filters, self.penalizes
