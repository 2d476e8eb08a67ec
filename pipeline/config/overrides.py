"""From what people type to what Hydra's grammar takes: a text or a path as it is, and the model that a source holds.

Both doors, the command line and `pipeline.api`, send overrides through `as_typed` once; whatever composes a config (a
job of a sweep too) sends them through `with_model`, which changes nothing that is settled already.
"""

import re
from collections.abc import Sequence
from os.path import exists, expanduser
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline import prompts
from pipeline.config import extend
from pipeline.config.compose import CONF, allowed_packages, options, plugin_folder, plugins
from pipeline.config.resolve import Resolver
from pipeline.errors import ConfigError, PlanError, SourceError, did_you_mean
from pipeline.planning.wiring import make_plan
from pipeline.stage import Checkpoint, Context

TEXT = "prompt"
PROMPTS = (TEXT, "prompts", "prompt_file")  # one of them says what is continued
STDIN = f"prompt_file={prompts.STDIN}"


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Hydra's quotes around every `prompt=TEXT`, and around a path that exists, where its grammar would change them.

    `prompt_file=-` becomes the text on standard input, so that runs of different texts differ in their names.
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
    if not given or override.startswith("-") or not (key.lstrip("+") == TEXT or exists(expanduser(value))):
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


def _plain(override: str, value: str) -> bool:
    """Whether Hydra takes `value` for what it is without quotes."""
    parsed = _parsed(override)
    return parsed is not None and not parsed.is_sweep_override() and parsed.value() == value and "${" not in value


def _parsed(override: str) -> Any:
    """Hydra's reading of an override; None when it has none."""
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException:
        return None


def with_model(overrides: Sequence[str], *, fetch: bool, config_dir: Path | None = None) -> list[str]:
    """`overrides` with the model as Hydra wants it: `model=NAME` becomes `+model=NAME`, and where there is only
    `model.source=`, the option that is for that checkpoint is added. That of a swept source is left to the jobs.

    Args:
        fetch: a source that lies elsewhere may be downloaded for it; otherwise its settings and headers must do.
        config_dir: as `--config-dir`, when it is not the process's.

    Raises:
        ConfigError: settings of a model and no model; or no option is for what the source holds.
        PlanError: the source cannot be read.
    """
    keys = [o.partition("=")[0].lstrip("+") for o in overrides]
    if any(k.partition("@")[0] == "model" for k in keys):
        return [f"+{o}" if o.startswith("model=") else o for o in overrides]
    of_model = [i for i, key in enumerate(keys) if key.startswith("model.")]
    if not of_model:
        return list(overrides)
    given = [o for o, key in zip(overrides, keys, strict=True) if key == "model.source"]
    if not given:
        raise ConfigError(f"{overrides[of_model[0]]}: {no_model()}")
    source = _parsed(given[-1])
    bare = [o.lstrip("+") if i in of_model else o for i, o in enumerate(overrides)]
    if source is None:  # Hydra says what is wrong with it
        return list(overrides)
    if source.is_sweep_override():
        return [f"++{o}" if i in of_model else o for i, o in enumerate(bare)]
    found = model_option(_value(source), [o for o in overrides if o.startswith("hub")], fetch, config_dir)
    return [*bare[: of_model[0]], f"+model={found}", *bare[of_model[0] :]]


def no_model() -> str:
    """What to do about a run without a model."""
    where = "model.source=DIR, FILE.gguf or hf://owner/name says which by itself, model=NAME chooses one"
    return f"no model chosen; {where}{did_you_mean('', options('model'), 40)}"


def model_option(source: str, hub: Sequence[str] = (), fetch: bool = True, config_dir: Path | None = None) -> str:
    """The model option whose `model_types` name this checkpoint's.

    Args:
        source: as in `model.source=`.
        hub: overrides that say where addresses lead.
        fetch, config_dir: as for `with_model`.

    Raises:
        as `with_model`.
    """
    kind = _opened(source, hub, fetch, config_dir).config.get("model_type")
    types = model_types(config_dir)
    if kind is None:
        raise ConfigError(
            f"model.source={source!r}: neither a config.json nor the file itself says which model it is; "
            f"model=NAME does{did_you_mean('', options('model'), 40)}"
        )
    if str(kind) not in types:
        raise ConfigError(
            f"model.source={source!r}: its model_type is {kind!r}, and no model option is for that"
            f"{did_you_mean(str(kind), types)}; model=NAME 'model.model_types=[{kind}]' applies an option's rules to it"
        )
    return types[str(kind)]


def model_types(config_dir: Path | None = None) -> dict[str, str]:
    """model_type of config.json → the option that is for it: ours, those in the user's folder, those of plugins.

    Raises:
        ConfigError: an option that is not YAML.
    """
    found: dict[str, str] = {}
    for file in (f for folder in _folders(config_dir) for f in sorted((folder / "model").glob("*.yaml"))):
        try:
            kinds = OmegaConf.select(OmegaConf.load(file), "model_types") or ()
        except Exception as why:  # PyYAML's errors and OmegaConf's have nothing in common
            raise ConfigError(f"{file}: cannot be read: {str(why).partition(chr(10))[0]}") from None
        for kind in kinds:
            found.setdefault(str(kind), file.stem)
    return found


def _folders(config_dir: Path | None) -> list[Path]:
    guests = [config_dir or extend.folder(), *map(plugin_folder, plugins())]
    return [CONF, *(folder for folder in guests if folder)]


def _opened(source: str, hub: Sequence[str], fetch: bool, config_dir: Path | None) -> Checkpoint:
    """The checkpoint as the stage `load` opens it, without composing a config."""
    name = next((o.partition("=")[2] for o in hub if o.startswith("hub=")), "huggingface")
    files = [folder / "hub" / f"{name}.yaml" for folder in _folders(config_dir)]
    file = next((f for f in files if f.exists()), None)
    if file is None:
        raise ConfigError(f"hub={name}: there is no {name!r} in hub{did_you_mean(name, options('hub'))}")
    tree = OmegaConf.create({"model": {"source": ""}, "hub": OmegaConf.load(file)})
    for override in hub:
        if override.startswith("hub.") and (parsed := _parsed(override)) is not None:
            OmegaConf.update(tree, parsed.key_or_group, parsed.value())
    tree.load = OmegaConf.load(CONF / "stages" / "load.yaml")
    node: Any = OmegaConf.to_container(tree.load, resolve=True)
    resolver = Resolver(allowed_packages())
    load = resolver.build({**node, "source": source}, "model")
    if resolver.problems:
        raise PlanError(resolver.problems, exit_code=ConfigError.exit_code)
    # An outline tells, and spares a download of what no option is for; some files cannot be outlined.
    plan = make_plan({"load": load}, Context(Path(), fetch=False))
    if plan.problems and fetch and "://" in source:
        plan = make_plan({"load": load}, Context(Path()))
    if plan.problems:
        raise PlanError(plan.problems, exit_code=SourceError.exit_code)
    return plan.nodes["load"].result  # type: ignore[no-any-return]


def _value(override: Any) -> str:
    """The text that an override gives, interpolations followed."""
    try:
        return str(OmegaConf.create({"value": override.value()})["value"])
    except OmegaConfBaseException as why:
        said = str(why).partition("\n")[0]
        raise ConfigError(f"{override.input_line}: {said}; with model=NAME it can be looked up later") from None
