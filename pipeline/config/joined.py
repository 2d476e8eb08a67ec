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
