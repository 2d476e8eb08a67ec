"""Markup that is safe by construction: every text and every attribute is escaped here, and nowhere else."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from markupsafe import Markup, escape

from pipeline.figures import Figure
from pipeline.terminal import safe

BREAKS = re.compile(r"((?<!\d)[._/=,-]+|[._/=,-]+(?!\d))(?=\w)")  # not within a number
VOID = ("input",)  # elements that have no end
SHORT = 18  # characters that are not broken
DIGITS = 3  # behind the point, of a coordinate


def clean(value: Any) -> str:
    """Somebody's text as a page shows it: no secrets, and what would turn the direction of text, as its escape."""
    return safe(str(value))


def el(tag: str, *inside: Any, **attributes: Any) -> Markup:
    """An element. `_` in the name of an attribute is a hyphen, one at its end is left out (`class_`); numbers are
    rounded; None and False leave an attribute out, and True has no value.

    Args:
        inside: markup as it is, other things as text.
    """
    said = "".join(_attribute(name, value) for name, value in attributes.items() if value is not None)
    body = Markup("").join(part if isinstance(part, Markup) else escape(clean(part)) for part in inside)
    if tag in VOID:
        return Markup(f"<{tag}{said}>")  # noqa: S704
    return Markup(f"<{tag}{said}>{body}</{tag}>")  # noqa: S704  # what is in it is escaped


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _attribute(name: str, value: Any) -> str:
    if value is False:
        return ""
    shown = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {shown}"
    return f' {shown}="{number(value) if isinstance(value, int | float) else escape(clean(value))}"'


def number(value: float) -> str:
    """A coordinate."""
    text = f"{value:.{DIGITS}f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return "0" if text == "-0" else text


def exact(value: float) -> str:
    """A number as it is read again: what `data-v` has."""
    return repr(value) if math.isfinite(value) else str(value)


def shown(value: Any) -> str:
    """A cell's text."""
    if isinstance(value, Figure):
        return " ".join(filter(None, said(value)))
    return "–" if value is None or value == "" else clean(value)


def said(figure: Figure) -> tuple[str, str]:
    """A number, and its unit. What is not nothing is not shown as 0.0000."""
    text = str(figure)
    if figure.value and math.isfinite(figure.value) and not set(text.partition(" ")[0]) & set("123456789"):
        text = str(replace(figure, form=".2g"))
    number, _, unit = text.partition(" ")
    return number, unit


def name(text: str) -> Markup:
    """A text that is broken behind what joins the parts of a name, where it has to be."""
    if len(text) < SHORT:
        return Markup(escape(clean(text)))  # noqa: S704
    return Markup(BREAKS.sub(r"\1<wbr>", str(escape(clean(text)))))  # noqa: S704  # it is escaped
