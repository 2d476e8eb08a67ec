"""What a notebook shows of reports, plans and sweeps: a short card in a line, and all of it as HTML."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from pipeline.tables import GLUE, Grid
from pipeline.terminal import safe


class Card(ABC):
    """Has `shown`, what `console.out` takes, and shows it in a notebook; a picture as it is."""

    @property
    @abstractmethod
    def shown(self) -> Sequence[Any]:
        """Tables, paths and lines, in order."""

    def _repr_html_(self) -> str:
        return "\n".join(map(_html, self.shown))


def _html(item: Any) -> str:
    if isinstance(item, Grid):
        return item.html
    if isinstance(item, Path) and item.suffix == ".png" and item.is_file():
        from base64 import b64encode

        return f'<img width="640" src="data:image/png;base64,{b64encode(item.read_bytes()).decode()}">'
    return f"<div>{escape(safe(str(item)).replace(GLUE, ' '))}</div>"
