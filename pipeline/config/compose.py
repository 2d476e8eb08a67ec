"""The typed spine of the configuration, and the way from Hydra's composed config to live stages.

After `load_run` no DictConfig travels anywhere.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from pipeline import redact
from pipeline.config import families, kernels, synonyms, unread
from pipeline.config.joined import joined, with_exports
from pipeline.config.options import allowed_packages, keys, no_model, option_folders, options
from pipeline.config.resolve import NO_NODE, Resolver
from pipeline.config.spine import RunConfig, Spine
from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean
from pipeline.tracker import Tracker

_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,(?:[^{}]|\{\})*)?\}")  # to what people set, and nothing else
# What is made of one thing that people set: rules, with those of a file behind them; options that are listed by name.
_COMPUTED = re.compile(r"\$\{(?:rules_with:\$\{rules_file\},|quant_options:|quants_by_name:)(.+)\}")
_OWN_NAME = re.compile(r"([a-z]\w*)\.[\w.]+(?:=.*?)?: ", re.S)  # `bench.rows=-1: 1 or more is allowed`


def load_run(cfg: DictConfig, build: Sequence[str] = (), *, of_several: bool = False) -> RunConfig:
    """Check a composed config and build its stages.

    Args:
        cfg: the config, which nobody reads afterwards: its `kernels` become what references to them find.
        build: nodes that are built beside them: `engine`.
        of_several: it is a job of a sweep, of whose choices another may make use; see `check_choices`.

    Raises:
        PlanError: every problem of every node.
    """
    chosen = plain(cfg.get("kernels", {}))
    found, astray = kernels.nodes(chosen, allowed_packages())
    OmegaConf.update(cfg, "kernels", found, merge=False, force_add=True)  # what `${kernels.OP}` is to give
    unread.begin()
    tree, problems = _resolved(cfg)
    problems = [*astray, *problems]
    folders = option_folders(None)
    tree = with_exports(joined(tree, folders), folders)
    all_nodes, tree = tree.get("stages"), _wanted(tree)
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
    if isinstance(all_nodes, Mapping) and "calibrate" in {*all_nodes} - {*nodes} and "calibrate" in _typed():
        resolver.build(all_nodes["calibrate"], "stages.calibrate")  # checked, though nothing that it does is asked for
    built = {name: resolver.build(tree[name], name) for name in build if name in tree}
    tracker = resolver.plugin(tree["tracker"], Tracker, "tracker") if tree.get("tracker") else None
    unused, idle = _idle(cfg, nodes, build, all_nodes) if nodes else ({}, {})
    _check_idle(resolver, tree, idle)
    astray = [*_astray(cfg), *(() if of_several else unused.values())]
    if problems := [*problems, *resolver.problems]:
        aliases = _aliases(cfg)
        problems = [_as_typed(p, aliases, {*cfg}) for p in problems]
    if problems := [*astray, *problems]:
        raise PlanError(dict.fromkeys(problems), exit_code=ConfigError.exit_code)
    given["kernels"] = chosen
    identity = {name: redact.identified(given["stages"][name], node) for name, node in nodes.items()}
    recorded = {key: given[key] for key in (*spine_keys, *tree)}
    return RunConfig(spine, stages, identity, recorded, built, tracker, unused, idle)


def check_choices(runs: Sequence[RunConfig]) -> None:
    """Raises PlanError when something was chosen that no job of a sweep makes use of; some of them may do without."""
    found = [p for group, p in runs[0].unused.items() if all(group in run.unused for run in runs)] if runs else []
    if found:
        raise PlanError(found, exit_code=ConfigError.exit_code)


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


_SWITCHES = ("method", "smooth", "rotate", "sequential", "reconstruct")  # of `calibrate`, that `_wanted` looks at


def plain(node: Any) -> Any:
    """A node of OmegaConf as containers of Python, references followed; anything else as it is."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _typed() -> set[str]:
    """The first names of what was typed: `calibrate.samples=9` and `calibrate=absmax` are of `calibrate`."""
    return {re.split(r"[.@=/]", o.lstrip("+~"), maxsplit=1)[0] for o in _overrides()}


def _overrides() -> list[str]:
    """What was typed for this job, as Hydra has it."""
    return unresolved(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def _astray(cfg: DictConfig) -> list[Problem]:
    """Keys added on the command line (`+key=…`) that nothing looks at: Hydra takes any, and a typo would go unseen."""
    given = dict(o.lstrip("+").partition("=")[::2] for o in _overrides() if o.startswith("+"))
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


def _idle(
    cfg: DictConfig, nodes: Collection[str], build: Sequence[str], all_nodes: Any
) -> tuple[dict[str, Problem], dict[str, Problem]]:
    """Of what was typed the choices, and the settings, that neither `nodes` nor what is built beside them look at."""
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    typed = _overrides()
    left_out = {*all_nodes} - {*nodes} if isinstance(all_nodes, Mapping) else set()
    chosen = HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}
    by_name = any(o.startswith("stages=") for o in typed)
    flow = unread.Flow([*nodes], left_out, {str(k): str(v) for k, v in chosen.items()}, by_name)
    switches = [f"calibrate.{name}" for name in _SWITCHES] if "calibrate" in {*nodes, *left_out} else []
    found = unread.reached(raw, [*(f"stages.{name}" for name in nodes), *build, *switches])
    return unread.choices(typed, {*raw}, flow, found), unread.settings(typed, {*raw}, flow, found)


_OF_OTHERS: Mapping[str, Any] = {
    "export.nvfp4_second": Literal["f32", "inverse_f32"] | None, "export.embedding": Literal["quant", "keep"]
}  # fmt: skip
"""Settings to which options of `quant=` alone refer, and what they may be."""


def _check_idle(resolver: Resolver, tree: Mapping[str, Any], idle: Collection[str]) -> None:
    """What no stage looks at is no error, unless none could."""
    for group in dict.fromkeys(key.partition(".")[0] for key in idle):
        if isinstance(node := tree.get(group), Mapping) and "_target_" in node:
            resolver.build(node, group)
    for key in {*_OF_OTHERS} & {*idle}:
        group, _, name = key.partition(".")
        resolver.typed(tree[group][name], _OF_OTHERS[key], key)


def _keys(cfg: DictConfig, path: Sequence[str]) -> list[str]:
    """Names of the fields beside the one at `path`."""
    node = OmegaConf.select(cfg, ".".join(path[:-1]), throw_on_missing=False) if path[1:] else cfg
    return [k for k in map(str, node) if k not in (path[-1], "hydra")] if isinstance(node, DictConfig) else []


def _aliases(cfg: DictConfig) -> dict[str, str]:
    """`stages.quantize.method` → `quant`: where a field of a stage, or of what is in one, and then of a node, is a
    reference to what people set and nothing else."""
    raw: Any = OmegaConf.to_container(cfg, resolve=False)
    nodes = {f"stages.{name}": node for name, node in (raw.get("stages") or {}).items()}
    nodes |= {name: node for name, node in raw.items() if name not in ("stages", "hydra")}
    found = {"config.": ""}
    while nodes:
        where, node = next(iter(nodes.items()))
        del nodes[where]
        for name, value in node.items() if isinstance(node, Mapping) else ():
            if isinstance(value, Mapping):
                nodes[f"{where}.{name}"] = value
            elif isinstance(value, str) and (match := _REFERENCE.fullmatch(_COMPUTED.sub(r"\1", value))):
                found[f"{where}.{name}"] = match[1]
    return found


def _as_typed(problem: Problem, aliases: Mapping[str, str], known: Collection[str]) -> Problem:
    """The problem under the name that people type: `stages.evaluate.engine.mesh` is `engine.mesh`, and that `mesh`. Who
    has said a name of its own, of one of the `known` groups, is not to be named as well."""
    where, message = problem.where, problem.message
    if (own := _OWN_NAME.match(message)) is not None and own[1] in known:
        name, _, rest = message.partition(": ")
        return Problem(name, rest)
    for prefix, alias in aliases.items():
        if where.startswith(prefix):
            where = alias + where.removeprefix(prefix)
    group, given = where.replace(".", "/"), message.removeprefix(NO_NODE).strip("'")
    if message.startswith(NO_NODE) and (there := options(group)):
        which = f"{group}={given}" if given in there else f"{group}=…{did_you_mean(given, there)}"
        message += f"; an option of its group is chosen by {which}"
    return Problem(where, message)


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
            elif "Interpolation key 'model." in str(why) and not _chosen("model"):
                text = "a file that says model.source chooses its family too, by `- /model: NAME` among its defaults"
                problems.append(Problem("model", f"{text}{did_you_mean('', options('model'))}"))
            elif missing := re.search(r"Missing mandatory value: ([\w.]+)", str(why)):
                name = getattr(why, "full_key", None) or key
                name = name if name.endswith(f".{missing[1]}") else missing[1]
                problems.append(Problem(name, f"has no default; add {name}=…{_of_family(name)}"))
            else:
                problems.append(unfollowed(why, key, cfg))
    return tree, list(dict.fromkeys(problems))


def _chosen(group: str) -> str | None:
    """The option of a group that Hydra composed with; None: none."""
    return HydraConfig.get().runtime.choices.get(group) if HydraConfig.initialized() else None


def _of_family(name: str) -> str:
    """Why `model.source` is missing: what was chosen is a family, of which there are several checkpoints."""
    chosen = _chosen("model")
    if name != "model.source" or chosen is None:
        return ""
    found = families.checkpoints(option_folders(None)).get(chosen, ())
    named = f"; its checkpoints by name are {', '.join(found)}" if found else ""
    return f", a folder or hf://owner/name: {chosen} is a family{named}"


_environment: dict[str, str] = {}  # variables that configs of this process asked for
_env_asked = False  # whether the config that was resolved last asked for any
_naming = False


def env(name: str, *default: Any) -> Any:
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


def unresolved(overrides: Any) -> list[str]:
    """Hydra's list of overrides, which OmegaConf would resolve."""
    plain: Any = OmegaConf.to_container(overrides) if OmegaConf.is_config(overrides) else overrides
    return [str(override) for override in plain]
