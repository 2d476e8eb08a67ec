"""Optimizers as nodes, which know no framework: what they are called and take is optax's, which `build` imports.

Each gives updates for a rate of 1; the step multiplies them by the rate of its schedule and of the parameter's group.
So the rate is a number of the step's own, and a population has as many as members.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import prod
from typing import Any, ClassVar, Protocol

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.hooks import hooks_of, optional
from plugins.train.schedules import Schedule

UNDECAYED = ("*norm.weight", "*bias", "*sinks")
"""What weight decay leaves alone: norms, biases, sinks."""
NO_MATRICES = ("*embed_tokens.weight", "lm_head.weight", "*norm.weight", "*bias", "*sinks")
"""What Muon leaves to Adam: what is no matrix that turns one hidden state into another."""


class Optimizer(Protocol):
    """A plugin node.

    Attributes:
        rate: of learning, at its highest.
        schedule: how it goes over a run.
        clip: the global norm of all gradients together, above which they are scaled down to it; null: they never are.
        groups: pattern of parameters' names → factor on their rate; the first that matches counts, 0 leaves them as
            they are, and out of the norm that `clip` is for.
    """

    @property
    def rate(self) -> float: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def clip(self) -> float | None: ...

    @property
    def groups(self) -> Mapping[str, float]: ...

    def build(self, parameters: Mapping[str, Any]) -> Any:
        """An `optax.GradientTransformation` for a rate of 1, decay included, without clipping.

        Args:
            parameters: name → array, or its shape and dtype.
        """
        ...


@hooks_of(Optimizer)
class OptimizerHooks:
    """What an optimizer may have beside that."""

    kept: Callable[[Mapping[str, tuple[int, ...]]], int] | None = None
    """Of parameters' shapes by name, how many numbers it keeps of all of them together; None: two of each."""

    unmatched: Callable[[Collection[str]], Iterable[Problem]] | None = None
    """Of the names of all parameters that are trained: its patterns that are for none of them; None: it has none."""


EPS = (1e-30, 1e3)  # less is 0 in fp32 beside the root of what is 0 too; more is no Adam: updates no larger than 1e-3
MOST_STEPS = 100  # of an iteration whose 5 steps are enough (Jordan 2024)


@dataclass(frozen=True, kw_only=True)
class Common:
    """What the optimizers here have in common.

    Attributes:
        rate, schedule, clip, groups: see `Optimizer`.
        decay: of weights, times the rate.
        undecayed: patterns of the names of parameters that do not decay.
    """

    rate: float = 1e-3
    schedule: Schedule = field(default_factory=Schedule)
    clip: float | None = 1.0
    groups: Mapping[str, float] = field(default_factory=dict)
    decay: float = 0.1
    undecayed: tuple[str, ...] = UNDECAYED

    moments: ClassVar[int] = 2
    """Numbers that are kept of each of a parameter."""
    limits: ClassVar[Mapping[str, tuple[float, float | None]]] = {}
    """Number → the least that it may be, and what it has to be below."""

    def __post_init__(self) -> None:
        if problems := list(self._problems()):
            raise PlanError(problems)

    def _problems(self) -> Iterator[Problem]:
        if not self.rate > 0:
            yield Problem("rate", f"{self.rate}: a number above 0 is needed")
        elif self.decay * self.rate >= 1:
            text = f"{self.decay}: times the rate, {self.rate}, it is to be below 1"
            yield Problem("decay", f"{text}, or an update leaves nothing of weights")
        for name, (least, below) in {"decay": (0, None), **self.limits}.items():
            value = getattr(self, name)
            if not (least <= value and (below is None or value < below)):
                allowed = f"from {least}" + ("" if below is None else f" to below {below}")
                yield Problem(name, f"{value}: a number {allowed} is needed")
        if self.clip is not None and not self.clip > 0:
            yield Problem("clip", f"{self.clip}: a norm above 0 is needed, or null")
        for pattern, factor in self.groups.items():
            if not factor >= 0:
                yield Problem(f"groups.{pattern}", f"{factor}: a factor from 0 is needed")

    def kept(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """See `OptimizerHooks`."""
        return self.moments * sum(map(prod, shapes.values()))

    def unmatched(self, names: Collection[str]) -> Iterator[Problem]:
        """See `OptimizerHooks`. The usual patterns are for models that have such."""
        yield from unused("undecayed", (p for p in self.undecayed if p not in UNDECAYED), names)

    def decays(self, parameters: Mapping[str, Any]) -> dict[str, bool]:
        """Parameter → whether it decays."""
        return {name: not matches(name, self.undecayed) for name in parameters}

    def decaying(self, transformation: Any, parameters: Mapping[str, Any]) -> Any:
        """An `optax.GradientTransformation` that has no decay of its own, with this one."""
        import optax

        # Updates are negative.
        return optax.chain(transformation, optax.add_decayed_weights(-self.decay, self.decays(parameters)))


@dataclass(frozen=True, kw_only=True)
class AdamW(Common):
    """Adam with decoupled weight decay (arXiv 1711.05101).

    Attributes:
        b1, b2: decay of the averages of gradients and of their squares.
        eps: beside the root of the latter.
    """

    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8

    limits: ClassVar = {"b1": (0, 1), "b2": (0, 1), "eps": EPS}

    def build(self, parameters: Mapping[str, Any]) -> Any:
        import optax

        mask = self.decays(parameters)
        return optax.adamw(1.0, self.b1, self.b2, self.eps, weight_decay=self.decay, mask=mask)


@dataclass(frozen=True, kw_only=True)
class Muon(Common):
    """Momentum made orthogonal for matrices, each expert's by itself (github.com/KellerJordan/Muon); Adam for the rest.

    Updates of matrices have the root mean square that Adam's have (arXiv 2502.16982, 2.2), so that one rate and one
    decay are for both.

    Attributes:
        momentum: decay of the average of gradients (Nesterov's).
        steps: of the iteration that makes it orthogonal.
        b1, b2, eps: see `AdamW`; of Adam.
        adam: patterns of the names of parameters that Adam is for, beside those that are no matrices `[out, in]` or
            stacks of such.
    """

    momentum: float = 0.95
    steps: int = 5
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    adam: tuple[str, ...] = NO_MATRICES

    limits: ClassVar = {"momentum": (0, 1), "steps": (1, MOST_STEPS), "b1": (0, 1), "b2": (0, 1), "eps": EPS}

    def build(self, parameters: Mapping[str, Any]) -> Any:
        import optax
        from optax.contrib import MuonDimensionNumbers, muon

        matrices = {name: w for name, w in parameters.items() if self.is_matrix(name, w.ndim)}
        dims = {name: MuonDimensionNumbers(w.ndim - 1, w.ndim - 2) for name, w in matrices.items()}
        turned = muon(
            1.0, ns_steps=self.steps, beta=self.momentum, consistent_rms=0.2, muon_weight_dimension_numbers=dims
        )
        rest = tuple(name for name in parameters if name not in dims)
        both = {"muon": (turned, tuple(dims)), "adam": (optax.adam(1.0, self.b1, self.b2, self.eps), rest)}

        def init(params: Any) -> Any:
            return {kind: one.init({n: params[n] for n in names}) for kind, (one, names) in both.items()}

        def update(changes: Any, state: Any, params: Any = None) -> Any:
            found: dict[str, Any] = {}
            kept = {}
            for kind, (one, names) in both.items():
                given, own = ({n: tree[n] for n in names} for tree in (changes, params))
                some, kept[kind] = one.update(given, state[kind], own)
                found |= some
            return {name: found[name] for name in changes}, kept

        return self.decaying(optax.GradientTransformation(init, update), parameters)

    def kept(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """See `OptimizerHooks`."""
        return sum(prod(s) * (1 if self.is_matrix(name, len(s)) else 2) for name, s in shapes.items())

    def unmatched(self, names: Collection[str]) -> Iterator[Problem]:
        """See `OptimizerHooks`."""
        yield from super().unmatched(names)
        yield from unused("adam", (p for p in self.adam if p not in NO_MATRICES), names)

    def is_matrix(self, name: str, dims: int) -> bool:
        """Whether Muon is for a parameter of so many dimensions."""
        return dims in (2, 3) and not matches(name, self.adam)


@dataclass(frozen=True, kw_only=True)
class SGD(Common):
    """Gradient descent, with momentum if that is above 0.

    Attributes:
        momentum, nesterov: decay of the sum of gradients, and whether the next one is looked ahead to.
    """

    rate: float = 1e-2
    momentum: float = 0.0
    nesterov: bool = False
    decay: float = 0.0

    limits: ClassVar = {"momentum": (0, 1)}

    def kept(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        """See `OptimizerHooks`."""
        return sum(map(prod, shapes.values())) if self.momentum else 0

    def build(self, parameters: Mapping[str, Any]) -> Any:
        import optax

        return self.decaying(optax.sgd(1.0, self.momentum or None, self.nesterov), parameters)


@dataclass(frozen=True, kw_only=True)
class Lion(Common):
    """The sign of momentum (arXiv 2302.06675), at a tenth of Adam's rate and ten times its decay.

    Attributes:
        b1, b2: of the average that the sign is of, and of the one that is kept.
    """

    rate: float = 1e-4
    b1: float = 0.9
    b2: float = 0.99
    decay: float = 1.0

    moments: ClassVar = 1
    limits: ClassVar = {"b1": (0, 1), "b2": (0, 1)}

    def build(self, parameters: Mapping[str, Any]) -> Any:
        import optax

        mask = self.decays(parameters)
        return optax.lion(1.0, self.b1, self.b2, weight_decay=self.decay, mask=mask)


def matches(name: str, patterns: Any) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def factors(optimizer: Optimizer, names: Any) -> dict[str, float]:
    """Parameter → factor on its rate.

    Raises:
        PlanError: a group that no parameter is in; what `OptimizerHooks.unmatched` says.
    """
    problems = list(unused("groups", optimizer.groups, list(names)))
    if (unmatched := optional(optimizer, OptimizerHooks, "unmatched")) is not None:
        problems += unmatched(list(names))
    if problems:
        raise PlanError(problems)
    groups = optimizer.groups.items()
    return {n: next((factor for pattern, factor in groups if fnmatchcase(n, pattern)), 1.0) for n in names}


def unused(where: str, patterns: Iterable[str], names: Collection[str]) -> Iterator[Problem]:
    """Patterns that match no parameter."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            yield Problem(f"{where}.{pattern}", f"matches no parameter{did_you_mean(pattern, names)}")
