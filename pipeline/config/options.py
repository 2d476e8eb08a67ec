"""Where YAML files lie and what may be chosen of them: our own, the user's, and those of installed plugins."""

import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from pipeline.config import extend
from pipeline.config.resolve import OWN_PACKAGES
from pipeline.config.spine import Spine
from pipeline.errors import did_you_mean

ENTRY_POINTS = "weightmill.plugins"
CONF = Path(__file__).parents[2] / "conf"


def search_override(config_dir: Path | None) -> list[str]:
    """The override that does what `--config-dir` does, for `compose`."""
    quoted = str(config_dir).replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"] if config_dir else []


def keys() -> set[str]:
    """What stands at the top of every config."""
    return {*Spine.__dataclass_fields__, "stages", "hydra", *map(str, OmegaConf.load(CONF / "config.yaml"))}


def options(group: str) -> list[str]:
    """Names of a config group's YAML files: on the search path, and in the user's folder."""
    found = {p.stem for folder in (CONF, extend.folder()) if folder for p in (folder / group).glob("*.yaml")}
    if (here := GlobalHydra.instance().hydra) is not None:
        found |= set(here.config_loader.get_group_options(group))
    return sorted(found)


def option_folders(config_dir: Path | None) -> list[Path]:
    guests = [config_dir or extend.folder(), *map(plugin_folder, plugins())]
    return [CONF, *(folder for folder in guests if folder)]


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


def allowed_packages() -> tuple[str, ...]:
    """Packages that a `_target_` may name: our own, and those that installed plugins declare."""
    return (*OWN_PACKAGES, *sorted({ep.value.partition(".")[0] for ep in plugins()}))


def no_model() -> str:
    """What to do about a run without a model."""
    where = "model.source=DIR, FILE.gguf or hf://owner/name says which by itself, model=NAME chooses one"
    return f"no model chosen; {where}{did_you_mean('', options('model'))}"
