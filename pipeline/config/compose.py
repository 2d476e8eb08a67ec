"""The typed spine of the configuration, and the way from Hydra's composed config to live stages.

After `load_run` no DictConfig travels anywhere.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from importlib import metadata
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from pipeline import redact
from pipeline.config import extend, families, kernels, quicker, synonyms
from pipeline.config.joined import joined, with_exports
from pipeline.config.measuring import of_conversion, of_model, of_quality, unfinished
from pipeline.config.names import run_name
from pipeline.config.resolve import OWN_PACKAGES, Resolver
from pipeline.config.spine import RunConfig, Spine
from pipeline.config.synonyms import spelt
from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean
from pipeline.files import spoken
from pipeline.nearby import nearby
from pipeline.prompts import continued
from pipeline.tracker import Tracker

ENTRY_POINTS = "weightmill.plugins"
CONF = Path(__file__).parents[2] / "conf"
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,[^{}]*)?\}")  # to what people set, and nothing else

_WITH_FILE = re.compile(r"\$\{rules_with:\$\{rules_file\},(.+)\}")  # rules, and those of a file behind them


def search_override(config_dir: Path | None) -> list[str]:
    """The override that does what `--config-dir` does, for `compose`."""
    quoted = str(config_dir).replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"] if config_dir else []


def load_run(cfg: DictConfig, build: Sequence[str] = ()) -> RunConfig:
    """Check a composed config and build its stages.

    Args:
        cfg: the config, which nobody reads afterwards: its `kernels` become what references to them find.
        build: nodes that are built beside them: `engine`.

    Raises:
        PlanError: every problem of every node.
    """
    chosen = _plain(cfg.get("kernels", {}))
    found, astray = kernels.nodes(chosen, allowed_packages())
    OmegaConf.update(cfg, "kernels", found, merge=False, force_add=True)  # what `${kernels.OP}` is to give
    tree, problems = _resolved(cfg)
    problems = [*astray, *problems]
    folders = option_folders(None)
    tree = _wanted(with_exports(joined(tree, folders), folders))
    by_name = _wanted(with_exports(joined(_by_name(cfg), folders), folders)) if _env_asked else tree
    given = redact.tree(by_name, redact.without_credentials)  # not what earlier runs of this process have learned
    places = tree.get("paths", {}).values() if isinstance(tree.get("paths"), Mapping) else ()
    redact.learn(_environment, [str(place) for place in places])
    resolver = Resolver(allowed_packages())
    spine_keys = {f: tree.pop(f) for f in list(Spine.__dataclass_fields__) if f in tree}
    spine = resolver.typed(spine_keys, Spine, "config")
    nodes = tree.get("stages") or {}
    if tree.get("zip"):
        resolver.note("zip", "says which lists of a sweep go together, and this is one job; -m makes it a sweep")
    stages = {}
    if not nodes and not problems:
        resolver.note("stages", f"no stage chosen{did_you_mean('', options('stages'))}")
    for name, node in nodes.items():
        if not isinstance(node, Mapping):
            resolver.note(f"stages.{name}", f"is not a stage; its YAML must begin with `# @package stages.{name}`")
        elif (stage := resolver.build(node, f"stages.{name}")) is not None:
            if callable(getattr(stage, "run", None)):
                stages[name] = stage
            else:
                resolver.note(f"stages.{name}", f"{type(stage).__name__} has no method run(ctx, …), so it is no stage")
    built = {name: resolver.build(tree[name], name) for name in build if name in tree}
    tracker = resolver.plugin(tree["tracker"], Tracker, "tracker") if tree.get("tracker") else None
    aliases = _aliases(cfg)
    problems = [*_astray(cfg), *(_as_typed(p, aliases) for p in [*problems, *resolver.problems])]
    if problems:
        raise PlanError(dict.fromkeys(problems), exit_code=ConfigError.exit_code)
    given["kernels"] = chosen
    identity = {name: redact.identified(given["stages"][name], node) for name, node in nodes.items()}
    return RunConfig(spine, stages, identity, {key: given[key] for key in (*spine_keys, *tree)}, built, tracker)


def _wanted(tree: dict[str, Any]) -> dict[str, Any]:
    """`tree` without those stages of `calibrate=` of which none of what they do was asked for."""
    asked, nodes = tree.get("calibrate"), tree.get("stages")
    if not isinstance(asked, Mapping) or not isinstance(nodes, Mapping):
        return tree
    smooths = asked.get("smooth") is not None
    scales = tree.get("activations_scales") == "calibrated" and bool(asked.get("texts"))
    one_by_one = asked.get("sequential") is not None
    left = {
        "calibrate": not smooths and not scales and (asked.get("method") is None or one_by_one),
        "smooth": not smooths,
        "rotate": asked.get("rotate") is None,
        "successive": not one_by_one,
        "reconstruct": asked.get("reconstruct") is None,
    }
    return {**tree, "stages": {name: node for name, node in nodes.items() if not left.get(name)}}


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _astray(cfg: DictConfig) -> list[Problem]:
    """Keys added on the command line (`+key=…`) that nothing looks at: Hydra takes any, and a typo would go unseen."""
    overrides = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    given = dict(o.lstrip("+").partition("=")[::2] for o in overrides if o.startswith("+"))
    added = [key for key in given if not options(key.partition("@")[0])]
    if not added:
        return []
    text = str(OmegaConf.to_container(cfg, resolve=False))
    known = keys() | {"tracker"}  # whose fields are checked
    problems = []
    for key in added:
        parts = key.split(".")
        above = [".".join(parts[: n + 1]) for n in range(len(parts))]
        looked_at = any(f"${{{k}}}" in text for k in above) or f"${{{key}." in text
        if parts[0] not in known and not looked_at:
            siblings = _keys(cfg, parts)
            near = did_you_mean(parts[-1], siblings) if siblings else did_you_mean(parts[0], _keys(cfg, parts[:1]))
            near = f"; say {ours}" if (ours := synonyms.instead(key, given[key])) else near
            problems.append(Problem(f"+{key}", f"nothing in the config refers to it{near}"))
    return problems


def keys() -> set[str]:
    """What stands at the top of every config."""
    return {*Spine.__dataclass_fields__, "stages", "hydra", *map(str, OmegaConf.load(CONF / "config.yaml"))}


def _keys(cfg: DictConfig, path: Sequence[str]) -> list[str]:
    """Names of the fields beside the one at `path`."""
    node = OmegaConf.select(cfg, ".".join(path[:-1]), throw_on_missing=False) if path[1:] else cfg
    return [k for k in map(str, node) if k not in (path[-1], "hydra")] if isinstance(node, DictConfig) else []


def _aliases(cfg: DictConfig) -> dict[str, str]:
    """`stages.quantize.method` → `quant`: where a field of a stage, and then of a node, is nothing but a reference to
    what people set."""
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    nodes = {f"stages.{name}": node for name, node in (raw.get("stages") or {}).items()}
    nodes |= {name: node for name, node in raw.items() if name not in ("stages", "hydra")}
    found = {"config.": ""}
    for where, node in nodes.items():
        for name, value in node.items() if isinstance(node, Mapping) else ():
            if isinstance(value, str) and (match := _REFERENCE.fullmatch(_WITH_FILE.sub(r"\1", value))):
                found[f"{where}.{name}"] = match[1]
    return found


def _as_typed(problem: Problem, aliases: Mapping[str, str]) -> Problem:
    """The problem under the name that people type: `stages.evaluate.engine.mesh` is `engine.mesh`, and that `mesh`."""
    where = problem.where
    for prefix, alias in aliases.items():
        if where.startswith(prefix):
            where = alias + where.removeprefix(prefix)
    return Problem(where, problem.message)


def _resolved(cfg: DictConfig) -> tuple[dict[str, Any], list[Problem]]:
    """Plain containers with every interpolation followed; one problem for each that leads nowhere."""
    global _env_asked
    _env_asked = False
    problems: list[Problem] = []
    tree: dict[str, Any] = {}
    for key in map(str, cfg):
        try:
            value = cfg[key]
            is_node = OmegaConf.is_config(value)
            tree[key] = OmegaConf.to_container(value, resolve=True, throw_on_missing=True) if is_node else value
        except OmegaConfBaseException as why:
            if "model" not in cfg and "'model" in str(why):
                problems.append(Problem("model", no_model()))
            elif missing := re.search(r"Missing mandatory value: ([\w.]+)", str(why)):
                name = getattr(why, "full_key", None) or key
                name = name if name.endswith(f".{missing[1]}") else missing[1]
                problems.append(Problem(name, f"has no default; add {name}=…{_of_family(name)}"))
            else:
                problems.append(unfollowed(why, key, cfg))
    return tree, list(dict.fromkeys(problems))


def _of_family(name: str) -> str:
    """Why `model.source` is missing: what was chosen is a family, of which there are several checkpoints."""
    chosen = HydraConfig.get().runtime.choices.get("model") if HydraConfig.initialized() else None
    if name != "model.source" or chosen is None:
        return ""
    found = families.checkpoints(option_folders(None)).get(chosen, ())
    named = f"; its checkpoints by name are {', '.join(found)}" if found else ""
    return f", a folder or hf://owner/name: {chosen} is a family{named}"


_environment: dict[str, str] = {}  # variables that configs of this process asked for
_env_asked = False  # whether the config that was resolved last asked for any
_naming = False


def _env(name: str, *default: Any) -> Any:
    """OmegaConf's `oc.env`, which also notes what it gave; while a config is resolved by name, the reference."""
    global _env_asked
    _env_asked = True
    if _naming:
        return f"${{oc.env:{','.join(map(str, (name, *default)))}}}"
    if name in os.environ:
        _environment[name] = os.environ[name]
    return oc.env(name, *default)


def _by_name(cfg: DictConfig) -> dict[str, Any]:
    """Plain containers with interpolations followed, except that `${oc.env:…}` stands for itself.

    Where something computes with such a value, and cannot with its name, nothing below that key is followed.
    """
    global _naming
    _naming, tree = True, {}
    try:
        for key in map(str, cfg):
            try:
                value = cfg[key]
                tree[key] = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            except Exception:  # whatever a resolver raises that is given a name for a value
                node = cfg._get_node(key)
                assert isinstance(node, Node)
                tree[key] = OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value()
    finally:
        _naming = False
    return tree


def allowed_packages() -> tuple[str, ...]:
    """Packages that a `_target_` may name: our own, and those that installed plugins declare."""
    return (*OWN_PACKAGES, *sorted({ep.value.partition(".")[0] for ep in plugins()}))


def plugins() -> list[metadata.EntryPoint]:
    """Installed third-party plugins. An entry point names a config package and is never loaded."""
    changed = []
    for folder in sys.path:
        with suppress(OSError):  # Python looks past what is not there, too
            changed.append((folder, os.stat(folder or os.curdir).st_mtime_ns))
    return [*_plugins(tuple(changed))]


@lru_cache(1)
def _plugins(_: tuple[tuple[str, int], ...]) -> tuple[metadata.EntryPoint, ...]:
    """Those in folders that have been changed when that says: a file of every package is read to find them."""
    return tuple(sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda ep: ep.name))


def plugin_folder(ep: metadata.EntryPoint) -> Path | None:
    """The folder of the YAML files that an entry point names, found without importing anything."""
    top, _, rest = ep.value.partition(".")
    spec = find_spec(top)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0], *filter(None, rest.split(".")))


def unresolved(overrides: Any) -> list[str]:
    """Hydra's list of overrides, which OmegaConf would resolve."""
    plain: Any = OmegaConf.to_container(overrides) if OmegaConf.is_config(overrides) else overrides
    return [str(override) for override in plain]


def register() -> None:
    """Make the resolvers that conf/ uses known to OmegaConf, and our plugins to Hydra."""
    OmegaConf.register_new_resolver("oc.env", _env, replace=True)
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


def unfollowed(why: OmegaConfBaseException, key: str = "", cfg: DictConfig | None = None) -> Problem:
    """What one of our resolvers said, or what OmegaConf says, of a value below `key` in words for people."""
    where = getattr(why, "full_key", None) or key
    text = re.sub(r"^\w+ raised while resolving interpolation: ", "", str(why).partition("\n")[0])
    if (rule := re.match(r"(rule .+?): ", text)) is not None:
        return Problem(rule[1], text.removeprefix(rule[0]))
    own = r"(rules_file|quant|activations|activations_scales|activations_rotate|calibrate\.quantile): "
    if (found := re.match(own, text)) is not None:
        return Problem(found[1], text.removeprefix(found[0]))
    if (found := re.search(r"node `([\w.]+)` is not a container", text)) is not None:
        from pipeline.config.reference import below

        given = OmegaConf.select(cfg, found[1]) if cfg is not None else None
        return Problem(found[1], f"is a group of settings, and no setting{below(found[1], str(given))}")
    if (found := re.match(r"Interpolation key '([^']+)' not found", text)) is not None:
        return Problem(where, f"refers to {found[1]!r}, and there is no such key")
    if (found := re.match(r"Unsupported interpolation type (.+)", text)) is not None:
        return Problem(where, f"there is no ${{{found[1]}:…}} to compute it; ${{oc.env:NAME}} is a variable")
    if (found := re.search(r"Environment variable '([^']+)' not found", text)) is not None:
        return Problem(where, f"refers to the environment variable {found[1]!r}, which is not set")
    return Problem(where, text)


def quants_named_in(*lists: Any, _root_: DictConfig) -> dict[str, Any]:
    """The nodes of the quant options that rules name: a rule may say `to: int8` whatever quant= says.

    Raises:
        ConfigError: a name that is no quant option.
    """
    found: dict[str, Any] = {}
    for rule in (rule for rules in lists for rule in rules or ()):
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
    """What `quant=NAME` would compose to, around it the rest of the config."""
    repository = GlobalHydra.instance().config_loader().repository  # type: ignore[attr-defined]
    loaded = repository.load_config(f"quant/{name}")
    around = {k: v for k, v in OmegaConf.to_container(root, resolve=False).items() if k != "stages"}  # type: ignore[union-attr]
    merged = OmegaConf.create({**around, "node": OmegaConf.to_container(loaded.config)})
    return OmegaConf.to_container(merged.node, resolve=True)


def rules_with(file: Any, rules: Any) -> list[Any]:
    """`rules`, and behind them those of a file, if there is one.

    Raises:
        ConfigError: it cannot be read, or is no list of rules.
    """
    found: list[Any] = [*(_plain(rules) or ())]
    if file is None:
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
    if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
        raise ConfigError(f"quants={names}: a list of quant options is expected, such as [none,int8]")
    for name in names or ():
        if name not in (known := options("quant")):
            raise ConfigError(f"quants: there is no quant option {name!r}{did_you_mean(name, known, 30)}")
    return list(names or ())


def wide_enough_for(written: str) -> str:
    """What plain values may be until they are written as `written`, an `export.dtype`: bf16, or as they are where bf16
    would round what the file could hold. Rounded once, where it is written."""
    return "keep" if spelt(written, ("fp16", "fp32")) in ("fp16", "fp32") else "bf16"


def options(group: str) -> list[str]:
    """Names of a config group's YAML files: on the search path, and in the user's folder."""
    found = {p.stem for folder in (CONF, extend.folder()) if folder for p in (folder / group).glob("*.yaml")}
    if (here := GlobalHydra.instance().hydra) is not None:
        found |= set(here.config_loader.get_group_options(group))
    return sorted(found)


def no_model() -> str:
    """What to do about a run without a model."""
    where = "model.source=DIR, FILE.gguf or hf://owner/name says which by itself, model=NAME chooses one"
    return f"no model chosen; {where}{did_you_mean('', options('model'))}"


def option_folders(config_dir: Path | None) -> list[Path]:
    guests = [config_dir or extend.folder(), *map(plugin_folder, plugins())]
    return [CONF, *(folder for folder in guests if folder)]
