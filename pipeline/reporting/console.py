"""What people see: progress, the plan, reports, errors. Tables, and text that cannot steer a terminal."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError, StorageError, shown, some
from pipeline.events import Events
from pipeline.figures import Cell, Figure
from pipeline.redact import hide
from pipeline.terminal import line, safe, say, table
from pipeline.units import show_bytes, show_seconds

FEW = 2  # tensors with the same thing wrong, that have a line each


def out(*renderables: Any) -> None:
    """Print to stdout; as wide as the content needs when it is not a terminal."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    for item in renderables:
        if isinstance(item, str):
            print(safe(item))
        else:
            console.print(item)
    sys.stdout.flush()


def stream(text: str) -> None:
    """Text as it comes, beside the results that go to stdout."""
    sys.stderr.write(safe(text))
    sys.stderr.flush()


def error(why: Exception) -> None:
    """An error as people should read it: no traceback, one line a problem."""
    if isinstance(why, PlanError) and len(why.problems) > 1:
        lines = _grouped(why)
        kinds = f" of {'one kind' if len(lines) == 1 else f'{len(lines)} kinds'}" * (len(lines) < len(why.problems))
        say(f"error: {len(why.problems)} problems{kinds}")
        for line in shown(lines):
            say(f"  - {line}")
    else:
        say(f"error: {why}")


def _grouped(why: PlanError) -> list[str]:
    """Problems a line each; what is wrong with the same tensor of many layers in the same way is one line, and what is
    wrong with more than a few tensors too."""
    from pipeline.tensors.spec import group_of

    kinds: dict[str, dict[str, list[str]]] = {}  # message → group of names → lines
    for problem in why.problems:
        kinds.setdefault(problem.message, {}).setdefault(group_of(problem.where), []).append(str(problem))
    found = []
    for message, groups in kinds.items():
        if len(groups) > FEW:
            found.append(f"{some(list(groups))} (×{sum(map(len, groups.values()))}): {message}")
            continue
        for where, lines in groups.items():
            found.append(lines[0] if len(lines) == 1 else f"{where} (×{len(lines)}): {message}")
    return found


def job(number: int, jobs: int, overrides: Sequence[str]) -> None:
    say(f"\n[{number}/{jobs}] {' '.join(overrides)}")


@contextmanager
def progress(enabled: bool) -> Iterator[Events]:
    """Events that draw a bar (bytes, rate, time left), or say a line now and then when stderr is no terminal."""
    if not enabled:
        yield Events(say=say)
        return
    if not sys.stderr.isatty():
        yield _Lines().events
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.text import Text

    columns = (
        BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        lock = threading.Lock()

        def total(nbytes: int, chunks: int) -> None:
            bar.update(task, total=nbytes)

        def chunk(label: str, nbytes: int, reused: bool) -> None:
            with lock:
                bar.update(task, advance=nbytes, description=line(label))

        def text(part: str) -> None:
            bar.stop()  # a bar that is drawn again and again would tear the text
            stream(part)

        def live(said: str) -> None:
            with lock:
                bar.start()  # text may have stopped it
                bar.update(task, description=line(said))

        yield Events(lambda said: bar.console.print(Text(safe(said))), total, chunk, text, live)


class _Lines:
    """Progress for logs: a line at most every few seconds."""

    EVERY_S = 5.0

    def __init__(self) -> None:
        self._total = self._done = self._reused = 0
        self._start = self._last = time.monotonic()
        self._lock = threading.Lock()
        self.events = Events(say, self._set_total, self._chunk, stream, self._live)

    def _live(self, said: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._last >= self.EVERY_S:
                self._last = now
                say(line(said))

    def _set_total(self, nbytes: int, chunks: int) -> None:
        self._total = nbytes

    def _chunk(self, label: str, nbytes: int, reused: bool) -> None:
        with self._lock:
            self._done += nbytes
            self._reused += nbytes if reused else 0
            now = time.monotonic()
            if now - self._last < self.EVERY_S:
                return
            self._last = now
            rate = (self._done - self._reused) / (now - self._start)
            left = f", {(self._total - self._done) / rate:.0f} s left" if rate else ""
            say(f"{show_bytes(self._done)} of {show_bytes(self._total)}, {show_bytes(rate)}/s{left} ({line(label)})")


def comparison(rows: Sequence[tuple[str, Any]], folder: Path) -> None:
    """The jobs of a sweep side by side, printed and kept as sweep.csv: numbers, units in the header."""
    import csv

    lines = [{"job": label, **_figures(result)} for label, result in rows]
    errors = [c for c in ERRORS if any(c in line for line in lines)]  # nothing may be quantized
    columns = list(
        dict.fromkeys(["job", *SIZES, *errors, *(c for line in lines for c in line if c not in LAST), *LAST])
    )
    units = {c: next((v.unit for line in lines if isinstance(v := line.get(c), Figure)), None) for c in columns}
    numeric = [i for i, c in enumerate(columns) if units[c] is not None or c in (*SIZES, *ERRORS, AFTER)]
    shown = [[line.get(c, "–") for c in columns] for line in lines]
    drawn = table("Sweep", columns, shown, right=numeric, overflow="fold")
    try:
        with (folder / "sweep.csv").open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
            writer = csv.writer(file)
            writer.writerow([f"{c} [{units[c]}]" if units[c] else c for c in columns])
            for line in lines:
                cells = (line.get(c, "") for c in columns)
                writer.writerow([v.value if isinstance(v, Figure) else hide(v) for v in cells])
        picture = [*_picture(rows, folder), *_losses(rows, folder)]
    except OSError as why:
        out(drawn)
        raise StorageError(f"{folder}: the comparison cannot be kept: {why.strerror}") from None
    out(drawn, *_over_seeds(rows), *picture, f"{folder}")


AFTER = "done after"  # since the sweep began: jobs of one graph take turns, and share what they need
SIZES, ERRORS, LAST = ("size", "smaller"), ("max abs", "RMSE", "SQNR"), (AFTER, "result")


def _figures(result: Any) -> dict[str, Cell]:
    """What is compared of a job: its report, or the error that it ended with."""
    from pipeline.reporting.manifest import Report

    if not isinstance(result, Report):
        return {"result": f"failed: {str(result).splitlines()[0]}"}
    found: dict[str, Cell] = {"size": Figure(result.nbytes_out, "B"), "smaller": Figure(result.ratio, "×", ".2f")}
    if (e := result.error).count:
        errors = Figure(e.max_abs, form=".3g"), Figure(e.rmse, form=".3g"), Figure(e.sqnr_db, "dB", ".2f")
        found |= zip(ERRORS, errors, strict=True)
    found |= _found(result)
    return found | {
        AFTER: Figure(result.seconds, "s", ".1f"),
        "result": "complete before" if result.reused else "done",
    }


def _found(report: Any) -> dict[str, Cell]:
    """What the results of a job's stages want to see compared."""
    from pipeline.reporting.manifest import figures_of

    return {name: value for result in report.results.values() for name, value in figures_of(result).items()}


def _over_seeds(rows: Sequence[tuple[str, Any]]) -> list[Any]:
    """Jobs that differ in their seed alone, together."""
    from pipeline.reporting.manifest import Report
    from pipeline.reporting.trainings import over_seeds

    done = [(name, _found(report)) for name, report in rows if isinstance(report, Report)]
    columns, lines = over_seeds([name for name, _ in done], [found for _, found in done])
    return [table("Over seeds", columns, lines, right=range(1, len(columns)), overflow="fold")] if lines else []


def _losses(rows: Sequence[tuple[str, Any]], folder: Path) -> list[str]:
    """losses.png: how the jobs that trained something went."""
    from pipeline.reporting.manifest import Report
    from pipeline.reporting.trainings import curve, picture

    found = [(name, *curve(Path(report.run))) for name, report in rows if isinstance(report, Report)]
    drawn = [(name, points) for name, _, points in found if points]
    labels = {label for _, label, points in found if points}
    if len(drawn) < 2 or len(labels) > 1:
        return []
    picture(folder / "losses.png", [name for name, _ in drawn], [points for _, points in drawn], labels.pop())
    return [str(folder / "losses.png")]


def _picture(rows: Sequence[tuple[str, Any]], folder: Path) -> list[str]:
    """sweep.png: perplexity over size, where jobs were evaluated."""
    from pipeline.reporting.manifest import Report

    points = [
        (label, report.bits_per_weight, perplexity.value)
        for label, report in rows
        if isinstance(report, Report) and isinstance(perplexity := _found(report).get("perplexity"), Figure)
    ]
    if len(points) < 2:
        return []
    from pipeline.reporting.plots import scatter

    scatter(folder / "sweep.png", "What bits buy", "bits a weight", "perplexity", points)
    return [str(folder / "sweep.png")]


def plan_tables(plan: Any) -> list[Any]:
    """The plan as tables: stages and edges, tensors by group, files, totals."""
    from pipeline.planning.wiring import store_of
    from pipeline.reporting.manifest import chosen, ignored_table, left_out
    from pipeline.reporting.mesh import mesh_tables, placements, show_mesh
    from pipeline.stage import Checkpoint
    from pipeline.tensors.spec import group_of

    over = placements(plan)
    stages: list[Sequence[str]] = []
    for node in plan.nodes.values():
        takes = ", ".join(f"{p} ← {s}" for p, s in node.inputs.items()) or "–"
        gives = getattr(node.gives, "__name__", str(node.gives))
        origin = node.result.origin if isinstance(node.result, Checkpoint) and not node.inputs else ""
        what = origin or ("in one task" if node.computes else "lazy view")
        if node.name in over:
            what = show_mesh(over[node.name].mesh)
        if node.takes is not None and node.takes.device_nbytes:
            cache = f", {show_bytes(node.takes.cache_nbytes)} of it KV cache" if node.takes.cache_nbytes else ""
            reads = f"; {node.takes.reads}" if node.takes.reads else ""
            where = "the device" if node.takes.devices == 1 else f"each of {node.takes.devices} devices"
            what = f"in one task, {show_bytes(node.takes.device_nbytes)} on {where}{cache}{reads}"
        if node.work is not None:
            n = len(node.work.chunks)
            what = f"{n} chunk{'s' * (n != 1)}"
        stages.append((node.name, takes, gives if node.work is None else f"{gives} (work)", what))
    found: list[Any] = [table("Stages", ("stage", "takes", "gives", "what"), stages)]
    given = [n for n in plan.nodes.values() if isinstance(n.result, Checkpoint)]
    holders = given + [n for n in plan.nodes.values() if n.work is not None and store_of(n) is not None]
    if holders:
        first, last = (store.specs for n in (holders[0], holders[-1]) if (store := store_of(n)) is not None)
        groups: dict[Any, list[Any]] = {}
        for name, spec in last.items():
            before = first.get(name)
            key = (group_of(name), spec.shape, before.encoding if before else "–", spec.encoding)
            groups.setdefault(key, []).append((before, spec))
        rows: list[Sequence[str]] = []
        for (group, shape, source, target), specs in groups.items():
            nbytes_in = sum(b.nbytes for b, _ in specs if b)
            nbytes_out = sum(s.nbytes for _, s in specs)
            values = sum(s.size for _, s in specs)
            rows.append((
                line(group), f"×{len(specs)}", "×".join(map(str, shape)) or "scalar", source,
                target if target != source else "same", f"{8 * nbytes_out / max(1, values):.2f}",
                show_bytes(nbytes_in), show_bytes(nbytes_out),
            ))  # fmt: skip
        columns = ("tensors", "", "shape", "from", "to", "bits", "in", "out")
        found.append(table("Tensors", columns, rows, right=(1, 5, 6, 7)))
    found += mesh_tables(plan)
    found += ignored_table(left_out(plan))
    for name, work in plan.works.items():
        if not work.outputs:
            continue
        folder = os.path.commonpath([f.path.parent for f in work.outputs])
        files = folded((str(f.path.relative_to(folder)), f.nbytes) for f in work.outputs)
        rows = [(line(file), f"{nbytes:,}") for file, nbytes in files]
        found += [table(f"Files of {name}", ("file", "bytes"), rows, right=(1,)), folder]
    found += [f"{name}: {text}" for name, text in chosen(plan).items()]
    chunks = plan.chunks
    read = sum(f.nbytes for f in plan.inputs)
    beside = f" and keeps at most {show_bytes(plan.kept_nbytes)} beside it" if plan.kept_nbytes else ""
    found.append(
        f"reads {show_bytes(read)} in {len(plan.inputs)} files, writes {show_bytes(plan.written_nbytes)}{beside}, "
        f"{len(chunks)} chunk{'s' * (len(chunks) != 1)}{_bits(holders)}"
    )
    if plan.memory is not None:
        found += memory_lines(plan.memory)
    if plan.time is not None and plan.time.parts:
        found.append(time_line(plan.time))
    return found


def folded(files: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Names and sizes of files as a table has them: shards of one size are a row, which says how many there are."""
    alike: dict[tuple[str, int], list[str]] = {}
    for file, nbytes in files:
        alike.setdefault((re.sub(r"\d+(?=-of-\d)", "*", file), nbytes), []).append(file)
    return [
        (f"{group} ×{len(names)}" if len(names) > 1 else names[0], nbytes) for (group, nbytes), names in alike.items()
    ]


def time_line(time: Any, *, stages: bool = True) -> str:
    """How long it will take, with `stages` of each, or which stages nobody knows of."""
    each = {p.stage: time.of(p.stage) for p in time.parts} if stages else {}
    known = ", ".join(f"{name} {show_seconds(s)}" for name, s in each.items() if s is not None)
    if time.seconds is not None:
        return f"time about {show_seconds(time.seconds)}{f': {known}' if known else ''}"
    return f"time: no rate measured yet of {', '.join(time.unknown)}{f'; {known}' if known else ''}"


def kernels_table(plan: Any) -> list[Any]:
    """Which backend will run every op, on every tensor and layer."""
    from pipeline.planning.kernels import rows

    found = rows(plan)
    columns = ("op", "of", "for", "in", "backend", "declined")
    used = [i for i in range(len(columns)) if any(row[i] for row in found)]
    drawn = table("Kernels", [columns[i] for i in used], [[row[i] for i in used] for row in found], overflow="fold")
    return [drawn] if found else []


def memory_lines(m: Any) -> list[str]:
    """What a plan takes, and what it may."""
    most = m.budget.total if m.model else m.budget.conversion
    return [
        f"peak memory {show_bytes(m.peak)}{'' if most is None else f' of {show_bytes(most)}'}: "
        f"{show_bytes(m.base)} for the processes, {m.tasks} × {show_bytes(m.task)} for tasks"
        f"{f', {show_bytes(m.model)} to run models' if m.model else ''}",
        f"dask.memory {m.budget.said}",
    ]


def why_tables(reasons: Sequence[Any]) -> list[Any]:
    """Each stage: done already and where, or to do, and what is new against the nearest earlier one."""
    rows = []
    for r in reasons:
        if r.where:
            said = r.where
        elif not r.against:
            said = "no earlier run has one"
        else:
            said = "\n".join(shown([str(d) for d in r.new])) or "the same; not kept"
            said = f"{said}\nagainst {r.against}"
        if r.open:
            said += f"\nopen until the run: what {' and '.join(r.open)} comes to on this machine"
        rows.append((line(r.node), r.state, safe(hide(said))))
    return [table("Why", ("stage", "", "where, or what is new"), rows, overflow="fold")]


def gc_tables(found: Sequence[Any], *, deleted: bool) -> list[Any]:
    """Results that no run refers to, and what they take."""
    if not found:
        return ["every result belongs to a run"]
    rows = [(line(str(f.path)), line(f.what), show_bytes(f.nbytes)) for f in found]
    total = show_bytes(sum(f.nbytes for f in found))
    said = f"{total} removed" if deleted else f"{total} in all; gc --delete removes them"
    return [table("No run refers to", ("folder", "of", "bytes"), rows, right=[2], overflow="fold"), said]


def tune_table(found: Sequence[tuple[str, int, int, float]]) -> list[Any]:
    """How work is divided on this machine from now on."""
    rows = [(name, f"{usual:,}", f"{now:,}", f"{faster:.2f}×") for name, usual, now, faster in found]
    return [table("Tuned", ("setting", "by default", "here", "as fast"), rows, right=(1, 2, 3))]


def _bits(holders: Sequence[Any]) -> str:
    """Effective bits per weight of what comes out of the last of these nodes."""
    from pipeline.planning.wiring import store_of
    from pipeline.reporting.manifest import nbytes_of

    store = store_of(holders[-1]) if holders else None
    values = sum(s.size for s in store.specs.values()) if store is not None else 0
    return f", {8 * nbytes_of(holders[-1]) / values:.3f} bits a weight" if values else ""


def mermaid(plan: Any) -> str:
    """The graph as Mermaid: stages, work with its chunks, edges labelled with what flows."""
    from pipeline.reporting.mesh import placements, show_mesh

    lines = ["flowchart LR"]
    over = {name: f"<br/>{_label(show_mesh(p.mesh))}" for name, p in placements(plan).items() if p.mesh.size > 1}
    ids = {name: name if _plain_id(name) else f"stage{i}" for i, name in enumerate(plan.nodes)}
    for node in plan.nodes.values():
        me = ids[node.name]
        if node.work is None:
            lines.append(f'    {me}["{_label(node.name)}{over.get(node.name, "")}"]')
        else:
            n = len(node.work.chunks)
            lines += [
                f"    subgraph {me}" if me == node.name else f'    subgraph {me} ["{_label(node.name)}"]',
                f'        {me}_begin(["begin"]) --> {me}_chunks[["{n} chunk{"s" * (n != 1)}"]]',
                f'        {me}_chunks --> {me}_finish(["finish"])',
                "    end",
            ]
    for node in plan.nodes.values():
        for source in node.inputs.values():
            gives = getattr(plan.nodes[source].gives, "__name__", "")
            gives = gives if gives.isidentifier() else f'"{_label(gives)}"'
            tail = f"{ids[source]}_finish" if plan.nodes[source].work is not None else ids[source]
            head = f"{ids[node.name]}_begin" if node.work is not None else ids[node.name]
            lines.append(f"    {tail} -->|{gives}| {head}")
    return "\n".join(lines)


def _plain_id(name: str) -> bool:
    """Whether Mermaid takes the name for a node's: no word of its own, and none that we make up."""
    words = r"(end|graph|subgraph|flowchart|style|class|classDef|click|linkStyle|default|direction|stage\d+)"
    return bool(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)) and not re.fullmatch(words, name)


def _label(text: str) -> str:
    """Text between Mermaid's quotes: what is punctuation to it or to HTML as an entity."""
    return re.sub(r'["#&;<>`\\\[\](){}|]', lambda m: f"#{ord(m[0])};", line(text))
