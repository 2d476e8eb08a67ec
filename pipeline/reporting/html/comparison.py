"""The page of a comparison: in what runs differ, then each metric against the baseline, what of it is noise and what is
worse, what was lost by groups of tensors, and who is on Pareto's front. Its numbers are those of comparison.json."""

from pipeline.figures import Figure
from pipeline.records import points
from pipeline.redact import hide
from pipeline.reporting.compare.compared import Compared, packed_as
from pipeline.reporting.compare.differences import KINDS
from pipeline.reporting.compare.pareto import Pareto
from pipeline.reporting.compare.tolerance import Limits
from pipeline.reporting.html import training
from pipeline.reporting.html.changes import of_metrics
from pipeline.reporting.html.differing import differing
from pipeline.reporting.html.fronts import of_front, of_tradeoffs
from pipeline.reporting.html.group_errors import of_groups
from pipeline.reporting.html.markup import el
from pipeline.reporting.html.page import MOST_NBYTES, rendered
from pipeline.reporting.html.parts import Card, Cards, Folded, Note, Part, Section, Table
from pipeline.reporting.html.told import Told, told

CLOSELY = (400, 120, 40, 12, 4)  # rows that a page has, the first that fits
FIRST_DIFFERENCES, MOST_DIFFERENCES = 12, 200  # that are not folded, and all
MOST_CURVES = 60  # rows
POINTS = 120  # of a curve
CURVES_NBYTES = 32 << 20  # of records of metrics that are read for curves: some 300,000 points


def html(found: Compared, front: Pareto | None, limits: Limits) -> str:
    """The page as text.

    Args:
        front: over the metrics that somebody named; None: of the trade-offs there are.
        limits: what was asked of --fail-if, each with what breaks it.
    """
    text = ""
    for most in CLOSELY:
        notes = []
        if most < len(found.groups):
            said = f"The first {most:,} of {len(found.groups):,} rows are on this page; comparison.json has all."
            notes = [Note(said)]
        heading, count = f"Comparison with {found.names[0]}", sum(len(row.runs) for row in found.groups)
        text = rendered(heading, _sections(found, front, limits, most), notes, count)
        if len(text.encode("utf-8", "backslashreplace")) <= MOST_NBYTES:
            break
    return text


def _sections(found: Compared, front: Pareto | None, limits: Limits, most: int) -> list[Section]:
    made: list[tuple[str, str, list[Part]]] = [
        ("summary", "Summary", _summary(found, limits, most)),
        ("differences", "What differs", _differences(found, most)),
        ("metrics", "Metrics", of_metrics(found, most)),
        ("errors", "Quantization error", of_groups(found, most)),
        ("pareto", "Pareto front", of_front(front) if front else of_tradeoffs(found)),
        ("training", "Training", _training(found)),
    ]
    return [Section(id, title, parts) for id, title, parts in made if parts]


def _summary(found: Compared, limits: Limits, most: int) -> list[Part]:
    runs, rows = sum(len(row.runs) for row in found.groups), len(found.groups)
    better = sum(made.verdict == "better" for of in found.changes for made in of.values())
    cards = [
        Card("runs", Figure(runs, form=",d"), f"in {rows:,} rows, repeats together" if runs > rows else ""),
        Card("worse", Figure(len(found.regressions), form=",d"), "metrics, over all rows"),
        Card("better", Figure(better, form=",d"), "metrics, over all rows"),
    ]
    if limits:
        broken = sum(map(bool, limits.values()))
        cards.append(Card("limits broken", Figure(broken, form=",d"), f"of {len(limits)} that --fail-if says"))
    problems = [hide(why) for row in found.groups for one in row.runs for why in one.run.problems]
    parts = [Cards(cards), *_regressions(found, most), *_limits(limits), _rows(found, most)]
    return [*parts, *(Note(why, "problem") for why in problems[:most])]


def _regressions(found: Compared, most: int) -> list[Part]:
    """A note for each row that is worse in something."""
    base, by = found.names[0], dict[str, list[str]]()
    for row, metric in found.regressions:
        by.setdefault(row, []).append(metric)
    if not by:
        return [Note(f"No metric is worse than that of {base}.")]
    said = [f"✗ {row} is worse than {base} in {', '.join(metrics)}." for row, metrics in by.items()]
    return [Note(text, "problem") for text in said[:most]]


def _limits(limits: Limits) -> list[Part]:
    lines = [
        (given, el("span", "✗ broken", class_="worse") if why else "✓ holds", "; ".join(why) or None)
        for given, why in limits.items()
    ]
    return [Table("Limits, as --fail-if has them", ("limit", "", "because"), lines)] if lines else []


def _rows(found: Compared, most: int) -> Table:
    lines = []
    for i, row in enumerate(found.groups[:most]):
        about = "; ".join(filter(None, ["" if i else "the others are held against it", row.about]))
        which = ", ".join(hide(one.run.name) for one in row.runs)
        lines.append((row.name, packed_as(row) or None, Figure(len(row.runs), form=",d"), which, about or None))
    return Table("Rows", ("row", "as", "runs", "which", ""), lines)


def _differences(found: Compared, most: int) -> list[Part]:
    rows, names = found.differences.rows, found.names[:most]
    equal = [f"{n:,} {KINDS[kind]}" for kind, n in found.differences.equal.items() if n]
    said = f"Equal: {', '.join(equal)}." if equal else ""
    if not rows:
        return [Note(f"They differ in nothing that is on record. {said}".strip())]
    rest = len(rows) - MOST_DIFFERENCES
    more = f"{rest:,} more things differ, which comparison.json has. " if rest > 0 else ""
    note = f"{more}Marked: what is not as in {names[0]}. {said}".strip()
    parts: list[Part] = [differing(names, rows[:FIRST_DIFFERENCES], note, marked=True)]
    if others := rows[FIRST_DIFFERENCES:MOST_DIFFERENCES]:
        parts.append(Folded(f"{len(others)} more that differ", [differing(names, others, marked=True)]))
    return parts


def _training(found: Compared) -> list[Part]:
    """Losses over updates, of the first runs whose records are read in seconds."""
    runs, nbytes, left = list[Told](), 0, 0
    for row in found.groups[:MOST_CURVES]:
        for one in row.runs:
            size = sum(file.stat().st_size for file in points.files(one.run.folder))
            if nbytes + size > CURVES_NBYTES:
                left += 1
                continue
            nbytes += size
            runs.append(told(one.run, row.name if len(row.runs) == 1 else f"{row.name} ({one.run.name})"))
    chart = training.compared(runs, POINTS)
    note = Note(
        f"Without curves, for their long records: {left:,} of the runs; the page of each, by `report`, has them."
    )
    return [*([note] if left else []), *([chart] if chart else [])]
