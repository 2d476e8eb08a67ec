"""From what people type to what Hydra's grammar takes: a text or a path as it is.

Both doors, the command line and `pipeline.api`, send overrides through `as_typed` once; which model is meant is then
the business of `pipeline.planning.model_choice`.
"""

import json
import re
from collections.abc import Sequence
from os.path import exists, expanduser
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from pipeline import prompts
from pipeline.errors import ConfigError

TEXT = "prompt"
TEXTS = (TEXT, "system")  # as they are typed, whatever is in them
PROMPTS = (TEXT, "prompts", "prompt_file", "prompts_file")  # one of them says what is continued
HOME = re.compile(r"(^|[\[,]\s*)(~[\w.-]*/)")  # where a path begins, alone or in a list
STDIN = f"prompt_file={prompts.STDIN}"


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Hydra's quotes around every `prompt=TEXT`, and around a path that exists, where its grammar would change them.

    `~/` is the home that it is in a shell, which does not look behind `=`. `prompt_file=-` becomes the text on standard
    input, so that runs of different texts differ in their names.
    Everything else is Hydra's grammar: lists, numbers, and with `-m` commas.

    Raises:
        ConfigError: two answers to what is to be continued; a text that is no UTF-8; or as `prompts.read`.
    """
    keys = [o.partition("=")[0].lstrip("+") for o in overrides]
    if len(said := [k for k in PROMPTS if k in keys]) > 1:
        raise ConfigError(f"{' and '.join(said)}: one of them says what is continued (allowed: {', '.join(PROMPTS)})")
    return [_as_typed(f"{TEXT}={prompts.read(prompts.STDIN)}" if o.lstrip("+") == STDIN else o) for o in overrides]


def _as_typed(override: str) -> str:
    key, given, value = override.partition("=")
    if not given or override.startswith(("-", "~")):
        return override
    if key.lstrip("+") not in TEXTS:
        value = HOME.sub(lambda found: found[1] + expanduser(found[2]), value)
        override = f"{key}={value}"
        if not exists(value):
            return override
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{key}={value!r}: has bytes that are no UTF-8") from None
    return override if _plain(override, value) else f"{key}={quoted(value)}"


def quoted(text: str) -> str:
    """`text` as a quoted value of Hydra's grammar that composes to exactly `text`."""
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)  # else OmegaConf would interpolate
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", literal)
    closed = re.sub(r"(\\+)\Z", r"\1\1", escaped)
    return f"'{closed}'"


def listed(values: Sequence[str]) -> str:
    """A list of texts as a value of Hydra's grammar."""
    return f"[{','.join(v if re.fullmatch(r'[A-Za-z_./~][A-Za-z0-9_./~-]*', v) else quoted(v) for v in values)}]"


def _plain(override: str, value: str) -> bool:
    """Whether Hydra takes `value` for what it is without quotes."""
    parsed = parsed_override(override)
    if parsed is None or parsed.is_sweep_override() or "${" in value:
        return False
    found, is_text = parsed.value(), override.partition("=")[0].lstrip("+") in TEXTS
    if is_text or isinstance(found, str):
        return bool(found == value)
    # A folder may be called 2, or true: what counts devices is no text, and a folder is found by its number too.
    return isinstance(found, int | float | None) and json.dumps(found) == value


def parsed_override(override: str) -> Any:
    """Hydra's reading of an override; None when it has none."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException:
        return None


def for_jobs(overrides: Sequence[str]) -> list[str]:
    """Options of what is swept, as lists of one: `quant.search=mse` beside `quant=int8,int4` is of the jobs only.

    Hydra composes a sweep's own config without what is swept, and there `quant` has no such option.
    """
    parsed = [None if o.startswith("-") else parsed_override(o) for o in overrides]
    swept = {p.get_key_element().lstrip("+") for p in parsed if p is not None and p.is_sweep_override()}

    def of_jobs(override: str, said: Any) -> bool:
        group, dot, _ = override.partition("=")[0].lstrip("+").partition(".")
        return said is not None and bool(dot) and group in swept and not said.is_sweep_override() and "=" in override

    return [
        "{0}=choice({2})".format(*o.partition("=")) if of_jobs(o, p) else o
        for o, p in zip(overrides, parsed, strict=True)
    ]
