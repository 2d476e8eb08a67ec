"""What people see: progress, the plan, reports, errors. Tables, and text that cannot steer a terminal."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError, shown, some
from pipeline.importing import without
from pipeline.redact import hide
from pipeline.tables import GLUE, WIDEST, Grid, table, unbroken, width, wrapped
from pipeline.terminal import line, safe, say
from pipeline.units import show_bytes

COMMANDS = ("weightmill ", "python -m ")  # how a line begins that is to be pasted
FEW = 2  # tensors with the same thing wrong, that have a line each


def out(*renderables: Any) -> None:
    """Print to stdout: tables, text, which is folded where it is known how wide that may be, and paths, unbroken."""
    columns = width()
    if any(isinstance(item, Grid) for item in renderables):
        with without("attr"):  # rich has a way to print its classes
            from rich.console import Console  # which takes longer to import than lines of text need

        console = Console(width=columns or WIDEST, highlight=False)
    for item in renderables:
        if isinstance(item, Grid):
            console.print(item)
        elif columns is None or isinstance(item, Path) or "\n" in item:
            print(safe(str(item)).replace(GLUE, " "))
        else:
            print("\n".join(wrapped(safe(item), columns, indent="  ")))
    sys.stdout.flush()


def one_place() -> bool:
    """Whether what streams to stderr and the results on stdout end up in the same terminal, pipe or file."""
    try:
        out, err = (os.fstat(stream.fileno()) for stream in (sys.stdout, sys.stderr))
    except (OSError, ValueError, AttributeError):  # not a stream of the system's, as in a notebook
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


def stream(text: str) -> None:
    """Text as it comes, beside the results that go to stdout."""
    sys.stderr.write(safe(text))
    sys.stderr.flush()


def aside(text: str) -> None:
    """Say a line beside the results, folded where it is known how wide it may be."""
    columns = width(sys.stderr)
    say(text if columns is None else "\n".join(wrapped(safe(text), columns, indent="  ")))


def error(why: Exception) -> None:
    """Say an error as people should read it, folded where it is known how wide it may be; a command to paste is not."""
    columns = width(sys.stderr)
    for said in error_lines(why):
        for part in said.split("\n"):
            fold = columns is not None and not part.startswith(COMMANDS)
            say("\n".join(wrapped(safe(part), columns or 0, indent="    ")) if fold else part)


def error_lines(why: Exception) -> list[str]:
    """An error as people should read it: no traceback, one line a problem."""
    if not isinstance(why, PlanError) or len(why.problems) < 2:
        return [f"error: {why}"]
    lines = _grouped(why)
    kinds = f" of {'one kind' if len(lines) == 1 else f'{len(lines)} kinds'}" * (len(lines) < len(why.problems))
    return [f"error: {len(why.problems)} problems{kinds}", *(f"  - {said}" for said in shown(lines))]


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


def plan_tables(plan: Any) -> list[Any]:
    """The plan as tables: stages and edges, tensors by group, files, totals."""
    from pipeline.planning.wiring import store_of
    from pipeline.reporting import unused
    from pipeline.reporting.manifest import chosen, left_out
    from pipeline.reporting.mesh import mesh_tables, placements, show_mesh
    from pipeline.reporting.tables import ignored_table
    from pipeline.stage import Checkpoint
    from pipeline.tensors.spec import group_of

    over = placements(plan)
    columns: tuple[str, ...] = ("stage", "takes", "gives", "what", "time")
    times = [4] if plan.time is not None and plan.time.parts else []
    columns = columns if times else columns[:4]
    stages: list[Sequence[str]] = []
    for node in plan.nodes.values():
        takes = ", ".join(s if p == s else f"{p} ← {s}" for p, s in node.inputs.items()) or "–"
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
        row = (node.name, takes, gives if node.work is None else f"{gives} (work)", what)
        stages.append((*row, *(_time_of(plan.time, node.name) for _ in times)))
    found: list[Any] = [table("Stages", columns, stages, right=[*times], drop=["gives", "takes"])]
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
        found.append(table("Tensors", columns, rows, right=(1, 5, 6, 7), drop=["in", "from", "shape", "bits"]))
    found += mesh_tables(plan)
    found += ignored_table(left_out(plan))
    for name, work in plan.works.items():
        if not work.outputs:
            continue
        folder = os.path.commonpath([f.path.parent for f in work.outputs])
        files = folded((str(f.path.relative_to(folder)), f.nbytes) for f in work.outputs)
        rows = [(line(file), f"{nbytes:,}") for file, nbytes in files]
        found += [table(f"Files of {name}", ("file", "bytes"), rows, right=(1,)), Path(folder)]
    found += [f"{name}: {text}" for name, text in chosen(plan).items()]
    found += unused.lines(unused.rows(plan.unread.values()))
    chunks = plan.chunks
    read = sum(f.nbytes for f in plan.inputs)
    beside = f" and keeps at most {show_bytes(plan.kept_nbytes)} beside it" if plan.kept_nbytes else ""
    found.append(
        f"reads {show_bytes(read)} in {len(plan.inputs)} file{'s' * (len(plan.inputs) != 1)}, "
        f"writes {show_bytes(plan.written_nbytes)}{beside}, "
        f"{len(chunks)} chunk{'s' * (len(chunks) != 1)}{_bits(plan, holders)}"
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


def time_line(time: Any) -> str:
    """How long it will take; where it is not known of all stages, of which it is not, and what the others take."""
    if time.seconds is not None:
        return f"time about {time.said()}, by what this machine has measured before"
    known = time.said({p.stage for p in time.parts} - {*time.unknown})
    others = f"; about {known} for the others" if len({p.stage for p in time.parts}) > len(time.unknown) else ""
    return f"time: no rate measured yet of {', '.join(time.unknown)}{others}; the first run measures it"


def _time_of(time: Any, stage: str) -> str:
    """How long a stage will take; a stage without work of its own takes none."""
    if all(p.stage != stage for p in time.parts):
        return ""
    return time.said({stage}) or "not known"


def kernels_table(plan: Any) -> list[Any]:
    """Which backend will run every op, on every tensor and layer."""
    from pipeline.planning.kernels import rows

    found = rows(plan)
    columns = ("op", "of", "for", "in", "backend", "declined")
    used = [i for i in range(len(columns)) if any(row[i] for row in found)]
    shown_rows = [[row[i] for i in used] for row in found]
    drawn = table("Kernels", [columns[i] for i in used], shown_rows, drop=["in", "of", "for"])
    return [drawn] if found else []


def memory_lines(m: Any) -> list[str]:
    """What a plan takes, and what it may."""
    most = m.budget.total if m.model else m.budget.conversion
    return [
        f"peak memory {show_bytes(m.peak)}{'' if most is None else f' of {show_bytes(most)}'}: "
        f"{show_bytes(m.base)} for the processes"
        f"{f', {m.tasks} × {show_bytes(m.task)} for tasks' if m.task else ''}"
        f"{f', {show_bytes(m.model)} to run models' if m.model else ''}",
        f"dask.memory {m.budget.said}",
    ]


def why_tables(reasons: Sequence[Any]) -> list[Any]:
    """Each stage: done already and where, or to do, and what is new against the nearest earlier one."""
    rows: list[Sequence[str]] = []
    places: dict[str, list[str]] = {}
    for r in reasons:
        if r.where:
            said = ""
            places.setdefault(f": {unbroken(r.where)}", []).append(r.node)
        elif not r.against:
            said = "no earlier run has one"
        else:
            said = "\n".join(shown([str(d) for d in r.new])) or "the same; not kept"
            places.setdefault(f": compared with {unbroken(r.against)}", []).append(r.node)
        if r.open:
            said += f"\nopen until the run: what {' and '.join(r.open)} comes to on this machine"
        rows.append((line(r.node), r.state, safe(hide(said))))
    return [
        table("Why", ("stage", "", "what is new"), rows),
        *(", ".join(nodes) + place for place, nodes in places.items()),
    ]


def gc_tables(found: Sequence[Any], *, deleted: bool) -> list[Any]:
    """Results that no run refers to, and what they take."""
    if not found:
        return ["every result belongs to a run"]
    rows = [(line(f.what), show_bytes(f.nbytes), line(f.path.name)) for f in found]
    total = show_bytes(sum(f.nbytes for f in found))
    said = f"{total} removed" if deleted else f"{total} in all; gc --delete removes them"
    folders = dict.fromkeys(f.path.parent for f in found)
    return [table("No run refers to", ("", "bytes", "folder"), rows, right=[1]), said, *folders]


def tune_table(found: Sequence[tuple[str, str, str, float]]) -> list[Any]:
    """How work is divided on this machine from now on, and which backend does it."""
    rows = [(name, usual, now, f"{faster:.2f}×") for name, usual, now, faster in found]
    return [table("Tuned", ("what", "by default", "here", "as fast"), rows, right=(1, 2, 3))]


def _bits(plan: Any, holders: Sequence[Any]) -> str:
    """Effective bits per weight of what comes out of the last of these nodes, and its size against a packed source."""
    from pipeline.planning.wiring import store_of
    from pipeline.reporting.sizes import against_source, nbytes_of, source_nbytes

    store = store_of(holders[-1]) if holders else None
    values = sum(s.size for s in store.specs.values()) if store is not None else 0
    if not values:
        return ""
    nbytes = nbytes_of(holders[-1])
    change = against_source(source_nbytes(plan), 2 * values, nbytes)
    return f", {8 * nbytes / values:.3f} bits a weight{f', {change}' if change else ''}"


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
