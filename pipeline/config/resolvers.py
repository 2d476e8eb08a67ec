"""What conf/ computes: the resolvers of `${name:…}`, made known to OmegaConf together with our plugins to Hydra."""

import os
import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, ListConfig, OmegaConf

from pipeline.config import quicker, unread
from pipeline.config.compose import env, plain, unresolved
from pipeline.config.measuring import of_conversion, of_model, of_quality, unfinished
from pipeline.config.names import run_name
from pipeline.config.options import CONF, options
from pipeline.config.synonyms import spelt
from pipeline.errors import ConfigError, did_you_mean
from pipeline.files import spoken
from pipeline.nearby import nearby
from pipeline.prompts import continued


def register() -> None:
    """Make the resolvers that conf/ uses known to OmegaConf, and our plugins to Hydra."""
    OmegaConf.register_new_resolver("oc.env", env, replace=True)
    OmegaConf.register_new_resolver("run_name", lambda overrides: run_name(unresolved(overrides)), replace=True)
    OmegaConf.register_new_resolver("quants_named_in", quants_named_in, replace=True)
    OmegaConf.register_new_resolver("quants_by_name", quants_by_name, replace=True)
    OmegaConf.register_new_resolver("quant_by_name", quant_by_name, replace=True)
    OmegaConf.register_new_resolver("calibrated_inputs", calibrated_inputs, replace=True)
    OmegaConf.register_new_resolver("input_rotation", input_rotation, replace=True)
    OmegaConf.register_new_resolver("rules_with", rules_with, replace=True)
    OmegaConf.register_new_resolver("wide_enough_for", wide_enough_for, replace=True)
    OmegaConf.register_new_resolver("quant_options", quant_options, replace=True)
    OmegaConf.register_new_resolver(
        "of_conversion", lambda overrides: of_conversion(unresolved(overrides)), replace=True
    )
    OmegaConf.register_new_resolver("of_quality", lambda overrides: of_quality(unresolved(overrides)), replace=True)
    OmegaConf.register_new_resolver("of_model", lambda overrides: of_model(unresolved(overrides)), replace=True)
    OmegaConf.register_new_resolver("unfinished", unfinished, replace=True)
    OmegaConf.register_new_resolver("continued", continued, replace=True)
    OmegaConf.register_new_resolver("project", lambda p: str(CONF.parent / p), replace=True)
    quicker.register()
    known = Plugins.instance()  # first: it runs Hydra's own modules once more, and ours have classes of theirs as bases
    for plugin in _hydra_plugins():
        known.register(plugin)


@cache
def _hydra_plugins() -> tuple[type[Any], ...]:
    """Ours; from where we are, because `hydra_plugins` is a package that everybody has a part of."""
    name = "hydra_plugins._weightmill"
    spec = spec_from_file_location(name, CONF.parent / f"{name.replace('.', '/')}.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return (module.PluginSearchPath, module.Sweeper, module.Launcher)


def quants_named_in(*lists: Any, _root_: DictConfig) -> dict[str, Any]:
    """The nodes of the quant options that rules name: a rule may say `to: int8` whatever quant= says.

    Raises:
        ConfigError: a name that is no quant option.
    """
    found: dict[str, Any] = {}
    for rule in (rule for rules in lists if isinstance(rules, list | ListConfig) for rule in rules):
        name = rule.get("to") if isinstance(rule, Mapping | DictConfig) else None
        if isinstance(name, str) and name not in ("quant", "keep"):
            if name not in (known := options("quant")):
                hint = did_you_mean(name, ["quant", "keep", *known], 30)
                which = rule.get("match") or rule.get("role")
                raise ConfigError(f"rule {which}={name}: {name!r} is neither quant, keep nor a quant option{hint}")
            found[name] = _quant_node(name, _root_)
    return found


def quants_by_name(names: Any, *, _root_: DictConfig) -> dict[str, Any]:
    """The nodes of the quant options that are listed.

    Raises:
        ConfigError: there is no such option, or it is no list.
    """
    return {name: _quant_node(name, _root_) for name in quant_options(names)}


def quant_by_name(name: Any, *, _root_: DictConfig) -> Any:
    """The node of a quant option; None of none and keep.

    Raises:
        ConfigError: there is no such option.
    """
    if name in (None, "none", "keep"):
        return None
    if not isinstance(name, str):
        raise ConfigError(f"activations: {name}: the name of a quant option is expected, such as int8")
    if name not in (known := options("quant")):
        raise ConfigError(f"activations: there is no quant option {name!r}{did_you_mean(name, known, 30)}")
    return _quant_node(name, _root_)


def calibrated_inputs(name: Any, scales: Any, *, _root_: DictConfig) -> Any:
    """The node of the quant option that inputs are rounded to, where their scales are to be calibrated; or None.

    Raises:
        ConfigError: there is no such option; no such way to come to scales; nothing is rounded under them; or a
            quantile is asked for that nobody would use, or of inputs that are not kept.
    """
    quantile, samples = (OmegaConf.select(_root_, f"calibrate.{key}") for key in ("quantile", "samples"))
    if scales not in ("dynamic", "calibrated"):
        hint = did_you_mean(str(scales), ["dynamic", "calibrated"], 2)
        raise ConfigError(f"activations_scales: {scales!r} is no way to come to scales{hint}")
    if quantile is not None and scales == "dynamic":
        raise ConfigError(f"calibrate.quantile: {quantile} is of what activations_scales=calibrated reaches")
    if quantile is not None and not samples:
        text = f"{quantile} is of inputs that are kept, and calibrate.samples={samples} keeps none"
        raise ConfigError(f"calibrate.quantile: {text}; calibrate.samples=256")
    if scales == "dynamic":
        return None
    if (found := quant_by_name(name, _root_=_root_)) is None:
        text = "are of what activations are rounded to, and nothing is said of that; activations=int8 for instance"
        raise ConfigError(f"activations_scales: calibrated ones {text}")
    return found


def input_rotation(block: Any, *, _root_: DictConfig) -> Any:
    """The node of what rotates inputs in blocks of so many channels; or None.

    Raises:
        ConfigError: that is no power of two; or scales were calibrated, of inputs as they are.
    """
    if block is None:
        return None
    if not isinstance(block, int) or isinstance(block, bool) or block < 2 or block & (block - 1):
        raise ConfigError(f"activations_rotate: {block!r} is no power of two, as 32 is, or null")
    if OmegaConf.select(_root_, "activations_scales") == "calibrated":
        text = "calibrated scales are of inputs that are not rotated; activations_scales=dynamic"
        raise ConfigError(f"activations_rotate: {text}")
    return {"_target_": "plugins.quant.hadamard.Hadamard", "block": block, "seed": OmegaConf.select(_root_, "seed")}


def _quant_node(name: str, root: DictConfig) -> Any:
    """What `quant=NAME` would compose to; what it refers to is looked up in the config, of which it is made a child: to
    make both anew takes as long as to compose all the rest."""
    repository = GlobalHydra.instance().config_loader().repository  # type: ignore[attr-defined]
    loaded = repository.load_config(f"quant/{name}")
    option = OmegaConf.to_container(loaded.config)
    unread.note(option)
    return OmegaConf.to_container(OmegaConf.create(option, parent=root), resolve=True)


def rules_with(file: Any, rules: Any) -> Any:
    """`rules`, and behind them those of a file, if there is one.

    Raises:
        ConfigError: it cannot be read, or is no list of rules.
    """
    found = plain(rules) or []
    if file is None or not isinstance(found, list):  # which the check of types says
        return found
    path = Path(os.path.expanduser(str(file)))
    if not path.is_file():
        raise ConfigError(f"rules_file: {spoken(str(file))}: no such file{nearby(path.absolute(), Path.is_file)}")
    try:
        more = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as why:  # PyYAML's errors and OmegaConf's have nothing in common
        raise ConfigError(f"rules_file: {file}: cannot be read: {str(why).partition(chr(10))[0]}") from None
    if not isinstance(more, list) or not all(isinstance(rule, dict) for rule in more):
        raise ConfigError(f"rules_file: {file}: a list of rules is expected, such as - {{match: PATTERN, to: int8}}")
    return [*found, *more]


def quant_options(names: Any) -> list[str]:
    """The names of quant options that are listed.

    Raises:
        ConfigError: there is no such option, or it is no list.
    """
    names = plain(names)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"a list of quant options is expected, such as [none,int8], got {names!r}")
    for name in names:
        if name not in (known := options("quant")):
            raise ConfigError(f"there is no quant option {name!r}{did_you_mean(name, known, 30)}")
    return names


def wide_enough_for(written: str) -> str:
    """What plain values may be until they are written as `written`, an `export.dtype`: bf16, or as they are where bf16
    would round what the file could hold. Rounded once, where it is written."""
    return "keep" if spelt(written, ("fp16", "fp32")) in ("fp16", "fp32") else "bf16"
