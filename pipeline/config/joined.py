"""What is known by name, a map in our YAML: containers, dialects, remotes, families of models; and what joins it.

A package that `weightmill.plugins` names, and the user's folder, add to each by a file: `dialects/acme.yaml` among its
YAML is the node of the dialect `acme`. What was added, there or with a plus on the command line, comes before ours: the
first that knows a source has it, and the last of ours take whatever is left.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from omegaconf import OmegaConf

from pipeline.errors import ConfigError

KINDS: Final = {
    "containers": "stages/load.yaml", "dialects": "stages/load.yaml", "remotes": "stages/load.yaml",
    "families": "engine/jax.yaml",
}  # fmt: skip
"""Key → our file that has it."""


def joined(tree: Any, folders: list[Path]) -> Any:
    """`tree`, a plain config, with every such map as a list in the order in which its plugins are asked.

    Args:
        folders: ours, and then those of guests.

    Raises:
        ConfigError: a guest's file that is no YAML, or has the name of one of ours.
    """
    ours, guests = folders[0], _guests(tuple(folders[1:]))

    def walked(node: Any, kind: str | None) -> Any:
        if isinstance(node, list):
            return [walked(n, None) for n in node]
        if not isinstance(node, Mapping):
            return node
        if kind is None or "_target_" in node or not all(_is_plugin(v) for v in node.values()):
            return {k: walked(v, str(k) if k in KINDS else None) for k, v in node.items()}
        known = own(ours, kind)
        if same := sorted(known & {*guests.get(kind, {})}):
            raise ConfigError(f"{kind}/{same[0]}.yaml of a plugin: {same[0]!r} is ours; another name lets it join")
        theirs = {name: _resolved(n, tree) for name, n in guests.get(kind, {}).items() if name not in node}
        added = {name: n for name, n in node.items() if name not in known}
        rest = {name: n for name, n in node.items() if name in known}
        return [n for n in {**added, **theirs, **rest}.values() if n is not None]

    return walked(tree, None)


def with_exports(tree: Any, folders: list[Path]) -> Any:
    """`tree` with the options of `export=` that guests bring among those that `export=auto` asks, after ours: it takes
    theirs for a scheme that is their dialect's `own`, or where none of ours holds everything.

    Args:
        folders: ours, and then those of guests.

    Raises:
        ConfigError: a guest's file that is no YAML, or that has defaults which are no names of options.
    """
    stage = tree.get("stages", {}).get("export") if isinstance(tree.get("stages"), Mapping) else None
    if not isinstance(stage, Mapping) or not isinstance(stage.get("options"), Mapping):
        return tree
    known = {key for option in stage["options"].values() if isinstance(option, Mapping) for key in option}
    ours = {file.stem for file in (folders[0] / "export").glob("*.yaml")}
    files = {f.stem: f for folder in reversed(folders[1:]) for f in sorted((folder / "export").glob("*.yaml"))}
    found = {}
    for name in files:
        if name not in {*ours, *stage["options"]}:
            option = _resolved(_option(name, folders), tree)
            if option.get("dialect") is not None:  # one that asks others, as auto does, has none
                found[name] = {key: value for key, value in option.items() if key in known}
    prefer = [*(stage.get("prefer") or ()), *found]
    export = {**stage, "options": {**stage["options"], **found}, "prefer": prefer}
    return {**tree, "stages": {**tree["stages"], "export": export}} if found else tree


def of_guests(folders: list[Path]) -> list[str]:
    """What guests add, as text: what that refers to is looked at, and nothing of ours says so.

    Args: as `joined`.
    """
    files = [f for folder in folders[1:] for kind in (*KINDS, "export") for f in sorted((folder / kind).glob("*.yaml"))]
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def _option(name: str, folders: list[Path]) -> Any:
    """What `export=NAME` composes to."""
    file = next((f for folder in reversed(folders) if (f := folder / "export" / f"{name}.yaml").is_file()), None)
    if file is None:
        raise ConfigError(f"export={name}: there is no such option, which another has for its defaults")
    try:
        node = OmegaConf.to_container(OmegaConf.load(file))
    except Exception as why:  # PyYAML's errors and OmegaConf's have nothing in common
        raise ConfigError(f"{file}: cannot be read: {str(why).partition(chr(10))[0]}") from None
    if not isinstance(node, dict):
        raise ConfigError(f"{file}: is no option of export=: a mapping is expected")
    defaults = node.pop("defaults", ["_self_"])
    if wrong := [d for d in defaults if not isinstance(d, str)]:
        raise ConfigError(f"{file}: defaults: {wrong[0]}: the name of another option is expected, or _self_")
    parts = [
        node if d == "_self_" else _option(d, folders) for d in [*defaults, *["_self_"][: "_self_" not in defaults]]
    ]
    return OmegaConf.to_container(OmegaConf.merge(*parts))


def _is_plugin(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and "_target_" in value)


@cache
def own(folder: Path, kind: str) -> frozenset[str]:
    """Names that our file in `folder` has of a kind."""
    return frozenset(map(str, OmegaConf.select(OmegaConf.load(folder / KINDS[kind]), kind)))


def _guests(folders: tuple[Path, ...]) -> dict[str, dict[str, Any]]:
    """Kind → name → node, as guests' files have it."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for kind in KINDS:
            for file in sorted((folder / kind).glob("*.yaml")):
                try:
                    node = OmegaConf.to_container(OmegaConf.load(file))
                except Exception as why:  # PyYAML's errors and OmegaConf's have nothing in common
                    raise ConfigError(f"{file}: cannot be read: {str(why).partition(chr(10))[0]}") from None
                if not isinstance(node, Mapping) or "_target_" not in node:
                    raise ConfigError(f"{file}: is not one of {kind}: a node with `_target_` is expected")
                found.setdefault(kind, {}).setdefault(file.stem, node)
    return found


def _resolved(node: Any, tree: Any) -> Any:
    """`node` with its references to the rest of the config followed."""
    return OmegaConf.to_container(OmegaConf.create({**tree, "joined": node}).joined, resolve=True)
