"""What a page says of one run: what was found, how the graph went, what was lost, what it was made with."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from pipeline.errors import short, some
from pipeline.figures import Figure, cell
from pipeline.redact import hide
from pipeline.reporting.html import artifacts, attention, benched, errors, gains, gist, graph, spreads, training
from pipeline.reporting.html.markup import el, shown
from pipeline.reporting.html.parts import (
    Attention,
    Card,
    Cards,
    Command,
    Drawn,
    Folded,
    Gist,
    Note,
    Part,
    Section,
    Side,
    Table,
    Text,
)
from pipeline.reporting.html.told import Told
from pipeline.reporting.manifest import Report
from pipeline.tables import GLUE
from pipeline.units import show_bytes

MOST_CARDS = 12
MOST_POINTS = 240  # of a line
MOST_ROWS = 400  # of a table of what was left out, or of files
BETTER = {"lower": "less is better", "higher": "more is better"}
MOST_KEYS = 2  # that an override says, by name
STEPS = ".trainer.steps"  # of a stage that trains, how many updates it does
TEXT_TABLE = "Text"  # of `generate`: shown as texts


def of_run(run: Told, most: int, *, config: bool = True) -> list[Section]:
    """All there is to say of a run.

    Args:
        most: rows of a table of tensors, and points of a line; 0: neither these nor their charts.
        config: whether its settings are in it.
    """
    report = run.report
    read = cache(lambda: training.series(run, min(most, MOST_POINTS)) if most else training.Read())
    made: list[tuple[str, str, Callable[[], Sequence[Part]]]] = [
        ("summary", "Summary", lambda: summary(run, read())),
        ("stages", "Stages", lambda: _stages(run, report) if report else ()),
        ("errors", "Quantization error", lambda: (errors.by_tensor(report, most) or ()) if report and most else ()),
        ("gains", "Gains of calibration", lambda: gains.charts(report, most) if report and most else ()),
        ("histograms", "Histograms", lambda: spreads.charts(report) if report and most else ()),
        ("measured", "Measured", lambda: benched.charts(report) if report and most else ()),
        ("results", "Results", lambda: results(report) if report else ()),
        ("training", "Training", lambda: _training(read())),
        ("machine", "Machine", lambda: _machine(read())),
        ("samples", "Text", lambda: samples(report) if report else ()),
        ("config", "Configuration", lambda: settings(run) if config else ()),
        ("environment", "Environment", lambda: environment(report) if report else ()),
        ("files", "Files", lambda: files(run, report)),
    ]
    return [Section(id, title, parts) for id, title, how in made if (parts := _read(how))]


def _read(how: Callable[[], Sequence[Part]]) -> Sequence[Part]:
    """Records of other versions, or somebody's own, may lack what a section is of: then the section says so."""
    try:
        return how()
    except attention.UNEXPECTED as why:
        return [Note(attention.unexpected(why), "problem")]


def summary(run: Told, read: training.Read) -> list[Part]:
    """In words, what needs attention, as typed, and the numbers that count."""
    cards = [Card("state", run.run.state, when(run.run.started))]
    then = gist.before(run)
    for name, figure in {**run.main, **run.metrics}.items():
        more = gist.changes(run).get(name)
        was = f"{shown(then[name])} before, {shown(more)}" if more is not None else ""
        cards.append(Card(name, figure, was or BETTER.get(figure.better, "")))
    if (report := run.report) and report.nbytes_bf16:
        cards.append(Card("as bf16", Figure(report.nbytes_bf16, "B"), f"{report.ratio:.2f}× what it takes as written"))
    if report and report.inputs:
        files = f"{len(report.inputs)} file{'s' * (len(report.inputs) > 1)}"
        cards.append(Card("read", Figure(report.nbytes_in, "B"), files))
    parts: list[Part] = [Cards(cards[:MOST_CARDS])]
    if run.run.command:
        parts.insert(0, Command(run.run.command))
    lines = [*attention.of_run(run), *_trained(run, read), *read.damaged]
    return [Gist(gist.of_run(run, len(lines))), *([Attention(lines)] if lines else []), *parts]


def _trained(run: Told, read: training.Read) -> list[str]:
    """How far a training is that is not done."""
    steps = [int(v) for key, v in run.config.items() if key.endswith(STEPS) and v.isdecimal()]
    lines = read.curves.get(("loss", training.UPDATE), {})
    points = [p for name, t in lines.items() if name.startswith(training.EACH) for p in t.points]
    if run.run.state == "complete" or len(steps) != 1 or not points:
        return []
    return [f"Its training has done {max(p[0] for p in points):,.0f} of {steps[0]:,} updates."]


def when(started: float | None) -> str:
    return f"began {datetime.fromtimestamp(started, UTC):%Y-%m-%d %H:%M} UTC" if started else ""


def _stages(run: Told, report: Report) -> list[Part]:
    found: list[Part] = [graph.stages(run, report)] if report.stages else []
    if (chart := graph.planned(report)) is not None:
        found.append(chart)
    rows = [(name, said) for name, said in report.chosen.items()]
    rows += [(name, f"from an earlier run: {where}") for name, where in report.found.items()]
    return [*found, *([Table("Chosen and found", ("stage", ""), rows)] if rows else [])]


def results(report: Report) -> list[Part]:
    """Tables that stages brought along; of a result without any, its fields."""
    found: list[Part] = []
    for stage, result in report.results.items():
        given = result.get("tables", ()) if isinstance(result, Mapping) else ()
        for one in given:
            if isinstance(one, Mapping) and one.get("title") != TEXT_TABLE:
                rows = [[_plain(cell(v)) for v in row] for row in one["rows"]]
                if not one["columns"]:  # lines below the table before it
                    found.append(
                        Drawn(el("pre", "\n".join(" ".join(map(shown, row)) for row in rows), class_="command"))
                    )
                    continue
                found.append(Table(f"{one['title']} ({stage})", [str(c) for c in one["columns"]], rows))
        if not given:
            items = result.items() if isinstance(result, Mapping) else [("", result)]
            found.append(Table(f"Result of {stage}", ("", ""), [(str(k), short(str(v), 300)) for k, v in items]))
    return found


def _plain(value: Any) -> Any:
    return value.replace(GLUE, " ") if isinstance(value, str) else value


def samples(report: Report) -> list[Part]:
    found: list[Part] = []
    for stage, result in report.results.items():
        if isinstance(result, Mapping) and isinstance(result.get("prompts"), list):
            pairs = list(zip(result["prompts"], result.get("texts", ()), strict=False))
            found += [
                Text(f"{stage} {n}" if len(pairs) > 1 else stage, [("prompt", str(prompt)), ("text", str(text))])
                for n, (prompt, text) in enumerate(pairs, 1)
            ]
    return found


def _training(found: training.Read) -> list[Part]:
    drawn = training.curves(found.curves)
    rest = [Side(drawn[1:])] if drawn[1:] else []
    return [*drawn[:1], *rest, *([Folded("Texts on the way", found.texts)] if found.texts else [])]


def _machine(found: training.Read) -> list[Part]:
    """What `monitor=` saw."""
    drawn = training.taken(found.machine)
    return [Side(drawn)] if drawn else []


def settings(run: Told) -> list[Part]:
    """What was overridden, and all of it."""
    if not run.config:
        return []
    by = run.overridden
    rows = [
        (el("mark", key) if key in by else key, short(value, 300), by.get(key)) for key, value in run.config.items()
    ]
    words = []
    for word in dict.fromkeys(map(hide, run.run.command)):
        name, _, typed = word.lstrip("+~").partition("=")
        value = run.config.get(name, run.config.get(f"stages.{name}", typed))
        keys = [key for key, said in by.items() if said == word and key not in (name, f"stages.{name}")]
        words.append((el("mark", name), short(value, 300) or None, some(keys, most=MOST_KEYS) or None, word))
    heads = ("setting", "value", "overridden by")
    shown: list[Part] = [Note("Nothing was overridden.")]
    if words:
        shown = [Table("Overridden", ("setting", "value", "and with it", "as typed"), words)]
    return [*shown, Folded(f"All {len(rows)} settings", [Table("Settings", heads, rows)], "as they were resolved")]


def environment(report: Report) -> list[Part]:
    found: list[Part] = [Table("Versions", ("", "version"), list(report.versions.items()))]
    facts = {
        stage: {**result["facts"]}
        for stage, result in report.results.items()
        if isinstance(result, Mapping) and isinstance(result.get("facts"), Mapping)
    }
    rows = [
        (stage, *_fact(name, v)) for stage, given in facts.items() for name, v in given.items() if v not in ({}, "")
    ]
    found += [Table("Devices and dtypes", ("stage", "", ""), rows)] if rows else []
    ran = [(op, backend) for op, backend in report.backends]
    found += [Table("Kernels that ran", ("op", "backend"), ran)] if ran else []
    declined = [(r["op"], r["backend"], Figure(r["times"], "×", ",d"), r["reason"], r["ran"]) for r in report.declined]
    heads = ("op", "backend", "times", "because", "ran instead")
    found += [_capped("Kernels that declined", heads, declined)] if declined else []
    packed = [(name, Figure(values, form=",d")) for name, values in report.encodings.items()]
    found += [Table("Packed as", ("encoding", "values"), packed)] if packed else []
    ignored = [(r["stage"], r["tensor"], r["reason"]) for r in report.ignored]
    found += [_capped("Left out", ("by", "tensor", "because"), ignored)] if ignored else []
    return found


def _fact(name: str, value: Any) -> tuple[str, Any]:
    """What an engine says of itself, in the unit that its name ends in."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for end, unit in (("_nbytes", "B"), ("_s", "s")):
            if name.endswith(end):
                return name, Figure(value, unit, ".3g")
    return name, short(str(value), 200)


def files(run: Told, report: Report | None) -> list[Part]:
    """What lies there now, and what was read and written, with digests."""
    left = artifacts.table(run)
    found: list[Part] = [left] if left else []
    if report is None:
        return found
    for title, rows in (("Files read", report.inputs), ("Files written", report.outputs)):
        if rows:
            cells = [
                (_within(str(r["path"]), report.run), Figure(r["nbytes"], "B"), _digest(r.get("xxh3_128")))
                for r in rows
            ]
            about = f"{len(rows)} files, {show_bytes(sum(r['nbytes'] for r in rows))}"
            found.append(
                Folded(title, [_capped(title, ("file", "size", "xxh3-128"), cells)], about, open=len(rows) <= 12)
            )
    return found


def _within(path: str, folder: str) -> str:
    """A path from the run's folder, of what is in it."""
    return path.removeprefix(f"{folder}/")


def _digest(value: Any) -> Any:
    return el("code", value) if value else "not digested"


def _capped(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    rest = len(rows) - MOST_ROWS
    return Table(title, heads, rows[:MOST_ROWS], f"{rest:,} more are in manifest.json." if rest > 0 else "")
