"""What a benchmark of engines asks of every one."""

from dataclasses import dataclass

from pipeline.bounds import outside
from pipeline.errors import ConfigError

FEWEST = 20  # generations that show how memory grows
MOST = 1_000_000  # tokens, sequences, repeats: more than any model is asked while somebody waits


@dataclass(frozen=True)
class Workload:
    """Attributes:
    prefill: lengths of prompts that are read, in tokens.
    batches: sequences that are continued at once.
    new: tokens that each gets.
    contexts: lengths of prompts after which one sequence is continued by as many.
    repeats: of each in one process, after one that warms up.
    tokens: of the text that are scored.
    window: of them at once.
    prompt, greedy: tokens that are continued greedily, and how many are compared.
    leak: generations after each of which a process's memory is looked at; 0: none are made.
    wrong_kl: nats of KL divergence that are too many, beyond those that quantization costs.
    """

    prefill: tuple[int, ...]
    batches: tuple[int, ...]
    new: int
    contexts: tuple[int, ...]
    repeats: int
    tokens: int
    window: int
    prompt: int
    greedy: int
    leak: int
    wrong_kl: float

    def __post_init__(self) -> None:
        for name in ("prefill", "batches", "contexts"):
            given = getattr(self, name)
            if not (given or name == "contexts") or any(n < 1 for n in given) or len({*given}) < len(given):
                raise ConfigError(f"bench.{name}={list(given)}: one number or several, 1 or more, each once")
            if given and (why := outside(max(given), 1, MOST)):
                raise ConfigError(f"bench.{name}={list(given)}: {why}")
        for name, least in {
            "new": 1,
            "repeats": 1,
            "window": 2,
            "prompt": 1,
            "greedy": 1,
            "tokens": 1,
            "leak": 0,
        }.items():
            if why := outside(number := getattr(self, name), least, MOST):
                raise ConfigError(f"bench.{name}={number}: {why}")
        if self.tokens < self.window:
            raise ConfigError(f"bench.tokens={self.tokens}: at least a window, bench.window={self.window}")
        if self.prompt > self.window:
            raise ConfigError(f"bench.prompt={self.prompt}: at most a window, bench.window={self.window}")
        if self.leak and self.leak < FEWEST:
            raise ConfigError(f"bench.leak={self.leak}: 0, or {FEWEST} or more, of which a line can be drawn")
        if not self.wrong_kl > 0:
            raise ConfigError(f"bench.wrong_kl={self.wrong_kl}: nats, more than 0")

    @property
    def asked(self) -> int:
        """Steps of each cell in a round: a prompt's tokens are one each, as are those that follow in a batch."""
        written = self.new * (len(self.batches) + len(self.contexts))
        return (sum(self.prefill) + sum(self.contexts) + written) * (self.repeats + 1)
