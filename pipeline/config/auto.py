"""`quant=auto` is two runs: `flow=allocate`, which measures and writes rules, and what was asked, with these rules.

Which method a tensor takes is known before anything of a run is read, as sizes, memory and files follow from it; so a
run whose methods are measured comes after one that measures them. What that has measured is kept, as of any run.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.config.overrides import quoted
from pipeline.errors import ConfigError, did_you_mean

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


def _about(override: str, keys: Sequence[str]) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return any(key == one or key.startswith((f"{one}.", f"{one}/")) for one in keys)
