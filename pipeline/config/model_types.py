"""Which model option is for which `model_type` of a config.json."""

from pathlib import Path

from omegaconf import OmegaConf

from pipeline.config.options import option_folders
from pipeline.errors import ConfigError


def model_types(config_dir: Path | None = None) -> dict[str, str]:
    """model_type of config.json → the option that is for it: ours, those in the user's folder, those of plugins.

    Raises:
        ConfigError: an option that is not YAML.
    """
    found: dict[str, str] = {}
    for file in (f for folder in option_folders(config_dir) for f in sorted((folder / "model").glob("*.yaml"))):
        try:
            kinds = OmegaConf.select(OmegaConf.load(file), "model_types") or ()
        except Exception as why:  # PyYAML's errors and OmegaConf's have nothing in common
            raise ConfigError(f"{file}: cannot be read: {str(why).partition(chr(10))[0]}") from None
        for kind in kinds:
            found.setdefault(str(kind), file.stem)
    return found
