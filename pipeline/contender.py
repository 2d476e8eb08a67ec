"""What a contender is: an engine that `flow=bench` measures beside others, on the same weights.

It runs in a process of its own that has loaded nothing else, on the cores that it is given, and reads a form of the
weights that we wrote for it. What it does not do is said as text, and becomes a row of the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pipeline.hooks import hooks_of


@dataclass(frozen=True, slots=True)
class Form:
    """In which form a contender reads weights.

    Attributes:
        quant, export: options, by name.
        own: what the contender makes of that by itself, once and before anything is measured
            (`ContenderHooks.prepare`), in its own words; empty: it reads the export.
        why_not: it does not run weights of this kind, and why; empty: it does.
        needs: modules that this form takes beside the contender's own, and what installs each.
    """

    quant: str = "none"
    export: str = "hf"
    own: str = ""
    why_not: str = ""
    needs: Mapping[str, str] = field(default_factory=dict)


class Loaded(Protocol):
    """A model, ready to run. What it is asked is asked twice, and the second time is measured."""

    @property
    def device_nbytes(self) -> int:
        """Bytes of the weights as they are held; 0: it does not say."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts of one length, in one batch, from nothing; back when the token after each is known."""

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        """The `new` likeliest tokens after each prompt, one batch, from nothing; no token ends a text.

        Args:
            seen: to be called `new` times: when the first token of all is known, the second, …
        """

    def score(self, ids: Sequence[int]) -> Any:
        """Logits [T, V] float32, of the token after each of `ids` [T]; columns beyond the vocabulary are left out."""


class Contender(Protocol):
    """A frozen dataclass that pickles; its module imports no framework until `load` is called."""

    @property
    def needs(self) -> Mapping[str, str]:
        """Modules that have to be there, and what to type to install each."""

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        """In which form it reads weights that are to be quantized so.

        Args:
            quant: an option, by name; `none`: not at all.
            config: config.json.
        """

    def load(self, place: Path, threads: int) -> Loaded:
        """Load what an export wrote.

        A contender whose reader has not found every weight that the model has raises StageError: what it made up
        in their place is not measured.

        Args:
            place: the export's folder, or what was prepared.
            threads: that compute; the process has as many cores.
        """

    def versions(self) -> Mapping[str, str]:
        """What it runs: package → version."""


@hooks_of(Contender)
class ContenderHooks:
    """What a contender may have beside that."""

    prepare: Callable[[Path, str, Path], None] | None = None
    """`prepare(place, own, to)`, of one whose forms have `own`: write that into `to`, an empty folder, which `load` is
    given then in place of the export's folder `place`. It has a process of its own."""
