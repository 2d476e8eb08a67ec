"""What is wrong with one override as it is written, whatever the config holds: Hydra says it as its parser does."""

import re
import shlex

from pipeline.config.options import options
from pipeline.config.overrides import parsed_override, quoted
from pipeline.config.synonyms import meant
from pipeline.errors import did_you_mean

SEVERAL = ("stages", "experiment", "engines", "scales")  # groups of which several options are chosen together
NOT_BARE = re.compile(r"[^A-Za-z0-9_/.+:@%*?|$\[\]{}(),-]")  # characters that end a value outside quotes
KEY = re.compile(r"[A-Za-z_][\w-]*([./][\w-]+)*(@[\w./:-]*)?")
FUNCTION = re.compile(r"([A-Za-z_]\w*)\(.*\)", re.DOTALL)


def misread(override: str) -> str | None:
    """What is wrong with how `override` is written, and how it is written right; None: nothing, or it is a sweep's."""
    key, given, value = override.lstrip("+~").partition("=")
    if key == "hydra.run.dir":  # where Hydra would keep its own records, which the run's folder has
        return f"{override}: a run's folder is set by paths.run={value or 'DIR'}"
    if key.startswith("hydra"):
        return None
    if not KEY.fullmatch(key):
        return f"{override}: {_unfit_key(key, value)}" if given or override.startswith("~") else _no_setting(override)
    if override.startswith("~"):
        return f"{override}: a setting is taken away by its name alone, ~{key}" if given else None
    if not given:
        return _no_setting(override)
    parsed = parsed_override(override)
    if parsed is None:
        return f"{override}: {unread(key, value)}"
    group = key.partition("@")[0]
    if parsed.is_sweep_override() or "." in group or not options(group):
        return None
    return _unfit_choice(override, group, parsed.value())


def _no_setting(override: str) -> str:
    return f"{override!r}: a setting is written key=value"


def _unfit_key(key: str, value: str) -> str:
    if key != key.strip():
        return f"there are no spaces around '=': {key.strip()}={value.strip()}"
    if "[" in key:
        return f"a list is set as a whole: {key.partition('[')[0]}=[…]"
    cured = re.sub(r"([./])[./]+", r"\1", key).strip("./")
    cured = f"; did you mean {cured}={value}?" if cured != key and KEY.fullmatch(cured) else ""
    return f"{key!r} is no key, which is names with dots between them{cured}"


def _unfit_choice(override: str, group: str, chosen: object) -> str | None:
    """What is wrong with what an option of `group` is chosen by; whether there is one of that name is seen later."""
    several = chosen if isinstance(chosen, list) else []
    if group in SEVERAL and isinstance(chosen, list) and all(isinstance(name, str) for name in several):
        return None
    names = several if all(isinstance(name, str) for name in several) else []
    if len(names) > 1:
        first = f"{group}={names[0]}"
        return (
            f"{override}: one {group} is chosen, and these are {len(names)}: {first}, or all of them in turn, to "
            f"compare them, with -m {group}={','.join(names)}"
        )
    if isinstance(chosen, str) and "${" not in chosen and chosen != "???":
        return None
    said = override.partition("=")[2]
    if len(names) == 1:
        return f"{override}: an option is chosen by its name: {group}={names[0]}"
    if isinstance(chosen, dict):
        return f"{override}: an option is chosen by its name, and a setting of it is {group}.NAME=…"
    hint = meant(group, said) or did_you_mean("" if chosen is None else said, options(group))
    if group in SEVERAL:
        return f"{override}: names are expected, {group}=[NAME, NAME]{hint}"
    return f"{override}: {said} is no name of an option of {group}{hint}"


def unread(key: str, value: str) -> str:
    """What to do about a value that is outside Hydra's grammar."""
    if value.startswith("${"):
        return "a reference is written ${key.of.a.setting}, and its bracket closed"
    if value.startswith(("{", "[{")):
        kind, form = ("mapping", "{name: value}") if value.startswith("{") else ("list of mappings", "[{name: value}]")
        return f"a {kind} is written '{key}={form}', with a colon after every name{_unclosed(value)}"
    if value.startswith("["):
        parts = [part.strip().strip("\"'") for part in value.removeprefix("[").removesuffix("]").split(",")]
        texts = ", ".join(f'"{part}"' for part in parts if part)
        quote = "'" if "'" not in texts else ""
        return f"a list whose texts go in quotes, each in its own: {quote}{key}=[{texts}]{quote}{_unclosed(value)}"
    if value[:1] in ("'", '"') and value.count(value[0]) == 1:
        return f"the quote {value[0]} is not closed; without it: {shlex.quote(f'{key}={value[1:]}')}"
    if value.startswith(",") or value.endswith(","):
        return f"a comma is between two values; without it: {key}={value.strip(',')}"
    if (called := FUNCTION.fullmatch(value)) is not None:
        return f"{called[1]}(…) cannot be called so; as a text it goes in quotes: {shlex.quote(_text(key, value))}"
    if (found := NOT_BARE.search(value)) and '"' not in value:
        return f"{found[0]!r} ends a value; one with it goes in quotes, here '{key}=\"{value}\"'"
    return f"that is no value as it stands; a text goes in quotes: {shlex.quote(_text(key, value))}"


def _text(key: str, value: str) -> str:
    return f'{key}="{value}"' if '"' not in value and "\\" not in value else f"{key}={quoted(value)}"


def _unclosed(value: str) -> str:
    return "".join(f", {a} is not closed" for a, b in ("[]", "{}") if value.count(a) > value.count(b))
