"""Which group of tensors takes which quantization, within a budget: what each costs alone is added up, and a solver of
integer programs chooses (a multiple-choice knapsack; Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, ch. 11).

Losses are small and nearly independent, so the KL divergence of all together is nearly the sum over groups; how far
from it was measured, with every group quantized alike, and is allowed for (`Together`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log

from pipeline.errors import StageError

LEAST = 1e-12  # nats, of a sum: below it nothing is lost
STEPS = 24  # budgets that a curve is drawn through


@dataclass(frozen=True, slots=True)
class Cost:
    """What one group costs with one quantization, all others as they were.

    Attributes:
        kl: from the model as it was, nats a token.
        nbytes: of the group's tensors.
    """

    kl: float
    nbytes: int


Costs = Mapping[str, Mapping[str, Cost]]
"""Group → name of a quantization → what that costs."""

Picks = Mapping[str, str]
"""Group → the name of what it takes."""


@dataclass(frozen=True)
class Together:
    """How the KL of several groups together follows from the sum over them.

    Attributes:
        points: (sum over groups, all of them together), as measured, nats a token.
    """

    points: tuple[tuple[float, float], ...]

    def predicted(self, total: float) -> float:
        """The KL of groups whose own add up to `total`: the ratio is interpolated over the logarithm of the sum, and at
        the ends it is that of the nearest point."""
        known = sorted((log(s), log(t) - log(s)) for s, t in self.points if s > LEAST and t > LEAST)
        if not known or total <= LEAST:
            return total
        at = log(total)
        below = [p for p in known if p[0] <= at]
        above = [p for p in known if p[0] > at]
        if not below or not above:
            return total * exp((below[-1] if below else above[0])[1])
        (x0, y0), (x1, y1) = below[-1], above[0]
        return total * exp(y0 + (y1 - y0) * (at - x0) / (x1 - x0))


def total(costs: Costs, picks: Picks) -> Cost:
    """What the groups cost that take `picks`, added up."""
    taken = [costs[group][name] for group, name in picks.items()]
    return Cost(sum(c.kl for c in taken), sum(c.nbytes for c in taken))


def cheapest(costs: Costs, nbytes: float) -> Picks:
    """For every group the quantization with which the sum of KL is least in so many bytes.

    Raises:
        StageError: nothing is as small.
    """
    least = sum(min(c.nbytes for c in of.values()) for of in costs.values())
    if nbytes < least:
        raise StageError(f"nothing is as small as {nbytes:,.0f} bytes: the smallest of every group come to {least:,}")
    return _solved(costs, nbytes)


def smallest(costs: Costs, kl: float, together: Together) -> Picks:
    """For every group the quantization with which all are smallest and cost at most `kl` nats a token, as predicted.

    Raises:
        StageError: nothing loses as little.
    """
    least = together.predicted(sum(min(c.kl for c in of.values()) for of in costs.values()))
    if kl < least:
        raise StageError(f"nothing loses as little as {kl:g} nats: the best of every group come to {least:.4g}")
    low = sum(min(c.nbytes for c in of.values()) for of in costs.values())
    high = sum(max(c.nbytes for c in of.values()) for of in costs.values())
    found = cheapest(costs, high)
    while high - low > max(1, high >> 12):  # what more bytes cost is never more, so halves lead there
        middle = (low + high) // 2
        picks = cheapest(costs, middle)
        if together.predicted(total(costs, picks).kl) <= kl:
            found, high = picks, total(costs, picks).nbytes
        else:
            low = middle
    return found


def curve(costs: Costs, steps: int = STEPS) -> list[Picks]:
    """The best of each of `steps` budgets, from the smallest to where more bytes gain nothing; each once."""
    low = sum(min(c.nbytes for c in of.values()) for of in costs.values())
    high = total(costs, _solved(costs, float("inf"))).nbytes
    budgets = [low + (high - low) * n / (steps - 1) for n in range(steps)]
    found = [cheapest(costs, max(low, budget)) for budget in budgets]
    return [picks for n, picks in enumerate(found) if picks not in found[:n]]


def _solved(costs: Costs, nbytes: float) -> Picks:
    """
    Raises:
        StageError: the solver gave up.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    cells = [(group, name) for group, of in costs.items() for name in of]
    kl = np.array([costs[g][n].kl for g, n in cells])
    size = np.array([costs[g][n].nbytes for g, n in cells], float)
    unit = size.max(initial=1.0)  # solvers compare with absolute tolerances
    scale = kl.max(initial=LEAST)
    one = np.array([[float(g == group) for g, _ in cells] for group in costs])
    held = [LinearConstraint(one, 1, 1)]
    if nbytes < float("inf"):
        held.append(LinearConstraint(size[None] / unit, -np.inf, nbytes / unit))
    tie = 1e-9 * size / unit  # of equals the smaller
    said = milp(
        kl / max(scale, LEAST) + tie, constraints=held, integrality=np.ones(len(cells)), bounds=Bounds(0, 1),
        options={"mip_rel_gap": 1e-6, "time_limit": 60.0},
    )  # fmt: skip
    if said.x is None:
        raise StageError(f"no choice was found within {nbytes:,.0f} bytes: {said.message}")
    return {group: name for (group, name), taken in zip(cells, said.x, strict=True) if taken > 0.5}


def grouped(names: Sequence[str], alike: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    """Group → its tensors: each its own, but those that differ in one part of their names, of the parts that `alike`
    has together, are one: `q_proj`, `k_proj` and `v_proj` of a layer, which others keep in one matrix."""
    merged = {part: "+".join(parts) for parts in alike for part in parts}
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(".".join(merged.get(part, part) for part in name.split(".")), []).append(name)
    return found
