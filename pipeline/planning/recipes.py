"""What a run's results depend on beside its inputs: the config of its stages, and the code."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.config import extend
from pipeline.config.resolve import OWN_PACKAGES
from pipeline.config.spine import RunConfig
from pipeline.digest import code_version, identity


def nodes_of(run: RunConfig) -> dict[str, dict[str, Any]]:
    """The nodes of the run's stages; `remotes` do not count, as the inputs say what they gave."""
    return {name: {k: v for k, v in run.nodes[name].items() if k != "remotes"} for name in run.stages}


def recipes(run: RunConfig) -> dict[str, str]:
    """See `Context.recipes`."""
    nodes = nodes_of(run)
    found, so_far = {}, code_of(nodes)
    for name, node in nodes.items():
        so_far = found[name] = identity([so_far, name, node])
    return found


def code_of(nodes: Mapping[str, Any]) -> str:
    """Version of all code that the run's bytes depend on: ours, the user's folder, and installed plugins it names."""
    root = Path(__file__).parents[2]
    ours = _ours(*(root / p for p in ("pipeline", *OWN_PACKAGES)))
    theirs = [Path(f) for p in sorted(_packages(nodes) - {*OWN_PACKAGES}) for f in import_module(p).__path__]
    theirs += extend.roots()
    return identity([ours, code_version(*theirs)]) if theirs else ours


_ours = cache(code_version)


def _packages(node: Any) -> set[str]:
    """Top-level packages of every `_target_` in a config."""
    if isinstance(node, Mapping):
        own = {str(node["_target_"]).partition(".")[0]} if "_target_" in node else set()
        return own.union(*map(_packages, node.values()))
    return set().union(*map(_packages, node)) if isinstance(node, list | tuple) else set()
