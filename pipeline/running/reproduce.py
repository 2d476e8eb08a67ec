"""Run again what a run was, elsewhere, and see whether it gives the same. Of the run itself everything is only read.

It is run from its `config.yaml`, as it was resolved, into folders of its own, with no results of earlier runs. What is
in no key is written down with every run (`pipeline.records.environment`), so that what is different can be told.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.config.again import again
from pipeline.config.options import CONF
from pipeline.config.spine import RunConfig
from pipeline.digest import digest_file
from pipeline.errors import SourceError, StorageError, WeightmillError, some
from pipeline.events import Events
from pipeline.files import read_whole, write_json
from pipeline.records import points
from pipeline.records.run import CONFIG, DESCRIPTION, MANIFEST, Run
from pipeline.reporting.manifest import Report, plain
from pipeline.reporting.reproduced import (
    ABSENT,
    Finding,
    Reproduction,
    differing,
    errors_of,
    metrics_of,
    surroundings,
    updates_of,
)  # fmt: skip
from pipeline.running.description import Description, read_description
from pipeline.running.point_reader import of_run
from pipeline.running.results import FOLDER
from pipeline.running.runner import execute
from pipeline.running.target import MARKER
from pipeline.tracker import Point

FILE, RUN = "reproduced.json", "run"
WEIGHTS = (".safetensors", ".gguf", ".npy")
ROOMS = ("plugins", "conf")  # of this project, in which files lie that runs read

Verify = Callable[[Path, Path, Path], Report]
"""(then, now, folder) → the report of `flow=verify` of two checkpoints, kept in the folder."""


@dataclass(frozen=True)
class Before:
    """A run that was.

    Attributes:
        cwd: where it was started, as far as that can be told from a relative path; None: it cannot.
    """

    run: Run
    report: Report
    description: Description
    tree: Mapping[str, Any]
    cwd: Path | None


def before(run: Run) -> Before:
    """What there is to reproduce.

    Raises:
        SourceError: the run is not complete, or its records are not all there; says why.
    """
    folder = run.folder
    if run.state != "complete" or not (folder / MANIFEST).is_file():
        reached = f" ({run.reached})" if run.reached else ""
        raise SourceError(f"{folder}: is {run.state}{reached}, so there is nothing whole to reproduce")
    description = read_description(folder)
    if description is None:
        raise SourceError(f"{folder / DESCRIPTION}: is gone, or cannot be read; it says what the run was made of")
    if not description.nodes:
        text = "by an earlier version of Weightmill: its run.json does not say what the run was made of"
        raise SourceError(f"{folder}: was made {text}; the same command with overwrite=true makes it anew")
    if not (folder / CONFIG).is_file():
        raise SourceError(f"{folder / CONFIG}: is gone; it says with which settings the run is to be made again")
    import yaml

    try:
        tree = yaml.safe_load(read_whole(folder / CONFIG))
    except yaml.YAMLError as why:
        raise SourceError(f"{folder / CONFIG}: is no YAML: {why}") from None
    paths = tree.get("paths") if isinstance(tree, Mapping) else None
    if not isinstance(paths, Mapping) or not isinstance(paths.get("run"), str):
        raise SourceError(f"{folder / CONFIG}: says nothing of paths.run, so it is no config of ours")
    try:
        report = Report.from_json(run.manifest)
    except (TypeError, AttributeError):
        raise SourceError(f"{folder / MANIFEST}: was written by an earlier version, and lacks what is needed") from None
    said, was = Path(os.path.expanduser(paths["run"])), Path(report.run)
    tail = said.parts
    cwd = Path(*was.parts[: -len(tail)]) if not said.is_absolute() and was.parts[-len(tail) :] == tail else None
    return Before(run, report, description, tree, cwd if cwd is not None and cwd.is_dir() else None)


def changed_sources(report: Report) -> Iterator[str]:
    """Files that the run read and that are not what they were, or not there; of large ones the digest is worked out."""
    for file in report.inputs:
        path = _here(str(file["path"]))
        if not Path(path).is_file():
            yield f"{file['path']} (gone)"
        elif file["xxh3_128"] is not None and digest_file(Path(path)).xxh3_128 != file["xxh3_128"]:
            yield path


def reproduced(was: Before, out: Path, events: Events, verify: Verify) -> Reproduction:
    """Run it again in `out`, and compare.

    Raises:
        SourceError: what it read changed or is gone.
        StorageError: `out` holds something.
        WeightmillError: the run could not be made again, or failed.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StorageError(f"--out {out}: there is something already; choose another")
    if changed := list(changed_sources(was.report)):
        raise SourceError(f"{some(changed)}: is no longer what {was.run.name} read, so it cannot be reproduced")
    with chdir(was.cwd) if was.cwd is not None else nullcontext():
        config = _elsewhere(was, out)
        report = execute(config, out / RUN, list(was.report.command), events)
    found = _compared(was, report, out, verify)
    write_json(out / FILE, _plain(found))
    return found


def _elsewhere(was: Before, out: Path) -> RunConfig:
    """The run's config with folders of its own."""
    places = was.description.places
    absolute = {place: out / "elsewhere" / name for name, place in places.items() if Path(place).is_absolute()}
    run = str(was.tree["paths"]["run"])

    def moved(text: str) -> str:
        if text == run or text.startswith(f"{run}/"):
            return str(out / RUN) + text.removeprefix(run)
        if absolute and "\n" not in text and (place := str(Path(os.path.expanduser(text)).absolute())) in absolute:
            return str(absolute[place])
        return _here(text)

    def literal(where: str, text: str) -> bool:
        """A text that a key has as it is; of what stands for something else it has a digest."""
        _, stage, field = f"{where}..".split(".", 2)
        said = was.description.nodes.get(stage, {}).get("parts", {}).get("config", {})
        held = said.get(field.rstrip("."), said.get(re.sub(r"\[\d+\]$", "", field.rstrip("."))))
        return text == held or (isinstance(held, list) and text in held)

    config = again(was.tree, moved, literal)
    dask = replace(config.spine.dask, address=None)
    paths = replace(config.spine.paths, outputs=str(out), run=str(out / RUN))
    spine = replace(config.spine, paths=paths, dask=dask, overwrite=False, digest_inputs=True)
    return replace(config, spine=spine)


def _here(text: str) -> str:
    """A path into another checkout of this project as one into this, where only there is such a file."""
    path = Path(text)
    if not text.startswith("/") or "\n" in text or os.path.lexists(text):
        return text
    for i, part in enumerate(path.parts):
        if part in ROOMS and (mine := CONF.parent.joinpath(*path.parts[i:])).exists():
            return str(mine)
    return text


def _compared(was: Before, report: Report, out: Path, verify: Verify) -> Reproduction:
    then, left_out, notes = was.report, set[str](), []
    now = read_description(out / RUN)
    assert now is not None
    order = tuple(now.nodes)
    if was.tree.get("dask", {}).get("address"):
        notes.append("it ran on a cluster then, and on this machine now")
    if not then.environment:
        notes.append("its record is of a version that wrote down no machine and no variables")
    quantizes, trains = (_of(now, name, order) for name in ("Quantize", "Train"))
    a, b = metrics_of(then, left_out), metrics_of(report, left_out)
    found = list(differing(a, b, "metric"))
    e, f = errors_of(then, quantizes), errors_of(report, quantizes)
    found += differing(e, f, "error")
    u, v = (updates_of(_points(folder), trains, left_out) for folder in (was.run.folder, out / RUN))
    found += differing(u, v, "update")
    files = _files(was, report, now, out, verify)
    found = [*files.findings, *found]
    rank = {name: i for i, name in enumerate(order)}
    found.sort(key=lambda one: rank.get(one.node, len(order)))
    new = [(n, str(d)) for n, d in was.description.new_in(now) if d.section not in ("takes", "place", "files")]
    around = [row for row in surroundings(then, report) if row[1] != row[2]]
    counts = {"file": files.compared, "metric": len(a), "error": len(e), "update": len(u)}
    return Reproduction(
        was.run.folder, out / RUN, tuple(found), counts, tuple(files.changed), tuple(new), tuple(around),
        tuple(sorted(left_out)), (*notes, *files.notes), order,
    )  # fmt: skip


@dataclass
class _Files:
    """What came of comparing files; see `Reproduction`."""

    findings: list[Finding]
    changed: list[Finding]
    notes: list[str]
    compared: int = 0


def _files(was: Before, report: Report, now: Description, out: Path, verify: Verify) -> _Files:
    """Files of both, and of those exports that have others, tensors."""
    then, here = _named(was.report), _named(report)
    found = _Files([], [], [])
    strange: dict[str, list[Finding]] = {}  # stage → where its tensors go that are not the same
    for stage, name in dict.fromkeys([*then, *here]):
        a, b = then.get((stage, name), {}), here.get((stage, name), {})
        found.compared += 1
        if (x := a.get("xxh3_128", ABSENT)) != (y := b.get("xxh3_128", ABSENT)):
            found.findings.append(Finding(stage, "file", name, x, y))
            strange[stage] = found.findings
        if a and (path := _moved(was, Path(a["path"]))).is_file():
            if (digest := digest_file(path).xxh3_128) != x:
                found.changed.append(Finding(stage, "file", name, x, str(digest)))
                strange.setdefault(stage, found.changed)
        elif a:
            found.notes.append(f"{path}: is gone since it was written; its record is compared")
    exports = {stage: Path(place) for stage, place in was.report.exports.items() if stage in strange}
    pairs = {s: (_moved(was, place), Path(report.exports[s])) for s, place in exports.items() if s in report.exports}
    for stage, (one, other) in (pairs | dict(_kept(was, now, out))).items():
        if not one.exists():
            found.notes.append(f"{stage}: {one} is gone, so its tensors cannot be compared")
            continue
        try:
            result = verify(one, other, out / f"verified-{stage}").results["verify"]
        except WeightmillError as why:
            found.notes.append(f"{stage}: its tensors cannot be compared: {why}")
            continue
        strange.setdefault(stage, found.findings).extend(_tensors(stage, result))
        if result["same"] and not result["recoded"] and stage in exports:
            found.notes.append(f"{stage}: all tensors are equal, bit for bit; the files differ in what is around them")
    return found


def _tensors(stage: str, result: Mapping[str, Any]) -> Iterator[Finding]:
    """What `stages.verify` found."""
    for name, error in result["differing"].items():
        yield Finding(stage, "tensor", name, "", f"RMSE {float(error['rmse']):.3g}", float(error["max_abs"]))
    for name in result["recoded"]:
        yield Finding(stage, "tensor", name, "", "equal values, coded in other bits")
    for text in result["structure"]:
        yield Finding(stage, "tensor", text, "", "")
    for key in result["config"]:
        yield Finding(stage, "metric", f"config.json: {key}", "", "another value")


def _named(report: Report) -> dict[tuple[str, str], dict[str, Any]]:
    """(stage, path below its export) → file; of other work, its name."""
    found, exports = {}, report.exports
    for file in report.outputs:
        path = Path(file["path"])
        if path.name == MARKER:  # says whose export it is, and nothing of the model
            continue
        stage = next((s for s, place in exports.items() if path.is_relative_to(place)), "")
        name = path.relative_to(exports[stage]).as_posix() if stage else path.name
        found[stage, path.name if name == "." else name] = file
    return found


def _moved(was: Before, path: Path) -> Path:
    """Where a file of the run is, whose folder may have been moved or copied since."""
    recorded = Path(was.report.run)
    return was.run.folder / path.relative_to(recorded) if path.is_relative_to(recorded) else path


def _kept(was: Before, now: Description, out: Path) -> Iterator[tuple[str, tuple[Path, Path]]]:
    """Checkpoints that stages made and keep among the results, of both: (stage, (then, now))."""
    outputs = Path(os.path.expanduser(str(was.tree["paths"]["outputs"])))
    outputs = outputs if outputs.is_absolute() or was.cwd is None else was.cwd / outputs
    for name, node in now.nodes.items():
        a = outputs / FOLDER / _key(was.description.nodes.get(name, {}))
        b = out / FOLDER / _key(node)
        if any(f.suffix in WEIGHTS for f in b.glob("*")):
            yield name, (a, b)


def _key(node: Mapping[str, Any]) -> str:
    return str(node.get("found", {}).get("key") or node.get("key", "-"))


def _of(description: Description, kind: str, order: Sequence[str]) -> str:
    """The first stage of a class of that name; empty: there is none."""
    return next((n for n in order if str(description.nodes[n]["parts"].get("stage", "")).endswith(f".{kind}")), "")


def _points(folder: Path) -> list[Point]:
    return [p for file in points.files(folder) for p in of_run(points.points(file))]


def _plain(found: Reproduction) -> dict[str, Any]:
    said = {"weightmill": 1, "same": found.same, "verdict": found.verdict, "first": found.first}
    return {**said, **plain(asdict(found))}
