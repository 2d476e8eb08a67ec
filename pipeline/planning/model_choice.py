"""The model option that is for a checkpoint: a bare `model.source=` is opened, and its model_type decides.

Both doors, the command line and `pipeline.api`, and whatever composes a config (a job of a sweep too) send overrides
through `with_model`, which changes nothing that is settled already.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.config.families import named_like
from pipeline.config.grammar import misread
from pipeline.config.joined import joined
from pipeline.config.model_types import model_types
from pipeline.config.options import CONF, allowed_packages, no_model, option_folders, options
from pipeline.config.overrides import parsed_override
from pipeline.config.resolve import Resolver
from pipeline.config.words import there
from pipeline.errors import MOST_NAMED, ConfigError, PlanError, Problem, SourceError, did_you_mean, nearest
from pipeline.planning.wiring import make_plan
from pipeline.stage import Checkpoint, Context


def with_model(overrides: Sequence[str], *, fetch: bool, config_dir: Path | None = None) -> list[str]:
    """`overrides` with the model as Hydra wants it: `model=NAME` becomes `+model=NAME`, and where there is only
    `model.source=`, the option that is for that checkpoint is added. That of a swept source is left to the jobs.
    `+experiment=NAME` becomes `experiment=NAME`.

    Args:
        fetch: a source that lies elsewhere may be downloaded for it; otherwise its settings and headers must do.
        config_dir: as `--config-dir`, when it is not the process's.

    Raises:
        ConfigError: an override that is written wrong; settings of a model and no model; or no option is for what the
            source holds.
        PlanError: the source cannot be read.
    """
    return _checked(_with_model(overrides, fetch, config_dir))


def _checked(overrides: list[str]) -> list[str]:
    """`overrides`, none written wrong; Hydra's own, of a whole config, are none of ours.

    Raises:
        ConfigError: some are.
    """
    if any(misread(override) for override in overrides):
        from pipeline.config.explain import mistakes

        raise ConfigError("\n".join(mistakes(overrides)))
    return overrides


def _with_model(overrides: Sequence[str], fetch: bool, config_dir: Path | None) -> list[str]:
    overrides = [o[1:] if o.startswith("+experiment=") else o for o in overrides]
    keys = [o.partition("=")[0].lstrip("+") for o in overrides]
    if any(k.partition("@")[0] == "model" for k in keys):
        return [f"+{o}" if o.startswith("model=") else o for o in overrides]
    of_model = [i for i, key in enumerate(keys) if key.startswith("model.")]
    if not of_model:
        return list(overrides)
    given = [o for o, key in zip(overrides, keys, strict=True) if key == "model.source"]
    if not given:
        key, _, value = overrides[of_model[0]].lstrip("+").partition("=")
        near = nearest(key.removeprefix("model."), ["source"])
        meant = f"did you mean model.source={value}? " if near else ""
        raise ConfigError(f"{overrides[of_model[0]]}: {meant}{no_model()}")
    source = parsed_override(given[-1])
    bare = [o.lstrip("+") if i in of_model else o for i, o in enumerate(overrides)]
    if source is None:  # Hydra says what is wrong with it
        return list(overrides)
    if source.is_sweep_override():
        return [f"++{o}" if i in of_model else o for i, o in enumerate(bare)]
    found = model_option(_value(source), [o for o in overrides if o.startswith("hub")], fetch, config_dir)
    return [*bare[: of_model[0]], f"+model={found}", *bare[of_model[0] :]]


def model_option(source: str, hub: Sequence[str] = (), fetch: bool = True, config_dir: Path | None = None) -> str:
    """The model option whose `model_types` name this checkpoint's.

    Args:
        source: as in `model.source=`.
        hub: overrides that say where addresses lead.
        fetch, config_dir: as for `with_model`.

    Raises:
        as `with_model`.
    """
    by_name = f"; the option of that name is model={source}" if source in options("model") else ""
    try:
        kind = _opened(source, hub, fetch, config_dir).config.get("model_type")
    except PlanError as why:
        problems = [replace(problem, message=f"{problem.message}{by_name}") for problem in why.problems]
        raise PlanError(problems, exit_code=why.exit_code) from None
    types = model_types(config_dir)
    if kind is None:
        raise ConfigError(
            f"model.source={source!r}: neither a config.json nor the file itself says which model it is; "
            f"{by_name.removeprefix('; ') or 'model=NAME does' + did_you_mean('', options('model'), 40)}"
        )
    if str(kind) not in types:
        raise ConfigError(
            f"model.source={source!r}: its model_type is {kind!r}, and no model option is for that"
            f"{did_you_mean(str(kind), types)}; model=NAME 'model.model_types=[{kind}]' applies an option's rules to it"
        )
    return types[str(kind)]


def _opened(source: str, hub: Sequence[str], fetch: bool, config_dir: Path | None) -> Checkpoint:
    """The checkpoint as the stage `load` opens it, without composing a config."""
    name = next((o.partition("=")[2] for o in hub if o.startswith("hub=")), "huggingface")
    files = [folder / "hub" / f"{name}.yaml" for folder in option_folders(config_dir)]
    file = next((f for f in files if f.exists()), None)
    if file is None:
        raise ConfigError(f"hub={name}: there is no {name!r} in hub{did_you_mean(name, options('hub'))}")
    tree = OmegaConf.create({"model": {"source": ""}, "hub": OmegaConf.load(file)})
    for override in hub:
        if override.startswith("hub.") and (parsed := parsed_override(override)) is not None:
            OmegaConf.update(tree, parsed.key_or_group, parsed.value())
    tree.engine = OmegaConf.load(CONF / "engine" / "jax.yaml")  # its families: a config.json may be all there is
    tree.load = OmegaConf.load(CONF / "stages" / "load.yaml")
    node: Any = joined(OmegaConf.to_container(tree.load, resolve=True), option_folders(config_dir))
    resolver = Resolver(allowed_packages())
    load = resolver.build({**node, "source": source}, "model")
    if resolver.problems:
        raise PlanError(resolver.problems, exit_code=ConfigError.exit_code)
    # An outline tells, and spares a download of what no option is for; some files cannot be outlined.
    plan = make_plan({"load": load}, Context(Path(), fetch=False))
    if plan.problems and fetch and "://" in source:
        plan = make_plan({"load": load}, Context(Path()))
    if plan.problems:
        named = [] if there(source) else named_like(source, option_folders(config_dir))
        near = (
            [Problem("model", f"did you mean {' or '.join(f'model={n}' for n in named[:MOST_NAMED])}?")]
            if named
            else []
        )
        raise PlanError([*plan.problems, *near], exit_code=SourceError.exit_code)
    return plan.nodes["load"].result  # type: ignore[no-any-return]


def _value(override: Any) -> str:
    """The text that an override gives, interpolations followed."""
    try:
        return str(OmegaConf.create({"value": override.value()})["value"])
    except OmegaConfBaseException as why:
        said = str(why).partition("\n")[0]
        raise ConfigError(f"{override.input_line}: {said}; with model=NAME it can be looked up later") from None
