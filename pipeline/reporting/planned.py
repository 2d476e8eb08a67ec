"""A plan as a notebook shows it."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.errors import Problem
from pipeline.planning.wiring import Plan
from pipeline.reporting.card import Card
from pipeline.reporting.console import kernels_table, plan_tables
from pipeline.units import show_bytes


@dataclass(frozen=True, repr=False)
class Planned(Card):
    """What a run would do and take.

    Attributes:
        plan: its stages with what flows between them.
        problems: what is in its way; with any, the run would stop before it begins.
    """

    plan: Plan = field()
    problems: tuple[Problem, ...]

    @property
    def seconds(self) -> float | None:
        """How long it would take; None: this machine has not done such before."""
        return self.plan.time.seconds if self.plan.time is not None else None

    @property
    def stages(self) -> list[dict[str, Any]]:
        """A row each, what pandas takes: stage, what it takes and gives, seconds (None: not known)."""
        time = self.plan.time
        return [
            {
                "stage": node.name, "takes": ", ".join(node.inputs.values()),
                "gives": getattr(node.gives, "__name__", str(node.gives)),
                "seconds": time.of(node.name) if time is not None else None,
            }
            for node in self.plan.nodes.values()
        ]  # fmt: skip

    @property
    def shown(self) -> list[Any]:
        wrong = [f"error: {p}" for p in self.problems]
        if self.plan.failures:  # what could be planned all the same is not what was asked for
            return wrong
        return [*plan_tables(self.plan), *kernels_table(self.plan), *wrong]

    def __repr__(self) -> str:
        said = [
            f"{len(self.plan.nodes)} stages",
            f"writes {show_bytes(self.plan.written_nbytes + self.plan.kept_nbytes)}",
        ]
        if self.plan.memory is not None:
            said.append(f"peak memory {show_bytes(self.plan.memory.peak)}")
        time = self.plan.time.said() if self.plan.time is not None else ""
        said.append(f"about {time}" if time else "time not known yet")
        said += [f"{len(self.problems)} problem{'s' * (len(self.problems) != 1)}"] if self.problems else []
        return f"plan: {', '.join(said)}: {self.plan.context.run_dir}"
