"""What runs come to, as a paragraph: what was done, what it gives, what that cost."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pipeline.errors import some
from pipeline.figures import Figure, cell
from pipeline.records.run import STATES, key_of
from pipeline.reporting.compare.front import dominators
from pipeline.reporting.html.markup import shown
from pipeline.reporting.html.scales import finite
from pipeline.reporting.html.told import Told, kind
from pipeline.reporting.manifest import Report
from pipeline.tensors.spec import UNQUANTIZED
from pipeline.units import show_bytes, show_seconds

DID = {
    "Init": "made with fresh weights", "Train": "trained", "Adapt": "given an adapter", "Quantize": "quantized",
    "Transcode": "transcoded", "Export": "exported", "Evaluate": "evaluated", "Generate": "asked for text",
    "Histogram": "counted in histograms", "Sensitivity": "searched for what hurts most",
    "Parity": "held against transformers",
    "Verify": "verified", "Bench": "measured in engines beside each other",
    "BenchScale": "measured over its size", "BenchOps": "measured op by op", "BenchConvert": "measured in conversions",
    "BenchTrain": "measured in training",
}  # fmt: skip
QUALITY = ("perplexity", "kl", "top_1")
FRONT = ("perplexity", "bits_a_weight")
BEST = ("bits a weight", "perplexity", "KL", "held-out loss", "decode")  # the best of several runs is named


def of_run(run: Told, attention: int) -> str:
    """A run in a paragraph.

    Args:
        attention: how many things need some.
    """
    report = run.report
    said = [_did(run)]
    if report is not None:
        said += [*_size(report), *_quality(run, report), *_cost(run, report)]
    said.append(_attention(attention))
    return " ".join(filter(None, said))


def of_runs(runs: Sequence[Told], attention: int, other: Mapping[str, Sequence[str]]) -> str:
    """Several of them.

    Args:
        other: metrics that are of other things in some of them, and of what: see `told.incomparable`.
    """
    states: Counter[str] = Counter(run.run.state for run in runs)
    models = list(dict.fromkeys(run.run.model for run in runs if run.run.model))
    of = f" of {some(models)}" if models else ""
    done = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    said = [f"{len(runs):,} runs{of}: {done}."]
    for name in BEST:
        said += [] if name in other else _best(runs, name)
    said += _not_ranked(other)
    said += [] if any(key_of(name) in FRONT for name in other) else _front(runs)
    seconds = [run.run.seconds for run in runs if run.run.seconds is not None]
    if len(seconds) > 1:
        said.append(f"They took {show_seconds(min(seconds))} to {show_seconds(max(seconds))} each.")
    return " ".join([*said, _attention(attention)])


def before(run: Told) -> dict[str, Figure]:
    """Metrics of what a run compares with, before it did what it did to the model: by the names of its own."""
    found: dict[str, Figure] = {}
    for result in run.report.results.values() if run.report else ():
        given = result.get("before") if isinstance(result, Mapping) else None
        for name, value in given.items() if isinstance(given, Mapping) else ():
            try:
                figure = cell(value)
            except (ValueError, TypeError):  # what stages give is theirs: no schema holds it
                continue
            if isinstance(figure, Figure):
                found[str(name)] = figure
    return found


def changes(run: Told) -> dict[str, Figure]:
    """Of each metric that there is a before of how much it changed."""
    then = before(run)
    found = {name: change(figure, then[name]) for name, figure in run.metrics.items() if name in then}
    return {name: figure for name, figure in found.items() if figure is not None}


def change(now: Figure, then: Figure) -> Figure | None:
    """How much more it is than then, in percent."""
    return Figure(100 * (now.value / then.value - 1), "%", "+.2f", now.better) if then.value else None


def _did(run: Told) -> str:
    model = run.run.model or ("The model" if run.report and run.report.nbytes_bf16 else "All that was asked for")
    if run.report is None:
        return f"This run{f' of {run.run.model}' if run.run.model else ''} is not complete: {run.run.state}."
    done = []
    for stage in run.report.stages:
        name = str(stage["name"])
        target = str(run.run.config.get(f"stages.{name}._target_", name)).rpartition(".")[2]
        verb = DID.get(target[:1].upper() + target[1:])
        if verb == DID["Quantize"] and kind(run) != UNQUANTIZED:
            quant = run.run.quant if run.run.quant not in ("", "keep") else ""
            verb = f"{verb} ({quant}: {kind(run)})" if quant else f"{verb} ({kind(run)})"
        if verb == DID["Export"] and name in run.report.chosen:
            verb = f"{verb} ({run.report.chosen[name].partition(',')[0].partition(';')[0]})"
        done.append(verb)
    verbs = [verb for verb in dict.fromkeys(done) if verb]
    return (
        f"{model} was {_listed(verbs)}."
        if verbs
        else f"{model} went through {_listed([str(s['name']) for s in run.report.stages])}."
    )


def _size(report: Report) -> Iterator[str]:
    if report.nbytes_out and report.nbytes_bf16:
        smaller = (
            f", {report.ratio:.2f}× smaller than the {show_bytes(report.nbytes_bf16)} of bf16"
            if report.ratio > 1
            else ""
        )
        yield f"Its weights take {show_bytes(report.nbytes_out)}, {report.bits_per_weight:.3f} bits a weight{smaller}."


def _quality(run: Told, report: Report) -> Iterator[str]:
    keyed = {key_of(name): (name, figure) for name, figure in run.metrics.items()}
    then = before(run)
    found = []
    for key in QUALITY:
        if key in keyed:
            name, figure = keyed[key]
            text = f"{name} {shown(figure)}"
            if name in then and (more := change(figure, then[name])) is not None:
                text += f" ({shown(then[name])} before, {more})"
            found.append(text)
    if found:
        yield f"{_sentence(', '.join(found))}."
    for result in report.results.values():
        if (
            isinstance(result, Mapping)
            and {"first", "last", "step"} <= result.keys()
            and isinstance(result["step"], int)
        ):
            first, last = result["first"], result["last"]
            if isinstance(first, float) and isinstance(last, float):
                yield f"Its held-out loss went from {first:.4f} to {last:.4f} in {result['step']:,} updates."


def _cost(run: Told, report: Report) -> Iterator[str]:
    busy = sum(float(row["seconds"]) for row in report.stages)
    slowest = max(report.stages, key=lambda row: float(row["seconds"]), default=None)
    text = f"It took {show_seconds(report.seconds)}"
    if slowest is not None and busy > 0 and len(report.stages) > 1:
        share = 100 * float(slowest["seconds"]) / busy
        text += f"; the slowest stage is {slowest['name']} ({show_seconds(slowest['seconds'])}, {share:.0f} % of all)"
    memory = next((row for row in report.predicted if row.get("what") == "memory" and row.get("unit") == "bytes"), None)
    if memory is not None:
        text += f"; memory {show_bytes(memory['measured'])} at the most"
    yield f"{text}."
    if report.found:
        yield f"From earlier runs: {some(list(report.found))}."


def _best(runs: Sequence[Told], name: str) -> list[str]:
    """Which run has the best of a metric; nothing, where all have the same."""
    found = [(run.metrics[name], run) for run in runs if finite(run.metrics.get(name)) is not None]
    if len({figure.value for figure, _ in found}) < 2:
        return []
    figure, run = (max if found[0][0].better == "higher" else min)(found, key=lambda one: one[0].value)
    alike = [one.label for other, one in found if other.value == figure.value]
    then = before(run).get(name)
    was = f", {shown(then)} before" if then is not None and len(alike) == 1 else ""
    return [f"Best {name}: {some(alike)} ({shown(figure)}{was})."]


def _not_ranked(other: Mapping[str, Sequence[str]]) -> list[str]:
    """Of those of which the best would be named."""
    names = [name for name in BEST if name in other]
    what = list(dict.fromkeys(what for name in names for what in other[name]))
    return [f"No best {' and '.join(names)} is named: {_listed(what)} differ between runs."] if names else []


def _front(runs: Sequence[Told]) -> list[str]:
    keyed = [({key_of(n): f for n, f in run.metrics.items()}, run.label) for run in runs]
    points = [(one, label) for one, label in keyed if {*FRONT} <= one.keys()]
    if len(points) < 3:
        return []
    beaten = dominators([[one[key].value for key in FRONT] for one, _ in points])
    best = [label for (_, label), by in zip(points, beaten, strict=True) if not by]
    return [f"In perplexity and bits a weight no other beats {some(best)}."] if len(best) < len(points) else []


def _attention(count: int) -> str:
    if not count:
        return "Nothing needs attention."
    return f"{'One thing needs' if count == 1 else f'{count} things need'} attention, below."


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
