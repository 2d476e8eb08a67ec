"""Which options of `model` are families, of any checkpoint, and which name one."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pipeline.errors import nearest


def checkpoints(folders: Iterable[Path]) -> Mapping[str, list[str]]:
    """Family → options that are of it and name a checkpoint; of all `model` options in `folders`, by name.

    A family is an option that has a source to be given, its own or that of the option on which it stands.
    """
    files = {p.stem: p for folder in folders for p in sorted((folder / "model").glob("*.yaml"))}
    nodes: dict[str, Any] = {name: OmegaConf.to_container(OmegaConf.load(p)) or {} for name, p in files.items()}

    def line(name: str) -> list[str]:
        """The option and those on which it stands, nearest first."""
        below = [d for d in nodes[name].get("defaults", ()) if isinstance(d, str) and d in nodes and d != name]
        return [name, *(other for base in below for other in line(base))]

    lines = {name: line(name) for name in nodes}
    source = {name: next((nodes[o]["source"] for o in of if "source" in nodes[o]), "???") for name, of in lines.items()}
    found: dict[str, list[str]] = {name: [] for name in sorted(nodes) if source[name] == "???"}
    for name, of in sorted(lines.items()):
        if (nearby := next((other for other in of if other in found), name)) != name:
            found[nearby].append(name)
    for name in found:  # a family of families has theirs
        if not found[name]:
            found[name] = [o for o, of in sorted(lines.items()) if name in of and o not in found]
    return found


def named_like(source: str, folders: Sequence[Path]) -> list[str]:
    """Options of `model` that a word which is no path may mean: `SmolLM2-135M` is smollm2_135m; checkpoints first."""
    word = re.sub(r"\W", "_", source).lower()
    names = {p.stem for folder in folders for p in (folder / "model").glob("*.yaml")}
    families = checkpoints(folders)
    near = [*families.get(word, ()), *([word] if word in names else ())]
    return near or ([] if re.search(r"[/~:]|^\.|\.(gguf|safetensors|json)$", source) else nearest(word, names))
