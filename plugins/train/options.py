"""What a trainer is told beside its parts, as plugin nodes: what it saves, what it looks at, which models at once."""

from dataclasses import dataclass

from pipeline.bounds import outside

STATES = "states"  # folder of saved states, in that of a training
MOST = 10**9  # updates, examples, tokens: more than any training has
MOST_SECONDS = 366 * 24 * 3600.0  # a year
HOTTEST = 1e6  # beyond which all choices are as likely


@dataclass(frozen=True)
class Saving:
    """When the state is saved, from which a run that was killed goes on.

    Attributes:
        every: updates; 0: only where the run ends early.
        seconds: or when so many have passed since it was saved last; null: never by time.
        keep: how many of the latest are kept, the best one beside them where there is an evaluation.
    """

    every: int = 0
    seconds: float | None = 300.0
    keep: int = 2

    def __post_init__(self) -> None:
        if why := outside(self.every, 0, MOST):
            raise ValueError(f"every={self.every}: {why}")
        if self.seconds is not None and not 0 < self.seconds <= MOST_SECONDS:
            raise ValueError(f"seconds={self.seconds}: more than 0 is allowed, {MOST_SECONDS:,.0f} at most, or null")
        if why := outside(self.keep, 1, MOST):
            raise ValueError(f"keep={self.keep}: {why}")


@dataclass(frozen=True)
class Looking:
    """What is looked at while training.

    Attributes:
        every: updates between evaluations on what is held out; 0: only before the first update and after the last.
        examples: of what is held out, at most; null: all.
        patience: evaluations without a new best after which training stops early, and gives the best weights; null: it
            never does.
        prompts: texts that are continued when it is looked, so that somebody sees what the loss means.
        tokens: of a continuation.
        temperature: of its choices; 0: always the likeliest.
        groups: patterns of names → the norms of their gradients together, and of their updates, under the pattern, in
            every row of metrics.
    """

    every: int = 0
    examples: int | None = 256
    patience: int | None = None
    groups: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    tokens: int = 32
    temperature: float = 0.8

    def __post_init__(self) -> None:
        if why := outside(self.every, 0, MOST):
            raise ValueError(f"every={self.every}: {why}")
        if self.examples is not None and (why := outside(self.examples, 1, MOST)):
            raise ValueError(f"examples={self.examples}: {why}, or null for all")
        if why := outside(self.tokens, 1, MOST):
            raise ValueError(f"tokens={self.tokens}: {why}")
        if why := outside(self.temperature, 0, HOTTEST):
            raise ValueError(f"temperature={self.temperature}: {why}")
        if self.patience is not None and (why := outside(self.patience, 1, MOST)):
            raise ValueError(f"patience={self.patience}: {why}, or null")
        if self.patience is not None and not self.every:
            raise ValueError(f"patience={self.patience}: is of evaluations, and every=0 has none in between; every=100")


@dataclass(frozen=True)
class Member:
    """One model of a population.

    Attributes:
        seed: of its fresh weights, of which examples come when, and of what is random.
        rate: instead of the optimizer's.
    """

    seed: int
    rate: float

    def __str__(self) -> str:
        return f"seed {self.seed}, rate {self.rate:g}"


@dataclass(frozen=True)
class Population:
    """Models that are trained at once, in one program: each seed with each rate. Those that are on a mesh are divided
    among its devices, whatever its rules; what comes out is the best of them.

    Attributes:
        seeds: see `Member`.
        rates: see `Member`.
    """

    seeds: tuple[int, ...]
    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, given in (("seeds", self.seeds), ("rates", self.rates)):
            if not given or len(set(given)) != len(given):
                raise ValueError(f"{name}={list(given)}: one or more are needed, each once")
        if not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates={list(self.rates)}: above 0 each")
        if any(seed < 0 for seed in self.seeds):
            raise ValueError(f"seeds={list(self.seeds)}: 0 or more each")

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(Member(seed, rate) for seed in self.seeds for rate in self.rates)
