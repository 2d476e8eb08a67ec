"""What a run found, as metrics that can be compared: its figures, its errors, and what each of them was measured on."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.digest import identity
from pipeline.errors import SourceError
from pipeline.figures import Better, Figure
from pipeline.records.latest import KINDS
from pipeline.records.lost import error_figures, stats_of, total
from pipeline.records.points import FIGURE
from pipeline.records.run import Run, key_of
from pipeline.records.series import series
from pipeline.records.system import KIND as SYSTEM
from pipeline.reporting.compare.differences import Facts, alike, facts, parts_of
from pipeline.tensors.stats import ErrorStats

# What is better, of figures that do not say so themselves: those of manifests of earlier versions.
KNOWN: Mapping[str, Better] = {
    "perplexity": "lower", "kl": "lower", "top_1": "higher", "decode": "higher", "prefill": "higher",
    "bits_a_weight": "lower", "size": "lower", "rmse": "lower", "max_abs": "lower", "sqnr": "higher",
    "training_loss": "lower", "held_out_loss": "lower", "held_out_accuracy": "higher",
    "loss": "lower", "accuracy": "higher",
}  # fmt: skip
TOKENIZER = re.compile(r"(.*/)?(tokenizer.*|.*\.tiktoken|tiktoken\.model|tekken\.json|spiece\.model|.*\.bpe\.model)'*")
AGAINST = "baseline"
WHOLE = "seconds"  # the metric, and the end of those of its stages

Ground = Mapping[str, Any]
"""What a metric was measured on: what it is called (`texts`, `windows`, …) → something that is equal where that is."""


@dataclass(frozen=True)
class Measured:
    """A run, and all of it that is compared.

    Attributes:
        run: it, with what is wrong in its records of metrics.
        metrics: by name.
        grounds: metric → what it was measured on.
        errors: group of tensors, its encoding → what was lost.
        facts: see `pipeline.reporting.compare.differences`.
        likeness: what repeats of it have in common, and what tells them apart, as `differences.alike`.
        encodings: what is packed of what it gives: encoding → values.
    """

    run: Run
    metrics: Mapping[str, Figure]
    grounds: Mapping[str, Ground] = field(repr=False)
    errors: Mapping[tuple[str, str], ErrorStats] = field(repr=False)
    facts: Facts = field(repr=False)
    likeness: tuple[str, str] = field(repr=False)
    encodings: Mapping[str, int] = field(repr=False)


def measured(run: Run, *, timed: bool = False) -> Measured:
    """What is compared of a run.

    Args:
        timed: with how long it and each of its stages took, as metrics.
    """
    try:
        manifest = run.manifest
    except SourceError:  # `Run.problems` has it
        manifest = {}
    lost = total(manifest)
    of_series, problems = _of_series(run)
    run = replace(run, problems=(*run.problems, *problems))
    metrics = {name: _directed(name, figure) for name, figure in run.metrics.items()} | of_series
    parts = parts_of(run)
    grounds = _grounds(manifest, parts)
    quantized = [lost.count, f"{lost.sq_signal:.6g}"]  # sums of other chunks differ in their last digits
    grounds |= {name: {"quantized tensors": quantized} for name in error_figures(lost)}
    taken = [_of(manifest.get("chunks"), "reused") or 0, sorted(manifest.get("found") or ())]
    if timed:
        metrics |= times(run, manifest)
        if taken == [0, []] and _beside_others(manifest):
            metrics.pop(WHOLE, None)
    grounds[WHOLE] = {"work taken over from earlier runs": taken}
    grounds["size"] = {"number of weights": manifest.get("nbytes_bf16")}
    errors = {
        (str(row["name"]), str(row.get("encoding", ""))): stats_of(row)
        for row in manifest.get("errors") or ()
        if isinstance(row, Mapping)
    }
    its = facts(run, manifest, parts)
    return Measured(run, metrics, grounds, errors, its, alike(its), manifest.get("encodings") or {})


def _of_series(run: Run) -> tuple[dict[str, Figure], list[str]]:
    """What went on while it was at work, as a training's loss: where it ended, its best, and its mean; of what it took
    of the machine the most. Of members of a population nothing: their best is a figure. And what is wrong in its
    files."""
    try:
        found, problems = series(run, run.folder.parents[len(Path(run.name).parts) - 1])
    except SourceError as why:
        return {}, [str(why)]
    figures: dict[str, Figure] = {}
    for name, one in found.items():
        better = one.better or KNOWN.get(key_of(one.name), "")
        if not better or one.member is not None or not one.count or one.kind == FIGURE:
            continue
        given = {"last": one.last, "min": one.min, "mean": one.mean}
        if better == "higher" or one.kind == SYSTEM:  # of what a run takes the most is what it needs
            given = {"last": one.last, "max": one.max, "mean": one.mean}
        form = ".0f" if one.unit == "B" else ".4g"
        if one.kind != "train" and f"{KINDS.get(one.kind)} {one.name}" in run.metrics:
            del given["last"]  # which is that figure
        figures |= {f"{name} {k}": Figure(v, one.unit, form, better) for k, v in given.items() if v is not None}
    return figures, problems


def times(run: Run, manifest: Mapping[str, Any]) -> dict[str, Figure]:
    """How long it took, `seconds`, and each of its stages, `export seconds`."""
    whole = {} if run.seconds is None else {WHOLE: run.seconds}
    rows = [row for row in manifest.get("stages") or () if isinstance(row, Mapping)]
    stages = {f"{row.get('name')} {WHOLE}": row.get("seconds") for row in rows}
    return {
        name: Figure(taken, "s", ".3g" if taken < 100 else ".0f", "lower")
        for name, taken in (whole | stages).items()
        if isinstance(taken, int | float)
    }


def _beside_others(manifest: Mapping[str, Any]) -> bool:
    """Whether other jobs of a sweep had their turns meanwhile: how long it took is then since the sweep began, which
    says in what order they were done, and a plan's time is not held against that."""
    predicted = [row.get("what") for row in manifest.get("predicted") or () if isinstance(row, Mapping)]
    return bool(predicted) and "time" not in predicted


def is_time_of_stage(name: str) -> bool:
    return name.endswith(f" {WHOLE}")


def apart(one: Ground, other: Ground) -> list[str]:
    """In what two grounds differ, as far as both are known; what differs makes their metrics incomparable."""
    return [name for name in one if None not in (one[name], other.get(name)) and one[name] != other[name]]


def _directed(name: str, figure: Figure) -> Figure:
    if figure.better:
        return figure
    return Figure(figure.value, figure.unit, figure.form, KNOWN.get(key_of(name), ""))


def _grounds(manifest: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Ground]:
    """Metric → its ground, of each that a stage found."""
    found: dict[str, Ground] = {}
    tokenizer = sorted(
        [name.rstrip("'").rpartition("/")[2], digest]
        for node in parts.values()
        for name, digest in node.get("files", {}).items()
        if TOKENIZER.fullmatch(name)
    )
    sources = sorted(str(v) for n in parts.values() if not n.get("takes") for v in n.get("files", {}).values())
    for stage, result in (manifest.get("results") or {}).items():
        if not isinstance(result, Mapping) or not isinstance(result.get("figures"), Mapping):
            continue
        node = parts.get(stage, {})
        ground: dict[str, Any] = {}
        if isinstance(texts := result.get("texts"), Mapping):
            read = node.get("files", {})
            ground["texts"] = sorted(texts)
            ground["content of texts"] = sorted(str(read[n]) for n in texts) if {*texts} <= {*read} else None
            ground["tokens scored"] = sorted([n, _of(row, "tokens"), _of(row, "scored")] for n, row in texts.items())
            ground["tokenizer"] = identity(tokenizer) if tokenizer else None
        if isinstance(windows := result.get("windows"), Mapping):
            ground["windows"] = {k: v for k, v in windows.items() if k != "batch"}
        before = result.get("before")
        for name in result["figures"]:
            alone = not isinstance(before, Mapping) or not before or name in before
            found[str(name)] = ground if alone else {**ground, AGAINST: sources or None}
        if "texts" not in result:
            config = node.get("config", {}).items()
            data = {k: v for k, v in config if k.startswith("data.") and not k.endswith("seed")}
            data |= dict(node.get("files", {}))
            found |= {str(name): {"data": data or None} for name in result["figures"] if "loss" in name}
    return found


def _of(row: Any, key: str) -> Any:
    return row.get(key) if isinstance(row, Mapping) else None
