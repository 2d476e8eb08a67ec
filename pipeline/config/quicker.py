"""What Hydra and OmegaConf do at every start that gives nothing here, or that can be had quicker: more than half of
`--help`, a fifth of a plan. All of it gives what they give; which Hydra and OmegaConf that holds for is pinned.
"""

import io
import pickle
import re
import string
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from functools import cache, lru_cache
from os.path import isdir, isfile, join
from pathlib import Path
from typing import Any

import yaml
from hydra._internal import defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser import overrides_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType, ValueType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf, _utils, base, grammar_parser, nodes
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

_CONF = str(Path(__file__).parents[2] / "conf")
_OWN_PROVIDERS = {"hydra", "main", "schema"}  # of the search path, where nobody adds to it
_asked_mode = Hydra.get_mode
_made_map = defaults_list._create_interpolation_map
_made_loader = _utils.get_yaml_loader
_made_functions = cache(overrides_parser.create_functions)
_made_rule = OverridesParser.parse_rule
_told_parents = base.Box._re_parent
_made_load = OmegaConf.load
_copied_dict, _copied_list = DictConfig.__deepcopy__, ListConfig.__deepcopy__
_made_followed = base.Container.resolve_parse_tree
_loaded: dict[str | bytes, bytes] = {}
_MOST = 1000  # files
_REFERENCE = re.compile(r"\$\{(\.*[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}", re.ASCII)
_KEY = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[A-Za-z_]\w*(?:/[A-Za-z_]\w*)*"
_NO_TEXT = r"(?!(?i:true|false|null|inf|nan)$)"
_OVERRIDE = re.compile(rf"(\+{{0,2}})({_KEY})={_NO_TEXT}((?:\.{{0,2}}/|[A-Za-z_])[\w/.:-]*)", re.ASCII)
_ADDS = {"": OverrideType.CHANGE, "+": OverrideType.ADD, "++": OverrideType.FORCE_ADD}
_PLAIN = {str, int, float, bool, type(None)}
_VALUES = {AnyNode, nodes.StringNode, nodes.IntegerNode, nodes.FloatNode, nodes.BooleanNode, nodes.EnumNode}


def register() -> None:
    """Make it so, in this process."""
    Plugins.instance()  # makes the classes of its own plugins, whatever was imported of them before
    files = SourcesRegistry.instance().resolve("file")
    for owner, name, ours in (
        (Hydra, "get_mode", _mode), (ConfigStore, "__deepcopy__", _itself),
        (defaults_list, "_create_interpolation_map", _map), (_utils, "get_yaml_loader", _loader),
        (base, "parse", _tree), (_utils, "parse", _tree), (base.Box, "_re_parent", _tell_parents),
        (base.Container, "resolve_parse_tree", _followed),
        (base.Metadata, "__deepcopy__", _copied), (OmegaConf, "load", staticmethod(_load)),
        (DictConfig, "__deepcopy__", _copy), (ListConfig, "__deepcopy__", _copy),
        (overrides_parser, "create_functions", _functions), (OverridesParser, "parse_rule", _rule),
        (Hydra, "get_help", _help), (files, "is_group", _is_group), (files, "is_config", _is_config),
    ):  # fmt: skip
        setattr(owner, name, ours)


def _mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> Any:
    """`hydra.mode`, which Hydra composes everything for that it then composes again: a quarter of what starting takes.
    Here without, where no override and no folder but ours could say it, and ours do not: neither another program's,
    that has imported us."""
    path = hydra.config_loader.get_search_path().get_path()
    main = {part.path.removeprefix("file://") for part in path if part.provider == "main"}
    ours = main == {_CONF} and {part.provider for part in path} <= _OWN_PROVIDERS
    said = any(o.lstrip("+~").startswith("hydra") for o in overrides)
    return None if ours and not said else _asked_mode(hydra, config_name, overrides)


def _help(hydra: Hydra, help_cfg: DictConfig, cfg: DictConfig, args_parser: ArgumentParser, resolve: bool) -> str:
    """The template of `hydra.help`, filled in with what it names. Hydra also lists its own groups and writes the whole
    config, of which ours names neither: an eighth of `--help`."""
    template = string.Template(help_cfg.template)
    makers: dict[str, Callable[[], str]] = {
        "FLAGS_HELP": lambda: hydra.format_args_help(args_parser),
        "HYDRA_CONFIG_GROUPS": lambda: hydra.format_config_groups(_of_hydra),
        "APP_CONFIG_GROUPS": lambda: hydra.format_config_groups(lambda group: not _of_hydra(group)),
        "CONFIG": lambda: OmegaConf.to_yaml(cfg, resolve=resolve),
    }
    return template.substitute({name: make() for name, make in makers.items() if name in template.get_identifiers()})


def _of_hydra(group: str) -> bool:
    return group == "hydra" or group.startswith("hydra/")


def _is_group(source: ConfigSource, config_path: str) -> bool:
    """Hydra follows links itself first, part by part, at every file of every group."""
    return isdir(join(source.path, config_path))


def _is_config(source: ConfigSource, config_path: str) -> bool:
    return isfile(join(source.path, source._normalize_file_name(config_path)))


def _itself(store: ConfigStore, memo: dict[int, Any]) -> ConfigStore:
    """There is one store, which gives copies of what it has. Hydra copies all of it whenever it lists a group, as
    `--help` does 150 times."""
    return store


def _functions() -> Any:
    """What overrides may call, with what each takes: found out once, and not for every list of a group."""
    made = _made_functions()
    return type(made)({**made.definitions}, {**made.functions})


def _rule(parser: OverridesParser, text: str, rule: str) -> Any:
    """An override as Hydra's grammar has it. The value of most is a word or a path: what such a one means is plain, and
    ANTLR takes a thousandth of a second to find it out, and several for the first."""
    if rule == "override" and (found := _OVERRIDE.fullmatch(text)) is not None:
        adds, key, value = found.groups()
        return Override(_ADDS[adds], key, ValueType.ELEMENT, value, input_line=text)
    return _made_rule(parser, text, rule)


def _map(overrides: Any, defaults: list[Any], self_added: bool) -> DictConfig:
    """What `${…}` in a defaults list refers to, made of every config; here of those that refer to anything."""
    refers = any(default.is_interpolation() for default in defaults)
    return _made_map(overrides, defaults, self_added) if refers else OmegaConf.create()


@lru_cache(4096)
def _tree(value: str, *how: str, **named: str) -> Any:
    """What OmegaConf parses a text with `${` to, and then only reads; it does so at every look at every such text, of
    which a config has the same ones each time. Most refer to one key, which is all that there is to parse."""
    if (reference := _REFERENCE.fullmatch(value)) is not None:
        return reference[1]
    return grammar_parser.parse(value, *how, **named)


def _followed(container: Any, parse_tree: Any, node: Any, memo: set[int] | None = None, key: Any = None) -> Any:
    """What a text refers to: OmegaConf visits its tree, and asks the same where it comes to the key."""
    if not isinstance(parse_tree, str):
        return _made_followed(container, parse_tree, node, memo, key)
    try:
        return container._resolve_node_interpolation(inter_key=parse_tree, memo=memo)
    except InterpolationResolutionError:
        raise
    except Exception as why:
        said = f"{type(why).__name__} raised while resolving interpolation: {why}"
        raise InterpolationResolutionError(said).with_traceback(why.__traceback__)  # noqa: B904  as OmegaConf does


def _tell_parents(box: Any) -> None:
    """Everything below `box` has the parent that holds it, and remembers no flag of another. Done by OmegaConf whenever
    one config is merged into another, from one class to the next: a sixth of composing."""
    todo = [box]
    while todo:
        node = todo.pop()
        content = node.__dict__["_content"]
        if isinstance(content, dict):
            children: Any = content.values()
        elif isinstance(content, list):
            children = content
        else:
            children = (content,) if isinstance(content, base.Node) else ()
        for child in children:
            if child is not None:
                own = child.__dict__
                own["_parent"], own["_flags_cache"] = node, None
                if "_content" in own:
                    todo.append(child)


def _copied(metadata: Any, memo: dict[int, Any]) -> Any:
    """Types, keys and switches, which are never changed in place, and two dicts; deepcopy would look at each."""
    found = object.__new__(type(metadata))
    own = found.__dict__
    own.update(metadata.__dict__)
    own["flags"] = None if own["flags"] is None else {**own["flags"]}
    own["resolver_cache"] = deepcopy(own["resolver_cache"], memo) if own["resolver_cache"] else defaultdict(dict)
    return found


def _copy(config: Any, memo: dict[int, Any]) -> Any:
    """A config and all below it, with the parent that it has: as OmegaConf copies it, which makes each node anew, looks
    at what it is to hold, and puts that in. Hydra copies whole configs several times in a start."""
    if type(config) is DictConfig or type(config) is ListConfig:
        return _copied_node(config, config.__dict__["_parent"], memo)
    return (_copied_dict if isinstance(config, DictConfig) else _copied_list)(config, memo)


def _copied_node(node: Any, parent: Any, memo: dict[int, Any]) -> Any:
    if (before := memo.get(id(node))) is not None:
        before.__dict__["_parent"] = parent  # which is copied later than what it holds
        return before
    kind = type(node)
    if kind not in _VALUES and kind not in (DictConfig, ListConfig):  # seldom
        was, node.__dict__["_parent"] = node.__dict__["_parent"], None
        try:
            found = deepcopy(node, memo)
        finally:
            node.__dict__["_parent"] = was
        found.__dict__["_parent"] = parent
        return found
    found = memo[id(node)] = object.__new__(kind)
    own = found.__dict__
    own.update(node.__dict__)
    own["_metadata"] = _copied(own["_metadata"], memo)
    own["_parent"], own["_flags_cache"] = parent, None
    content = own.get("_content")
    if isinstance(content, dict):
        own["_content"] = {key: _copied_node(inner, found, memo) for key, inner in content.items()}
    elif isinstance(content, list):
        own["_content"] = [_copied_node(inner, found, memo) for inner in content]
    return found


def _load(file: Any) -> Any:
    """What a file of YAML holds. OmegaConf makes each node anew, a third of composing; where a text comes again
    and again, as when a process composes many jobs, its nodes are copied: by pickle, in a tenth of that."""
    if isinstance(file, str | Path):
        with open(file, encoding="utf-8") as opened:
            return _load(opened)
    if not hasattr(file, "read"):
        return _made_load(file)  # says what is wrong
    text = file.read()
    if kept := _loaded.get(text):
        return pickle.loads(kept)  # noqa: S301  made below
    name = getattr(file, "name", None)
    found: Any = _made_of(yaml.load(_named(text, name), Loader=_loader()))  # noqa: S506  OmegaConf's, a safe one
    found = _made_load(_named(text, name)) if found is None else found
    if len(_loaded) >= _MOST:
        _loaded.clear()
    _loaded[text] = pickle.dumps(found, pickle.HIGHEST_PROTOCOL) if text in _loaded else b""  # may be all
    return found


def _made_of(value: Any) -> DictConfig | None:
    """What `OmegaConf.create` makes of a mapping, in a fifth of the time: every node is a copy of one that it made, and
    what it looks at before is of types that nothing has to be asked about. None: it has others, or something is wrong
    with it, and OmegaConf is to say what."""
    try:
        return _node(value, None, None) if type(value) is dict else None
    except (_Other, OmegaConfBaseException, RecursionError):
        return None


class _Other(Exception):
    """A value that is left to OmegaConf."""


def _node(value: Any, key: Any, parent: Any) -> Any:
    """The node that holds `value`, below `parent`.

    Raises:
        _Other: it holds what YAML files of configs seldom do.
    """
    kind = type(value)
    if kind is str and "${" in value:
        return AnyNode(value, key, parent)  # which looks whether that can be read
    if kind in _PLAIN:
        return _like(_patterns()[AnyNode], key, parent, "_val", value)
    if kind is dict and all(type(name) is str for name in value):
        found = _like(_patterns()[dict], key, parent, "_content", {})
        found.__dict__["_content"].update((name, _node(inner, name, found)) for name, inner in value.items())
        return found
    if kind is list:
        found = _like(_patterns()[list], key, parent, "_content", [])
        found.__dict__["_content"].extend(_node(inner, i, found) for i, inner in enumerate(value))
        return found
    raise _Other


@cache
def _patterns() -> dict[type, Any]:
    """A node of each kind, as OmegaConf makes it."""
    return {dict: OmegaConf.create({}), list: OmegaConf.create([]), AnyNode: AnyNode()}


def _like(pattern: Any, key: Any, parent: Any, name: str, content: Any) -> Any:
    """A node like `pattern`, but of that key and content."""
    found = object.__new__(type(pattern))
    own = found.__dict__
    own.update(pattern.__dict__)
    own["_metadata"] = metadata = _copied(pattern.__dict__["_metadata"], {})
    metadata.__dict__["key"] = key
    own["_parent"], own["_flags_cache"], own[name] = parent, None, content
    return found


def _named(text: Any, name: Any) -> Any:
    """The stream that a text was: PyYAML says the line of a text, and only the place in a stream, which has a name."""
    stream: Any = io.StringIO(text) if isinstance(text, str) else io.BytesIO(text)
    if name is not None:
        stream.name = name
    return stream


@cache
def _loader() -> Any:
    """How OmegaConf reads YAML, made once; parsed by libyaml where PyYAML came with it."""
    made = _made_loader()
    if not yaml.__with_libyaml__:
        return made
    return type("Loader", (_Parsed,), {"slow": made, "quick": type("Quick", (yaml.CSafeLoader, made), {})})


class _Parsed:
    """What `yaml.load` makes for a stream. Where something is wrong PyYAML's own parser says it: with the line. It also
    reads what has a tab in it: libyaml takes some that it does not."""

    slow: Any
    quick: Any

    def __init__(self, stream: Any):
        self._name = getattr(stream, "name", "<file>") if hasattr(stream, "read") else None
        self._text = stream if self._name is None else stream.read()

    def get_single_data(self) -> Any:
        if ("\t" if isinstance(self._text, str) else b"\t") not in self._text:
            try:
                return self.quick(self._text).get_single_data()
            except yaml.YAMLError:
                pass
        return self.slow(self._text if self._name is None else _named(self._text, self._name)).get_single_data()

    def dispose(self) -> None:
        pass
