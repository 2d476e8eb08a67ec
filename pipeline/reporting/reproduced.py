"""Two runs of one thing beside each other: what of their outputs and metrics is the same, bit for bit, and what is not.

Nothing is read here but what the runs wrote down; `pipeline.running.reproduce` has them, and looks into their files.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.errors import some
from pipeline.figures import Figure
from pipeline.records.system import KIND
from pipeline.reporting.card import Card
from pipeline.reporting.manifest import Report
from pipeline.reporting.tables import MOST_SHOWN
from pipeline.tables import table
from pipeline.tensors.spec import group_of
from pipeline.terminal import line
from pipeline.tracker import Point

DIFFER = 7  # exit code
# How long something took or how fast it was, where things lie, and what is shown of all of it.
TIMES = re.compile(r"(.*_)?(s|seconds|per_s|mfu)|timings|mfu")
PLACES, SHOWN = ("read_from",), ("tables", "summary", "form", "better")
RATES = re.compile(r"(.*/)?(m?s|min|h)|% of .*")  # units
ABSENT, AFTER = "nothing", " after update "


@dataclass(frozen=True)
class Finding:
    """One thing that is not the same.

    Attributes:
        node: stage whose it is.
        kind: `file`, `tensor`, `metric`, `error` (of a tensor that was quantized), `update` (of a training).
        name: of the file, tensor or metric.
        then, now: what it was and is, for people.
        off: now less then, of numbers.
    """

    node: str
    kind: str
    name: str
    then: str
    now: str
    off: float | None = None


@dataclass(frozen=True)
class Reproduction(Card):
    """What running it again found.

    Attributes:
        of, out: folders of the run and of the new one.
        findings: what is not the same, in the order of the graph.
        changed: files that are no longer what the run wrote, as its own record has it, and their tensors.
        counts: what was compared: kind → how many.
        made_of: stage and what is new in what it is made of.
        environment: what, then, now; of what is in no key.
        left_out: names of what was not compared, because it is how long something took.
        notes: what else is to be known.
        order: of the stages.
    """

    of: Path
    out: Path
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    changed: tuple[Finding, ...] = ()
    made_of: tuple[tuple[str, str], ...] = ()
    environment: tuple[tuple[str, str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    order: tuple[str, ...] = field(default=(), repr=False)

    @property
    def same(self) -> bool:
        return not self.findings and not self.changed

    @property
    def exit_code(self) -> int:
        return 0 if self.same else DIFFER

    @property
    def first(self) -> str:
        """The first stage, as the graph has them, that is made of something else or gave something else; empty when all
        is the same as was recorded."""
        if not self.findings:
            return ""
        strange = {f.node for f in self.findings} | {node for node, _ in self.made_of}
        return next((name for name in self.order if name in strange), self.findings[0].node)

    @property
    def verdict(self) -> str:
        if self.same:
            return f"the same, bit for bit: {_counted(self.counts)}"
        if not self.findings:
            since = _counted(_kinds(self.changed))
            return f"it gives what its record says, bit for bit; what changed on disk since then: {since}"
        because = [text for node, text in self.made_of if node == self.first]
        why = f" ({some(because, most=3)})" if because else ""
        if not self.made_of:
            why = ", and it is made of the same: it gives other bits each time, or because of what is around it"
        return f"not the same: {_counted(_kinds(self.findings))}; the first stage that differs is {self.first}{why}"

    @property
    def shown(self) -> list[Any]:
        found: list[Any] = [*_findings("Not the same", self.findings), *_findings("Changed on disk", self.changed)]
        if self.made_of:
            stages: dict[str, list[str]] = {}
            for node, text in self.made_of:
                stages.setdefault(text, []).append(node)
            rows = [(text, some(nodes)) for text, nodes in stages.items()]
            found.append(_lines("Made of something else", ("new", "in"), rows))
        if self.environment:
            found.append(_lines("Around it", ("", "then", "now"), self.environment))
        if self.left_out:
            found.append(f"not compared, as times and speeds: {some(self.left_out, most=8)}")
        return [*found, *self.notes, self.verdict, self.out.parent]


def _kinds(findings: Sequence[Finding]) -> Mapping[str, int]:
    return Counter(finding.kind for finding in findings)


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {kind}{'s' * (n != 1)}" for kind, n in counts.items() if n)


def _findings(title: str, findings: Sequence[Finding]) -> list[Any]:
    """A table of those of the same kind and of the tensor of every layer as one line, in which the first one stands."""
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for one in findings:
        group = group_of(one.name.partition(AFTER)[0])
        alike.setdefault((one.node, one.kind, group), []).append(one)
    rows = []
    for (node, kind, name), those in [*alike.items()][:MOST_SHOWN]:
        first = those[0]
        off = f"{first.off:+.3g}" if first.off is not None else ""
        times = f"×{len(those)}" if len(those) > 1 else ""
        name = first.name if AFTER in first.name else name
        rows.append((f"{node} {kind}".strip(), line(name), times, _brief(first.then), _brief(first.now), off))
    columns = ("what", "name", "", "then", "now", "off")
    more = len(alike) - MOST_SHOWN
    return [
        *([table(title, columns, rows, right=(2, 3, 4, 5), drop=("", "then"))] if rows else []),
        *([f"and {more:,} more kinds, in reproduced.json"] if more > 0 else []),
    ]


def _brief(text: str) -> str:
    """A digest or a number by what tells it from another."""
    if re.fullmatch(r"[0-9a-f]{32}", text):
        return f"{text[:6]}…"
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return line(text)


def _lines(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    more = [(f"and {len(rows) - MOST_SHOWN:,} more",)] if len(rows) > MOST_SHOWN else []
    return table(title, columns, [*(tuple(map(line, row)) for row in rows[:MOST_SHOWN]), *more])


def metrics_of(report: Report, left_out: set[str]) -> dict[tuple[str, str], Any]:
    """(stage, dotted name) → number or text, of all that stages found.

    Args:
        left_out: takes the names of times and speeds.
    """
    found: dict[tuple[str, str], Any] = {}
    for stage, result in report.results.items():
        for name, value in _leaves(result, left_out):
            found[stage, name] = value
    for name in ("nbytes_bf16", "nbytes_in", "nbytes_out", "exit_code"):
        found["", name] = getattr(report, name)
    for row in report.ignored:
        found[row["stage"], f"left out: {row['tensor']}"] = row["reason"]
    return found


def _leaves(value: Any, left_out: set[str], at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if RATES.fullmatch(str(value.get("unit", ""))) and "value" in value:
            left_out.add(at.rpartition(".")[2])
            return
        for name, inner in value.items():
            if TIMES.fullmatch(str(name)):
                left_out.add(str(name))
            elif name not in (*PLACES, *SHOWN):
                yield from _leaves(inner, left_out, f"{at}.{name}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(v, Mapping | list) for v in value):
        for i, inner in enumerate(value):
            yield from _leaves(inner, left_out, f"{at}[{i}]")
    elif not (isinstance(value, str) and value.startswith("/")):
        yield at.removesuffix(".value"), value


def differing(then: Mapping[tuple[str, str], Any], now: Mapping[tuple[str, str], Any], kind: str) -> Iterator[Finding]:
    """What of two mappings, (stage, name) → value, is not equal; NaN is equal to itself."""
    for stage, name in dict.fromkeys([*then, *now]):
        a, b = then.get((stage, name), ABSENT), now.get((stage, name), ABSENT)
        if repr(a) != repr(b):
            off = float(b) - float(a) if _is_number(a) and _is_number(b) else None
            yield Finding(stage, kind, name, _shown(a), _shown(b), off)


def errors_of(report: Report, stage: str) -> dict[tuple[str, str], Any]:
    """(`stage`, tensor) → sum of the squares of what quantizing it changed."""
    return {(stage, str(row["name"])): row["sq_error"] for row in report.tensors}


def updates_of(points: Sequence[Point], stage: str, left_out: set[str]) -> dict[tuple[str, str], Any]:
    """(`stage`, `train/loss` of an update) → value."""
    found: dict[tuple[str, str], Any] = {}
    for point in points:
        kind, _, rest = point.name.partition("/")
        name, _, member = rest.partition("/")
        if kind == KIND:
            left_out.add("what the run took of the machine")
        elif TIMES.fullmatch(name) or name.endswith("_per_s"):
            left_out.add(name)
        else:
            found[stage, f"{kind}/{name}{f'/{member}' * bool(member)}{AFTER}{point.step}"] = point.value
    return found


def surroundings(then: Report, now: Report) -> Iterator[tuple[str, str, str]]:
    """What is around the runs and not the same: versions, machine, variables, kernels that ran."""
    for name in dict.fromkeys([*then.versions, *now.versions]):
        yield name, then.versions.get(name, ABSENT), now.versions.get(name, ABSENT)
    before, after = dict(then.environment), dict(now.environment)
    a, b = before.pop("variables", {}), after.pop("variables", {})
    for name in dict.fromkeys([*before, *after] if before else ()):
        yield name, str(before.get(name, ABSENT)), str(after.get(name, ABSENT))
    for name in sorted({*a, *b} if then.environment else ()):
        yield f"${name}", a.get(name, "not set"), b.get(name, "not set")
    ran = {op: ", ".join(sorted(k for o, k in then.backends if o == op)) or ABSENT for op, _ in then.backends}
    runs = {op: ", ".join(sorted(k for o, k in now.backends if o == op)) or ABSENT for op, _ in now.backends}
    for op in dict.fromkeys([*ran, *runs]):
        yield f"kernel {op}", ran.get(op, "not run"), runs.get(op, "not run")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, Figure):
        return str(value)
    return repr(value) if _is_number(value) else str(value)
