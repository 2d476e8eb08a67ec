"""`new-stage NAME`: a working stage with its YAML and its test, to be changed into what is wanted."""

import keyword
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path

from pipeline.config.options import CONF, options, plugins
from pipeline.config.words import door
from pipeline.errors import ConfigError
from pipeline.files import folder_for, write_new
from pipeline.terminal import safe

USAGE = "new-stage NAME [--dir DIR]: NAME is what `stages=[…, NAME, …]` will say"
# What Hydra's override grammar and YAML read as something else than a name.
NOT_NAMES = {"true", "false", "null", "none", "nan", "inf", "yes", "no", "on", "off"}

STAGE = '''"""{title}: say here what the stage does to a checkpoint, and why."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.stage import Checkpoint, Context


@dataclass(frozen=True)
class {cls}:
    """Multiply tensors by a factor.

    Attributes:
        factor: what values are multiplied by.
        select: which tensors, as a shell pattern.
    """

    factor: float = 0.5
    select: str = "*"

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """A lazy view: nothing is read until somebody writes, and then one box at a time, in many tasks."""
        return checkpoint.map(partial(scaled, factor=self.factor), self.select)


def scaled(values: Any, factor: float) -> Any:
    """`values` times `factor`, in their own dtype. Sees a box at a time, so it must work element by element."""
    return (values * factor).astype(values.dtype)
'''

YAML = """# @package stages.{name}
# {title}: say here what the stage does, and beside every option what it may be.
_target_: stages.{name}.{cls}
factor: 0.5               # what values are multiplied by
select: "*"               # which tensors, as a shell pattern
"""

TEST = '''"""The stage `{name}`: what every stage promises, and what this one computes."""

from pathlib import Path
from typing import Any

import numpy as np

from pipeline.stage import Context
from pipeline.testing.memory import checkpoint
from pipeline.testing.stage import StageContract, stage_of
{here}

class Test{cls}(StageContract):
    def stage(self) -> Any:
        return stage_of("{name}"{config_dir})


def test_values(tmp_path: Path) -> None:
    stage = stage_of("{name}", "factor=2"{config_dir})
    given = checkpoint({{"w": np.array([1.0, -3.0], np.float32)}})
    assert stage.run(Context(tmp_path), given).store.read("w").tolist() == [2.0, -6.0]
'''


def new_stage(args: list[str]) -> None:
    """Write the three files and say what to type next.

    Raises:
        ConfigError: no name, one that cannot be used, or a file that is there already; nothing was written.
        StorageError: the folder cannot be written.
    """
    name, folder = parsed(args, USAGE)
    if folder is None:
        root = CONF.parent
        if not (root / "tests" / "unit").is_dir():
            raise ConfigError(f"{root} is an installation, no checkout; new-stage {name} --dir DIR writes to a folder")
        module, conf, test = root / "stages", CONF / "stages", root / "tests" / "unit"
    else:
        module, conf, test = folder / "stages", folder / "stages", folder
    _check(name, {module, conf})
    cls = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "cls": cls, "title": name.replace("_", " ").capitalize()}
    if folder is None:
        words |= {"here": "", "config_dir": ""}
    else:
        words |= {"here": "\nHERE = Path(__file__).parent\n", "config_dir": ", config_dir=HERE"}
    files = {
        module / f"{name}.py": STAGE,
        conf / f"{name}.yaml": YAML,
        test / f"test_{name}.py": TEST,
    }
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"{', '.join(there)}: exists already, and new-stage never overwrites")
    for path, template in files.items():
        folder_for(path)
        write_new(path, template.format(**words))
        print(safe(f"wrote {shown(path)}"))
    config_dir = [] if folder is None else [f"--config-dir {shown(folder)}"]
    chosen = f"'stages=[load,decode,{name},quantize,export]'"
    run = " ".join([*door(), *config_dir, "+model=gpt_oss quant=mxfp4", chosen])
    tested = shown(test / f"test_{name}.py")
    print(safe(f"\nnext:\n  {run}\n  {run} stages.{name}.factor=2\n  python -m pytest {tested}"))


def parsed(args: list[str], usage: str) -> tuple[str, Path | None]:
    """The name, and the folder that `--dir` says, if it does.

    Raises:
        ConfigError: another argument, or none; says `usage`.
    """
    names: list[str] = []
    folder = None
    rest = iter(args)
    for arg in rest:
        if arg == "--dir" or arg.startswith("--dir="):
            given = next(rest, "") if arg == "--dir" else arg.removeprefix("--dir=")
            if not given:
                raise ConfigError(f"--dir needs a folder; {usage}")
            folder = Path(os.path.expanduser(given))
        elif arg.startswith("-"):
            raise ConfigError(f"{arg!r} is no option; {usage}")
        else:
            names.append(arg)
    if len(names) != 1:
        raise ConfigError(f"one name is needed, got {len(names)}; {usage}")
    if folder is not None and folder.exists() and not folder.is_dir():
        raise ConfigError(f"--dir {folder}: is not a folder")
    return names[0], folder


def _check(name: str, folders: set[Path]) -> None:
    """Raises ConfigError unless `name` can be a module, a config key and a class, and is free."""
    from_plugins = [ep.name for ep in plugins() if name in _of(ep)]
    taken = {*options("stages"), *(p.stem for folder in folders for p in folder.glob("[!_]*.py"))}
    check_name(name, "stage", taken, f" by the plugin {from_plugins[0]}" if from_plugins else "")


def check_name(name: str, kind: str, taken: Collection[str], whose: str = "") -> None:
    """Raises ConfigError unless `name` can be a module, a config key and a class, and is not `taken`.

    Args:
        whose: says which plugin has the name.
    """
    allowed = (
        "a name is lower-case letters, digits and single underscores, beginning with a letter, such as 'drop_bias'"
    )
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        guess = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
        usable = bool(re.fullmatch(r"[a-z][a-z0-9_]*", guess))
        raise ConfigError(f"{name!r} cannot name a {kind}{f'; did you mean {guess!r}?' if usable else ''} ({allowed})")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name) or name in NOT_NAMES:
        raise ConfigError(f"{name!r} means something else to Python, YAML or Hydra ({allowed})")
    if name in sys.stdlib_module_names:
        raise ConfigError(f"{name!r} is a module of Python's own; choose another name ({allowed})")
    if name in taken or whose:
        raise ConfigError(f"a {kind} {name!r} is there already{whose} (taken: {', '.join(sorted(taken))})")


def _of(plugin: object) -> list[str]:
    """Stages that an installed plugin brings."""
    from pipeline.config.options import plugin_folder

    folder = plugin_folder(plugin)  # type: ignore[arg-type]
    return [p.stem for p in (folder / "stages").glob("*.yaml")] if folder else []


def shown(path: Path) -> str:
    """As short as it can be typed from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
