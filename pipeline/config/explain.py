"""Hydra's and OmegaConf's errors, said again with what was given, what is allowed and the nearest name.

Hydra stops at the first override it cannot place. Where all others work without the one that it names, that is all.
Else each override is tried again on its own on top of those that work, so that all bad ones are reported at once.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config import extend, moved, synonyms
from pipeline.config.compose import unfollowed
from pipeline.config.grammar import misread
from pipeline.config.options import CONF, options, search_override
from pipeline.config.overrides import parsed_override
from pipeline.config.synonyms import meant
from pipeline.errors import ConfigError, WeightmillError, did_you_mean, nearest, some

MOST_PLACES = 2
"""In which what is called as the end of a wrong key may be, and is meant; `dtype` and `path` are in many."""


def explain(error: Exception, overrides: Iterable[str], *, sweeps: bool = True) -> Exception:
    """A ConfigError that says what is wrong with `overrides`; `error` itself when it is not Hydra's.

    Args:
        sweeps: as `mistakes`.
    """
    index = isinstance(error, ValueError) and str(error).startswith("invalid literal for int()")  # a list has no field
    hydras = index or isinstance(error, HydraException | OmegaConfBaseException)
    if isinstance(error, WeightmillError) or not hydras:
        return error
    messages = mistakes(overrides, error if isinstance(error, HydraException) else None, sweeps=sweeps)
    if index and not messages:
        return error
    if not messages and isinstance(error, OmegaConfBaseException):
        refers = next((o.lstrip("+").partition("=")[0] for o in overrides if "${" in o), "config")
        messages = [str(unfollowed(error, refers))]
    return ConfigError("\n".join(messages) or str(error).partition("\n")[0])


def mistakes(overrides: Iterable[str], error: HydraException | None = None, *, sweeps: bool = True) -> list[str]:
    """What is wrong with each of `overrides`.

    Args:
        error: what Hydra said of them; None: nothing is known.
        sweeps: several values are several jobs, which are explained one by one; otherwise they are too many.
    """
    search = search_override(extend.folder())
    GlobalHydra.instance().clear()
    messages = []
    good: list[str] = []
    lost: set[str] = set()  # groups of which nothing was chosen, whose fields nobody can know
    with initialize_config_dir(str(CONF), version_base="1.3"):
        tried = sorted(overrides, key=lambda o: not _adds(o))  # whose fields are not there without it
        if error is not None and (found := _the_only(error, tried, search)):
            return [found]
        for override in tried:
            group = override.lstrip("+").partition("=")[0].partition(".")[0]
            if group in lost:
                continue
            if wrong := misread(override):
                messages.append(wrong)
                lost |= {group} if "." not in override.partition("=")[0] else set()
                continue
            if group == "hydra":
                continue
            if _sweeps(override):
                messages += [] if sweeps else [_several(override)]
                continue
            try:
                compose("config", [*search, *good, override])
                good.append(override)
            except (HydraException, OmegaConfBaseException, ValueError) as why:
                messages.append(_message(override, why, partial(compose, "config", [*search, *good])))
                lost |= {group} if "." not in override.partition("=")[0] else set()
    return messages


def _the_only(error: HydraException, overrides: Sequence[str], search: Sequence[str]) -> str | None:
    """What is wrong with the override that `error` names, where it names one and all others work."""
    text = f"{error}\n{error.__cause__ or ''}"
    named = [o for o in overrides if not o.startswith("hydra.") and any(word in text for word in _words(o))]
    if len(named) != 1 or any(_sweeps(o) or misread(o) for o in overrides):
        return None
    group = named[0].lstrip("+~").partition("=")[0].partition(".")[0]
    if any(o.lstrip("+").partition("=")[0] == group for o in overrides[overrides.index(named[0]) + 1 :]):
        return None  # that one may be what is wrong: an option without a field that was set
    try:
        config = compose("config", [*search, *(o for o in overrides if o != named[0] and not o.startswith("hydra."))])
    except (HydraException, OmegaConfBaseException, ValueError):
        return None
    return _message(named[0], error, lambda: config)


def _words(override: str) -> tuple[str, str]:
    """How Hydra's messages call it: the field, or the group and its option."""
    key, _, value = override.lstrip("+~").partition("=")
    return f"'{key}'", f"'{key.partition('@')[0]}/{value}'"


def _adds(override: str) -> bool:
    """Whether it chooses an option of a group of which the config has none: a model."""
    return override.startswith("+") and bool(options(override.lstrip("+").partition("=")[0].partition("@")[0]))


def _several(override: str) -> str:
    """What to do about several values where one belongs."""
    key, _, value = override.lstrip("+").partition("=")
    if options(key.partition("@")[0]) and key != "stages":
        parsed = parsed_override(override)
        try:
            first = next(iter(parsed.sweep_string_iterator()))
        except HydraException:  # glob(…), of whose names Hydra knows in a sweep only
            first = "NAME"
        return f"{override}: these are several runs, and -m runs each of them; or choose one, such as {key}={first}"
    texts = ", ".join(repr(part.strip())[1:-1] for part in value.split(","))
    return (
        f"{override}: commas are between the values of several runs, which -m runs; "
        f"a list is written '{key}=[{texts}]', and one text with commas in it '{key}=\"{value}\"'"
    )


def _sweeps(override: str) -> bool:
    """A sweep's choices are explained job by job."""
    try:
        return bool(OverridesParser.create().parse_override(override).is_sweep_override())
    except HydraException:
        return False


def _message(override: str, why: Exception, config: Callable[[], Any]) -> str:
    """`config`: what there is without it."""
    text = f"{why}\n{why.__cause__ or ''}"
    key, _, value = override.lstrip("+~").partition("=")
    if key.startswith("kernels.") and (key.count(".") > 1 or value.startswith("{")):
        _, op, *field = key.split(".")
        return f"{override}: kernels.{op} {moved.kernel(op, value.strip('[]') if field else '…')}"
    if "Could not append to config" in text:
        return f"{override}: {key} has a value; without + it is replaced: {key}={value}"
    group, _, package = key.partition("@")
    if package and not options(group):
        return f"{override}: @ is for groups, and there is no group {group!r}{did_you_mean(group, _groups())}"
    if options(group) and (found := _of_group(override, group, text)):
        return found
    missing = re.search(r"Could not (?:find|load) '([^']+)/([^'/]+)'", text)
    if missing and (choices := options(missing[1])):
        return f"{override}: there is no {missing[2]!r} in {missing[1]}{did_you_mean(missing[2], choices)}"
    if isinstance(why, ValueError) and "invalid literal" in text:
        parent, _, name = key.rpartition(".")
        return f"{override}: {parent} is a list, and has no {name!r}; it is set as a whole: {parent}=[…]"
    if "Could not delete" in text or "Could not override" in text or "is not in struct" in text or "Key " in text:
        if ours := synonyms.instead(key, value):
            return f"{override}: there is no {key!r} here; say {ours}"
        return f"{override}: {_unknown_key(key, config(), _keys_of(override))}"
    if "Cannot merge DictConfig with ListConfig" in text:  # whichever of them was given
        if value.startswith("["):
            return f"{override}: a mapping is expected, {key}={{name: value}}"
        return f"{override}: a list is expected, '{key}=[{value}]'"
    return f"{override}: {str(why).partition(chr(10))[0]}"


def _of_group(override: str, group: str, text: str) -> str | None:
    """What is wrong with a choice, of which Hydra says `text`."""
    key, _, value = override.lstrip("+~").partition("=")
    choices = options(group)
    if missing := re.search(r"Could not (?:find|load) '([^']+)'", text):
        name = missing[1].rpartition("/")[2]
        shown = override.lstrip("+") if group == "model" else override
        if not name:
            return f"{shown}: a name is expected, without a space before it{did_you_mean('', choices)}"
        return f"{shown}: there is no {name!r} in {group}{meant(group, name) or did_you_mean(name, choices)}"
    if "Multiple values for" in text or "force-add of config groups" in text:
        if group == "model":
            return f"{override}: model is chosen twice; leave one of them out"
        return f"{override}: {group} has a value; without + it is replaced: {key}={value}"
    if inside := re.search(r"In '([^']+)': Could not override '/?([^'@]+)'", text):
        text = f"{inside[1]}.yaml overrides {inside[2]}, which has no default"
        return f"{override}: {text}; `- /{inside[2]}: NAME` among its defaults chooses it"
    if "No match in the defaults list" in text:
        return f"{override}: {group} is chosen with a plus: +{key}={value}{did_you_mean(value, choices)}"
    if lost := re.search(r"Could not override '([^']+)'", text):
        return f"{override}: {lost[1]} is set too, and is not in that {group}"
    return None


def _keys_of(override: str) -> list[str]:
    """Names that an override's value sets: of `mesh.axes={fsdp: 4}`, fsdp."""
    parsed = parsed_override(override)
    value = None if parsed is None else parsed.value()
    return list(map(str, value)) if isinstance(value, dict) else []


def _unknown_key(key: str, config: Any, below: list[str]) -> str:
    """What of `key` is not in the config, or else which of the names that its value sets there."""
    node = config
    parent = ""
    for part in key.split("."):
        if not OmegaConf.is_dict(node):
            return f"{parent!r} {'is null, so it has' if node._is_none() else 'has'} no fields"
        names = [str(k) for k in node if k != "_target_"]
        if known := moved.field(str(node.get("_target_")), part):
            return f"{part!r} in {parent} {known}"
        if part not in node:
            groups = _groups() if not parent else []
            if parent == "stages" and part in options("stages"):
                with_it = f"'stages=[{','.join(names)}]' with {part} where it belongs runs it"
                return f"{part!r} is none of this run's stages; {with_it}"
            near = _named(key, config) or did_you_mean(part, [*names, *groups])
            return f"there is no {part!r} in {parent or 'the config'}{near}{_elsewhere(key)}"
        parent = f"{parent}.{part}" if parent else part
        node = node._get_node(part)
        if node is not None and node._is_interpolation():
            return f"{parent!r} is {node._value()!r}; set that instead"
    names = [str(k) for k in node if k != "_target_"] if OmegaConf.is_dict(node) else []
    if strange := [name for name in below if name not in names]:
        said = [
            f"there is no {name!r} in {key}{did_you_mean(name, names)}, and {_added(key, name)} adds it"
            for name in strange
        ]
        return "; ".join(said)
    return f"{key!r} cannot be set so"


def _added(key: str, name: str) -> str:
    """What adds a name to a mapping; patterns, of whose dots a key would make levels, in braces."""
    return f"+{key}.{name}=…" if name.isidentifier() else f"'+{key}={{{name}: …}}'"


def _named(key: str, config: Any) -> str:
    """Where in the config, not far down, something is called so, if it is in few places: `sampling.max_tokens` for
    `max_tokens` and for `generate.max_tokens`; but not for `samplng.max_tokens`, in which another part is wrong."""
    group, _, name = key.rpartition(".")
    if key == "source":
        return "; did you mean model.source?"
    if any(OmegaConf.select(config, f"{near}.{name}") is not None for near in nearest(group, map(str, config))):
        return ""
    whole: Any = OmegaConf.to_container(config, resolve=False)
    nodes = {
        group: node for group, node in whole.items() if group not in ("stages", "hydra") and isinstance(node, dict)
    }
    found = [f"{group}.{name}" for group, node in nodes.items() if name in node]
    return f"; did you mean {' or '.join(found)}?" if found and (not group or len(found) <= MOST_PLACES) else ""


def _elsewhere(key: str) -> str:
    """Which options of its group have what `key` names: `mesh.axes.tensor` is there in tensor and fsdp_tensor."""
    group, *path = key.split(".")
    found = []
    for name in options(group) if path else ():
        file = CONF / group / f"{name}.yaml"
        node: Any = OmegaConf.to_container(OmegaConf.load(file)) if file.exists() else None
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        found += [f"{group}={name}"] if node is not None else []
    return f"; {some(found)} {'have' if found[1:] else 'has'} it" if found else ""


def _groups() -> list[str]:
    return sorted(p.name for p in CONF.iterdir() if p.is_dir() and not p.name.startswith("_"))
