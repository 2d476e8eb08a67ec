"""A run as its folder tells it, whether it is complete, at work, or was killed; only what can be read whole counts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.errors import SourceError
from pipeline.figures import Figure, cell
from pipeline.files import read_whole

DESCRIPTION, MANIFEST, METRICS, CONFIG = "run.json", "manifest.json", "metrics.jsonl", "config.yaml"
MOST_RECORD_NBYTES = 1 << 30  # a manifest: a row for every tensor

State = Literal["complete", "running", "interrupted", "unreadable"]


@dataclass(frozen=True)
class Run:
    """Attributes:
    folder: absolute.
    id: from its first try to its last.
    name: of its folder.
    state: `complete` with a manifest, `running` while a process holds it, `interrupted` otherwise; `unreadable`, when
        its records are not ours or not whole, which `problems` says.
    started: seconds since the epoch; None: not known.
    seconds: what it took; None while it is not complete.
    command: the overrides that say what is made.
    metrics: what it found last, by name: `perplexity`, `KL`, `bits a weight`, …
    config: resolved, by dotted key.
    problems: files that are partial or foreign, and why.
    """

    folder: Path
    id: str
    name: str
    state: State
    started: float | None = None
    seconds: float | None = None
    command: tuple[str, ...] = ()
    metrics: Mapping[str, Figure] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    problems: tuple[str, ...] = ()

    @property
    def manifest(self) -> dict[str, Any]:
        """All that stands in `manifest.json`; of a run that is not complete nothing."""
        return _read(self.folder / MANIFEST) if (self.folder / MANIFEST).is_file() else {}


def key_of(name: str) -> str:
    """How the name of a metric or setting is typed: `bits a weight` → `bits_a_weight`, `top-1` → `top_1`."""
    return "".join(c if c.isalnum() or c == "." else "_" for c in name.lower())


def is_run(folder: Path) -> bool:
    return (folder / DESCRIPTION).is_file() or (folder / MANIFEST).is_file()


def read(folder: Path) -> Run:
    """The run in `folder`.

    Raises:
        SourceError: there is none.
    """
    if not is_run(folder):
        raise SourceError(f"{folder}: is no folder of a run: it has no {DESCRIPTION}")
    problems: list[str] = []

    def said(name: str) -> dict[str, Any]:
        try:
            return _read(folder / name) if (folder / name).is_file() else {}
        except SourceError as why:
            problems.append(str(why))
            return {}

    description, manifest = said(DESCRIPTION), said(MANIFEST)
    return Run(
        folder,
        str(description.get("id", "")),
        folder.name,
        "unreadable" if problems else "complete" if manifest else "interrupted",
        manifest.get("started"),
        manifest.get("seconds"),
        tuple(description.get("command") or manifest.get("command", ())),
        _metrics(manifest),
        _flat(_yaml(folder / CONFIG)),
        tuple(problems),
    )


def _metrics(manifest: Mapping[str, Any]) -> dict[str, Figure]:
    """What its stages found, and what holds of every run."""
    found: dict[str, Figure] = {}
    for result in manifest.get("results", {}).values():
        figures = result.get("figures") if isinstance(result, Mapping) else None
        for name, value in (figures or {}).items():
            if isinstance(figure := cell(value), Figure):
                found[name] = figure
    if nbytes := manifest.get("nbytes_out"):
        bits = 16 * nbytes / manifest["nbytes_bf16"]
        found["bits a weight"] = Figure(bits, better="lower")
        found["size"] = Figure(nbytes, "B", better="lower")
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_whole(path, MOST_RECORD_NBYTES)))
    except (ValueError, TypeError, RecursionError) as why:
        raise SourceError(f"{path}: is no record of ours: {why}") from None


def _yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_whole(path)) if path.is_file() else {}
    except (SourceError, yaml.YAMLError):
        return {}


def _flat(tree: Any, at: str = "") -> dict[str, Any]:
    if not isinstance(tree, Mapping):
        return {at: tree}
    return {k: v for key, item in tree.items() for k, v in _flat(item, f"{at}.{key}" if at else str(key)).items()}
