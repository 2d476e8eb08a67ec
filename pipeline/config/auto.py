"""`quant=auto` is two runs: `flow=allocate`, which measures and writes rules, and what was asked, with these rules.

Which method a tensor takes is known before anything of a run is read, as sizes, memory and files follow from it; so a
run whose methods are measured comes after one that measures them. What that has measured is kept, as of any run.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pipeline.config.overrides import quoted
from pipeline.config.spine import RunConfig
from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean

AUTO = "quant=auto"
SETTINGS = ("bits", "kl", "quants", "keep", "text")  # of quant=auto, and of flow=allocate by the same names
BESIDES = ("flow", "stages", "export", "sampling", "train", "data", "paths.run")  # what the first run is not told
RULES = "rules.yaml"

Then = Callable[[str | Path], list[str]]
"""The overrides of the second run, of the folder of the first."""


def two_runs(overrides: Sequence[str]) -> tuple[list[str], Then] | None:
    """The overrides of both runs; None: `quant=auto` is not asked for.

    Args:
        overrides: as typed.

    Raises:
        ConfigError: a setting that quant=auto does not have, or no budget.
    """
    if AUTO not in overrides:
        return None
    rest = [o for o in overrides if o != AUTO]
    own = [o for o in rest if o.lstrip("+").startswith("quant.")]
    chosen, budget = ["flow=allocate"], False
    for override in own:
        name, _, value = override.lstrip("+").removeprefix("quant.").partition("=")
        if name not in SETTINGS:
            raise ConfigError(f"{override}: quant=auto has no setting {name!r}{did_you_mean(name, SETTINGS)}")
        budget |= name in ("bits", "kl")
        chosen.append(f"allocate.{name}={value}")
    if not budget:
        raise ConfigError("quant=auto: no budget; quant.bits=4.25 is bits a weight at most, quant.kl=0.01 nats a token")
    if given := [o for o in rest if o.startswith("rules_file=")]:
        raise ConfigError(f"{AUTO} {given[0]}: the rules are either chosen or in a file; leave out one of them")
    others = [o for o in rest if o not in own]
    told = [o for o in others if not _about(o, BESIDES)]
    return [*told, *chosen], lambda folder: [*others, "quant=keep", f"rules_file={quoted(str(Path(folder) / RULES))}"]


class Both:
    """What neither of both runs reads is said once, by the second; what one of them reads was not typed for nothing."""

    def __init__(self) -> None:
        self._first: Mapping[str, Problem] | None = None

    def said(self, run: RunConfig) -> RunConfig:
        """The next of them, with what it is to say."""
        if self._first is None:
            self._first = run.unread
            return replace(run, unread={})
        unread = {k: p for k, p in run.unread.items() if k in self._first or _about(k, BESIDES)}
        return replace(run, unread=unread)


@contextmanager
def named_as_typed() -> Iterator[None]:
    """What is wrong with the first run is said by what was typed: `allocate.bits` is `quant.bits`."""
    try:
        yield
    except PlanError as why:
        found = [Problem(_typed(p.where), _typed(p.message)) for p in why.problems]
        raise PlanError(found, exit_code=why.exit_code) from None
    except ConfigError as why:
        raise ConfigError(_typed(str(why))) from None


def _typed(text: str) -> str:
    return re.sub(rf"\ballocate\.({'|'.join(SETTINGS)})\b", r"quant.\1", text)


def _about(override: str, keys: Sequence[str]) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return any(key == one or key.startswith((f"{one}.", f"{one}/")) for one in keys)
