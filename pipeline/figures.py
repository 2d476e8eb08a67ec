"""Figures: what a stage found, as a number with its unit. How it looks is decided where it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.units import show_bytes

SO_FAR = "…"  # behind a number of a run that is not complete
STILL = f"{SO_FAR} the last value so far: the run is not complete"

KEYS = {"value", "unit", "form"}
Better = Literal["lower", "higher", ""]


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with its unit; JSON-able field by field, and what is written is read again as the same.

    Attributes:
        value: in `unit`.
        unit: `B` (shown as KiB, MiB, …), `%`, `×`, `dB`, `s`, `tokens/s`, `nats`, …; empty: a plain number.
        form: how the number is shown, as `format` takes it.
        better: which of two is better: the `lower`, the `higher`; empty: neither.

    Raises:
        ValueError: `form` is not for such a number.
    """

    value: int | float
    unit: str = ""
    form: str = ".3f"
    better: Better = ""

    def __post_init__(self) -> None:
        format(self.value, self.form)

    def __str__(self) -> str:
        if self.unit == "B":
            return show_bytes(self.value)
        return f"{self.value:{self.form}}{'' if self.unit in ('', '×') else ' '}{self.unit}"


class SoFar(Figure):
    """The last value so far, of a run that is not complete; is shown with a mark behind its number."""

    __slots__ = ()

    @classmethod
    def of(cls, figure: Figure) -> "SoFar":
        return cls(figure.value, figure.unit, figure.form, figure.better)

    def __str__(self) -> str:
        number, space, unit = Figure.__str__(self).partition(" ")
        return f"{number}{SO_FAR}{space}{unit}"


Cell = str | Figure
"""Of a table for people: a figure, or text."""


def cell(value: Any) -> Cell:
    """A figure or a text as a manifest has it; a number alone is a figure without a unit."""
    if isinstance(value, Mapping) and value.keys() in (KEYS, {*KEYS, "better"}):
        number = value["value"]  # what is not finite is text in JSON
        number = float(number) if isinstance(number, str) else number
        return Figure(number, str(value["unit"]), str(value["form"]), value.get("better", ""))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Figure(value, form="")
    return str(value)


def figures_of(result: Any) -> dict[str, Cell]:
    """What a stage's result, as a report has it, wants to see compared."""
    given = result.get("figures") if isinstance(result, Mapping) else None
    return {str(name): cell(value) for name, value in given.items()} if isinstance(given, Mapping) else {}
